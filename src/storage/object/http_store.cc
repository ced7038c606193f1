#include "storage/object/http_store.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "base/status.h"

namespace terrace::storage {
namespace {

std::optional<uint64_t> ParseNumber(std::string_view text) {
  uint64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

struct ContentRange {
  uint64_t first = 0, last = 0, total = 0;
};

// "bytes 100-199/200"
std::optional<ContentRange> ParseContentRange(std::string_view text) {
  if (!text.starts_with("bytes ")) return std::nullopt;
  text.remove_prefix(6);
  size_t dash = text.find('-'), slash = text.find('/');
  if (dash == std::string_view::npos || slash == std::string_view::npos || slash < dash) {
    return std::nullopt;
  }
  auto first = ParseNumber(text.substr(0, dash));
  auto last = ParseNumber(text.substr(dash + 1, slash - dash - 1));
  auto total = ParseNumber(text.substr(slash + 1));
  if (!first || !last || !total || *last < *first || *last >= *total) return std::nullopt;
  return ContentRange{*first, *last, *total};
}

ObjectInfo InfoOf(const HttpReply& reply, uint64_t bytes) {
  std::string_view version = reply.Header("x-amz-version-id");
  return {bytes, std::string(reply.Header("etag")),
          std::string(version == "null" ? std::string_view() : version),
          std::string(reply.Header("last-modified"))};
}

// A reply that does not name what the pinned one names is of another state. A field that either
// does not have says nothing.
absl::Status CheckSame(const HttpReply& reply, const ObjectInfo& pinned, uint64_t total,
                       const std::string& name) {
  auto differs = [](const std::string& was, std::string_view is) {
    return !was.empty() && !is.empty() && was != is;
  };
  if (total == pinned.bytes && !differs(pinned.etag, reply.Header("etag")) &&
      !differs(pinned.version, reply.Header("x-amz-version-id")) &&
      !differs(pinned.last_modified, reply.Header("last-modified"))) {
    return absl::OkStatus();
  }
  return absl::AbortedError(
      fmt::format("'{}' has changed while it was read: it had {} bytes and ETag {}, now {} and {}",
                  name, pinned.bytes, pinned.etag, total, reply.Header("etag")));
}

absl::Status NoRanges(const std::string& name) {
  return absl::FailedPreconditionError(
      fmt::format("'{}': the server does not serve ranges of it", name));
}

}  // namespace

std::string HttpStore::NameOf(const std::string& key) const {
  std::string url = base_url_ + key;
  url.resize(std::min(url.size(), url.find_first_of("?#")));
  size_t host = url.find("://");
  if (host == std::string::npos) return url;
  host += 3;
  size_t path = std::min(url.find('/', host), url.size());
  size_t at = url.rfind('@', path);
  if (at != std::string::npos && at >= host) url.erase(host, at + 1 - host);
  return url;
}

HttpRequest HttpStore::Prepare(bool head, const std::string& key, const std::string&,
                               const Headers& headers) const {
  HttpRequest request{NameOf(key), base_url_ + key};
  request.head = head;
  for (const auto& [name, value] : headers) {
    request.headers.push_back(fmt::format("{}: {}", name, value));
  }
  return request;
}

absl::StatusOr<ObjectInfo> HttpStore::Stat(const std::string& key, const RequestControl& control) {
  ObjectInfo info;
  const std::string name = NameOf(key);
  auto begin = [&](const HttpReply& reply) -> absl::Status {
    auto range = ParseContentRange(reply.Header("content-range"));
    if (reply.code == 206 && range && range->first == 0) {
      info = InfoOf(reply, range->total);
      return absl::OkStatus();
    }
    // Without ranges the whole body would follow; an empty object has none to give.
    if (reply.code == 200 && ParseNumber(reply.Header("content-length")) == 0) {
      info = InfoOf(reply, 0);
      return absl::OkStatus();
    }
    return NoRanges(name);
  };
  uint64_t came = 0;
  auto sink = [&](std::span<const std::byte> data) -> absl::Status {
    came += data.size();
    if (came <= 1) return absl::OkStatus();
    return absl::UnavailableError(fmt::format("'{}': more than the range came", name));
  };
  ASSIGN_OR_RETURN(HttpReply reply, client_.Do(Prepare(false, key, "", {{"range", "bytes=0-0"}}),
                                               control, begin, sink));
  if (reply.code == 416) return StatByHead(key, control);  // an object of no bytes
  if (reply.code / 100 != 2) return StatusOfReply(reply, name);
  return info;
}

absl::StatusOr<ObjectInfo> HttpStore::StatByHead(const std::string& key,
                                                 const RequestControl& control) {
  auto none = [](auto&&...) { return absl::OkStatus(); };
  ASSIGN_OR_RETURN(HttpReply reply, client_.Do(Prepare(true, key, "", {}), control, none, none));
  if (reply.code / 100 != 2) return StatusOfReply(reply, NameOf(key));
  auto bytes = ParseNumber(reply.Header("content-length"));
  if (bytes != 0) return NoRanges(NameOf(key));
  return InfoOf(reply, 0);
}

absl::Status HttpStore::StreamRange(const std::string& key, uint64_t offset, uint64_t bytes,
                                    const ObjectInfo& pinned, const RequestControl& control,
                                    const Sink& sink) {
  if (bytes == 0 || offset > pinned.bytes || bytes > pinned.bytes - offset) {
    return absl::InvalidArgumentError(fmt::format("'{}': {} bytes at {} are not in {} bytes",
                                                  NameOf(key), bytes, offset, pinned.bytes));
  }
  const std::string name = NameOf(key);
  Headers headers = {{"range", fmt::format("bytes={}-{}", offset, offset + bytes - 1)}};
  // If-Match never matches a weak ETag, by its definition.
  if (!pinned.etag.empty() && !pinned.etag.starts_with("W/")) {
    headers.emplace_back("if-match", pinned.etag);
  }
  auto begin = [&](const HttpReply& reply) -> absl::Status {
    if (reply.code == 200 && offset == 0 && bytes == pinned.bytes) {
      uint64_t total = ParseNumber(reply.Header("content-length")).value_or(pinned.bytes);
      return CheckSame(reply, pinned, total, name);
    }
    auto range = ParseContentRange(reply.Header("content-range"));
    if (reply.code != 206 || !range) return NoRanges(name);
    RETURN_IF_ERROR(CheckSame(reply, pinned, range->total, name));
    if (range->first == offset && range->last == offset + bytes - 1) return absl::OkStatus();
    return absl::UnavailableError(fmt::format("'{}': bytes {}-{} came instead of {}-{}", name,
                                              range->first, range->last, offset,
                                              offset + bytes - 1));
  };
  uint64_t came = 0;
  auto count = [&](std::span<const std::byte> data) -> absl::Status {
    if (data.size() > bytes - came) {
      return absl::UnavailableError(fmt::format("'{}': more than the range came", name));
    }
    uint64_t at = offset + came;
    came += data.size();
    return sink(at, data);
  };
  ASSIGN_OR_RETURN(HttpReply reply,
                   client_.Do(Prepare(false, key, pinned.version, headers), control, begin, count));
  if (reply.code / 100 != 2) return StatusOfReply(reply, name);
  if (came == bytes) return absl::OkStatus();
  return absl::UnavailableError(
      fmt::format("'{}': {} of {} bytes at offset {} came", name, came, bytes, offset));
}

absl::StatusOr<std::vector<ObjectEntry>> HttpStore::List(const std::string&,
                                                         const RequestControl&) {
  return absl::UnimplementedError("plain HTTP cannot list objects");
}

}  // namespace terrace::storage
