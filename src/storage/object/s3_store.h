// Objects in a bucket of S3 or a compatible store: requests signed with Signature Version 4, path
// or virtual-host style, any endpoint, temporary credentials, versions of objects.
#ifndef TERRACE_STORAGE_OBJECT_S3_STORE_H_
#define TERRACE_STORAGE_OBJECT_S3_STORE_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "storage/object/http_store.h"
#include "storage/object/sigv4.h"

namespace terrace::storage {

enum class S3Addressing {
  kAuto,         // virtual-host style for AWS itself and names without dots, else path style
  kPath,         // https://endpoint/bucket/key
  kVirtualHost,  // https://bucket.endpoint/key
};

struct S3Settings {
  std::string endpoint;  // "https://host[:port]"; empty: AWS's for the region
  std::string region = "us-east-1";
  S3Addressing addressing = S3Addressing::kAuto;
  AwsCredentials credentials;  // without: requests of anyone
  std::string ca_file;         // certificates that are trusted (PEM); empty: the system's
};

// From AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, AWS_REGION or AWS_DEFAULT_REGION,
// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_CA_BUNDLE and
// AWS_S3_ADDRESSING_STYLE (auto, path or virtual). `environment` returns "" for a variable that is
// not set. InvalidArgument if only half of a pair of keys is there, and for another style.
absl::StatusOr<S3Settings> S3SettingsFrom(
    const std::function<std::string(std::string_view)>& environment);

struct S3Location {
  std::string bucket, key;
};
// "s3://bucket/key"; InvalidArgument for anything else.
absl::StatusOr<S3Location> ParseS3Url(std::string_view url);

// Thread-safe. Keys are taken as they are, not escaped. Names in messages are "s3://bucket/key".
class S3Store final : public HttpStore {
 public:
  // InvalidArgument for a bucket, endpoint or credential that cannot be one. `clock` (its wall time
  // goes into signatures) must outlive the store; HttpOptions::bearer_token is not used,
  // nor ca_file where the settings have one.
  static absl::StatusOr<std::unique_ptr<S3Store>> Create(S3Settings settings, std::string bucket,
                                                         HttpOptions options, const Clock& clock);

  std::string NameOf(const std::string& key) const override;
  absl::StatusOr<std::vector<ObjectEntry>> List(const std::string& prefix,
                                                const RequestControl& control) override;

 protected:
  HttpRequest Prepare(bool head, const std::string& key, const std::string& version,
                      const Headers& headers) const override;

 private:
  S3Store(S3Settings settings, std::string bucket, HttpOptions options, const Clock& clock);
  // `path` is escaped, without the bucket.
  HttpRequest Sign(bool head, const std::string& path, Headers query, Headers headers) const;

  const S3Settings settings_;
  const std::string bucket_;
  const Clock& clock_;
  std::string scheme_, host_;  // with the bucket in virtual-host style
  std::string path_prefix_;    // "/bucket" in path style
};

}  // namespace terrace::storage

#endif  // TERRACE_STORAGE_OBJECT_S3_STORE_H_
