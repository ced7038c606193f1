// HTTP requests over libcurl for the object stores: bounded, cancellable, on connections that are
// kept for the next request.
#ifndef TERRACE_STORAGE_OBJECT_HTTP_CLIENT_H_
#define TERRACE_STORAGE_OBJECT_HTTP_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "storage/object/object_store.h"

namespace terrace::storage {

struct HttpOptions {
  int64_t connect_timeout_us = 10000000;
  // Slower than this for so long is a stall, and the attempt has failed.
  int64_t low_speed_bytes_per_s = 1024;
  int64_t low_speed_s = 10;
  std::string ca_file;       // certificates that are trusted (PEM); empty: the system's
  std::string bearer_token;  // sent to the URL's own host only; plain HTTP stores
};

struct HttpRequest {
  std::string name;  // for messages
  std::string url;
  std::vector<std::string> headers;  // "Name: value"
  bool head = false;                 // HEAD, else GET
  bool follow_redirects = true;
};

struct HttpReply {
  long code = 0;
  std::vector<std::pair<std::string, std::string>> headers;  // lower-case names; the last reply's
  std::string refusal;  // the start of the body if the code is not 2xx

  std::string_view Header(std::string_view name) const;
};

// What a reply that is not 2xx means (object_store.h lists the codes).
absl::Status StatusOfReply(const HttpReply& reply, const std::string& name);
// The text of <tag> in an S3 error or listing; empty if it is not there. Entities are decoded.
std::string XmlText(std::string_view xml, std::string_view tag);

// Thread-safe.
class HttpClient {
 public:
  using Begin = std::function<absl::Status(const HttpReply&)>;
  using Sink = std::function<absl::Status(std::span<const std::byte>)>;

  explicit HttpClient(HttpOptions options) : options_(std::move(options)) {}
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // A reply of any code, after `begin` saw its headers and `sink` its body if the code is 2xx.
  // Errors of theirs are returned as they are; others are Unavailable (the network),
  // FailedPrecondition (a URL or certificate that won't do) and Cancelled.
  absl::StatusOr<HttpReply> Do(const HttpRequest& request, const RequestControl& control,
                               const Begin& begin, const Sink& sink);

 private:
  void* TakeHandle();
  void GiveHandle(void* handle);

  const HttpOptions options_;
  absl::Mutex mutex_;
  std::vector<void*> idle_ ABSL_GUARDED_BY(mutex_);  // curl handles with their connections
};

}  // namespace terrace::storage

#endif  // TERRACE_STORAGE_OBJECT_HTTP_CLIENT_H_
