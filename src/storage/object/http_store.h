// Objects behind plain HTTP(S) URLs, read with Range requests. Any server of static files does if
// it supports ranges; so do presigned URLs of an object store.
#ifndef TERRACE_STORAGE_OBJECT_HTTP_STORE_H_
#define TERRACE_STORAGE_OBJECT_HTTP_STORE_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/object/http_client.h"
#include "storage/object/object_store.h"

namespace terrace::storage {

// A key is appended to `base_url` as it is, so it must be escaped already; with an empty base URL
// keys are whole URLs. Redirects are followed.
class HttpStore : public ObjectStore {
 public:
  HttpStore(std::string base_url, HttpOptions options)
      : client_(std::move(options)), base_url_(std::move(base_url)) {}

  std::string NameOf(const std::string& key) const override;
  // Asks for the first byte rather than with HEAD: a presigned URL allows GET only, the answer
  // shows that the server does ranges, and a refusal has a body that says why.
  absl::StatusOr<ObjectInfo> Stat(const std::string& key, const RequestControl& control) override;
  absl::Status StreamRange(const std::string& key, uint64_t offset, uint64_t bytes,
                           const ObjectInfo& pinned, const RequestControl& control,
                           const Sink& sink) override;
  absl::StatusOr<std::vector<ObjectEntry>> List(const std::string& prefix,
                                                const RequestControl& control) override;

 protected:
  // "Name: value" apart, names in lower case.
  using Headers = std::vector<std::pair<std::string, std::string>>;

  // The request for an object with these headers; `version` may be empty.
  virtual HttpRequest Prepare(bool head, const std::string& key, const std::string& version,
                              const Headers& headers) const;

  HttpClient client_;

 private:
  absl::StatusOr<ObjectInfo> StatByHead(const std::string& key, const RequestControl& control);

  const std::string base_url_;
};

}  // namespace terrace::storage

#endif  // TERRACE_STORAGE_OBJECT_HTTP_STORE_H_
