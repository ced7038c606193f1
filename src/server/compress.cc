#include "server/compress.h"

#include <zlib.h>

#include <array>

#include "base/text.h"

namespace terrace::server {
namespace {

constexpr int kGzipWindow = 15 + 16;
constexpr int kAnyWindow = 15 + 32;

Bytef* In(std::string_view text) {
  return const_cast<Bytef*>(reinterpret_cast<const Bytef*>(text.data()));
}

}  // namespace

bool AcceptsGzip(std::string_view accept_encoding) {
  for (std::string_view part : Split(accept_encoding, ',')) {
    const size_t semicolon = part.find(';');
    const std::string name = ToLower(StripSpace(part.substr(0, semicolon)));
    if (name != "gzip" && name != "*") continue;
    const std::string_view weight =
        semicolon == std::string_view::npos ? "" : StripSpace(part.substr(semicolon + 1));
    return weight != "q=0" && weight != "q=0.0";
  }
  return false;
}

absl::StatusOr<std::string> Gzip(std::string_view text) {
  z_stream stream{};
  if (deflateInit2(&stream, 1, Z_DEFLATED, kGzipWindow, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
    return absl::InternalError("gzip cannot begin");
  }
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = In(text);
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int result = deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  if (result != Z_STREAM_END) return absl::InternalError("gzip failed");
  return out;
}

absl::StatusOr<std::string> Gunzip(std::string_view packed, uint64_t most_bytes) {
  z_stream stream{};
  if (inflateInit2(&stream, kAnyWindow) != Z_OK) return absl::InternalError("gzip cannot begin");
  stream.next_in = In(packed);
  stream.avail_in = static_cast<uInt>(packed.size());
  std::string out;
  std::array<char, 32 * 1024> piece;
  int result = Z_OK;
  while (result == Z_OK) {
    stream.next_out = reinterpret_cast<Bytef*>(piece.data());
    stream.avail_out = piece.size();
    result = inflate(&stream, Z_NO_FLUSH);
    out.append(piece.data(), piece.size() - stream.avail_out);
    if (out.size() > most_bytes) break;
  }
  const bool rest = stream.avail_in > 0;
  inflateEnd(&stream);
  if (out.size() > most_bytes) {
    return absl::ResourceExhaustedError("the body unpacks to more than the limit");
  }
  if (result != Z_STREAM_END || rest) {
    return absl::InvalidArgumentError("the body is not whole gzip or deflate data");
  }
  return out;
}

}  // namespace terrace::server
