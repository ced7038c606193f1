// AWS Signature Version 4 of a request (docs.aws.amazon.com, "Authenticating Requests:
// Using the Authorization Header"). libcurl can sign too, but how it treats queries and the
// payload's hash changes with its version, and it takes the time from the system.
#ifndef TERRACE_STORAGE_OBJECT_SIGV4_H_
#define TERRACE_STORAGE_OBJECT_SIGV4_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace terrace::storage {

struct AwsCredentials {
  std::string access_key_id;  // empty: requests are not signed
  std::string secret_access_key;
  std::string session_token;  // of temporary credentials; else empty
};

// Each byte but A-Z a-z 0-9 - . _ ~ (and '/' if `keep_slash`) as %XX.
std::string UriEncode(std::string_view text, bool keep_slash);

struct SignedRequest {
  std::string method;
  std::string host;  // with the port if it is not the scheme's own
  std::string path;  // UriEncode'd, from '/'
  std::vector<std::pair<std::string, std::string>> query;  // neither encoded nor in order
  // Further headers to sign: lower-case names, stripped values.
  std::vector<std::pair<std::string, std::string>> headers;
};

// The query of `request` as it is signed and must be sent, without '?'.
std::string CanonicalQuery(const SignedRequest& request);
// The header lines to send ("Name: value"): host, those of `request`, x-amz-*, authorization. The
// request has no body. `wall_us` since the Unix epoch.
std::vector<std::string> SignV4(const SignedRequest& request, const AwsCredentials& credentials,
                                std::string_view region, std::string_view service, int64_t wall_us);

}  // namespace terrace::storage

#endif  // TERRACE_STORAGE_OBJECT_SIGV4_H_
