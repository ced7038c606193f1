// Fetches one file from a path, a file: URL, an http(s): URL or "s3://bucket/key" to a file under
// its final name, which appears only when it is complete, checked and on disk. What has come so far
// is kept beside it as "<destination>.partial" (with "<destination>.partial.json" or, of S3,
// "<destination>.partial.ranges", which say of what) and is taken up again by the next attempt, if
// the source is still the same.
#ifndef TERRACE_WEIGHTS_FETCH_H_
#define TERRACE_WEIGHTS_FETCH_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace terrace::weights {

struct FetchProgress {
  uint64_t done_bytes = 0;   // of the file, with what an earlier attempt had fetched
  uint64_t total_bytes = 0;  // 0: not known
};

struct FetchOptions {
  std::string sha256;        // expected, 64 hexadecimal digits; empty: not checked
  std::string bearer_token;  // sent to the URL's own host only
  std::function<void(const FetchProgress&)> progress;  // called often, on the calling thread
  const std::atomic<bool>* cancel = nullptr;           // set: ends soon with Cancelled
  int attempts = 5;                                    // in a row that bring no new bytes
  int64_t retry_wait_us = 1000000;  // before the second attempt, doubled each time to at most 30 s
  int64_t stall_timeout_s = 60;     // without a byte: the attempt has failed
  int64_t connect_timeout_s = 20;
  // The AWS_* variables of s3: sources (storage/object/s3_store.h), "" for one that is not set.
  // Without it requests are not signed and go to AWS.
  std::function<std::string(std::string_view)> environment;
};

struct FetchResult {
  uint64_t bytes = 0;
  std::string sha256;             // of the whole file
  uint64_t resumed_at_bytes = 0;  // what earlier calls had left
};

// Blocks until done. Errors name the source: NotFound (404, no such file), PermissionDenied (401,
// 403), DataLoss (the checksum differs; what was fetched is deleted), ResourceExhausted (disk
// full), Aborted (another process is fetching the same file), Cancelled, Unavailable (the network
// or the server, after the last attempt), InvalidArgument (a scheme that is not known).
absl::StatusOr<FetchResult> Fetch(const std::string& source, const std::string& destination,
                                  const FetchOptions& options);

// The body of a small document, at most `limit_bytes`. Errors as above.
absl::StatusOr<std::string> FetchText(const std::string& url, uint64_t limit_bytes,
                                      const FetchOptions& options);

}  // namespace terrace::weights

#endif  // TERRACE_WEIGHTS_FETCH_H_
