// gzip and deflate of HTTP bodies (RFC 1950, 1952).
#ifndef TERRACE_SERVER_COMPRESS_H_
#define TERRACE_SERVER_COMPRESS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace terrace::server {

// True if an Accept-Encoding header names gzip and does not refuse it.
bool AcceptsGzip(std::string_view accept_encoding);

absl::StatusOr<std::string> Gzip(std::string_view text);

// From gzip or zlib form, whichever it is. ResourceExhausted beyond `most_bytes`, so that a small
// body cannot fill memory; InvalidArgument if it is neither or is cut off.
absl::StatusOr<std::string> Gunzip(std::string_view packed, uint64_t most_bytes);

}  // namespace terrace::server

#endif  // TERRACE_SERVER_COMPRESS_H_
