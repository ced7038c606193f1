#include "storage/object/sigv4.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <ctime>

namespace terrace::storage {
namespace {

std::string Hex(std::string_view bytes) {
  std::string out;
  for (unsigned char c : bytes) out += fmt::format("{:02x}", c);
  return out;
}

std::string Sha256(std::string_view text) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_Digest(text.data(), text.size(), digest, &size, EVP_sha256(), nullptr);
  return {reinterpret_cast<char*>(digest), size};
}

std::string Hmac(std::string_view key, std::string_view text) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest, &size);
  return {reinterpret_cast<char*>(digest), size};
}

}  // namespace

std::string UriEncode(std::string_view text, bool keep_slash) {
  std::string out;
  for (unsigned char c : text) {
    bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                 c == '-' || c == '_' || c == '.' || c == '~' || (c == '/' && keep_slash);
    out += plain ? std::string(1, static_cast<char>(c)) : fmt::format("%{:02X}", c);
  }
  return out;
}

std::string CanonicalQuery(const SignedRequest& request) {
  std::vector<std::pair<std::string, std::string>> sorted;
  for (const auto& [name, value] : request.query) {
    sorted.emplace_back(UriEncode(name, false), UriEncode(value, false));
  }
  std::sort(sorted.begin(), sorted.end());
  std::string out;
  for (const auto& [name, value] : sorted) {
    out += fmt::format("{}{}={}", out.empty() ? "" : "&", name, value);
  }
  return out;
}

std::vector<std::string> SignV4(const SignedRequest& request, const AwsCredentials& credentials,
                                std::string_view region, std::string_view service,
                                int64_t wall_us) {
  std::time_t seconds = static_cast<std::time_t>(wall_us / 1000000);
  std::tm utc = {};
  gmtime_r(&seconds, &utc);
  char stamp[32];
  std::strftime(stamp, sizeof(stamp), "%Y%m%dT%H%M%SZ", &utc);
  std::string_view date = std::string_view(stamp).substr(0, 8);
  const std::string payload_hash = Hex(Sha256(""));

  auto headers = request.headers;
  headers.emplace_back("host", request.host);
  headers.emplace_back("x-amz-content-sha256", payload_hash);
  headers.emplace_back("x-amz-date", stamp);
  if (!credentials.session_token.empty()) {
    headers.emplace_back("x-amz-security-token", credentials.session_token);
  }
  std::sort(headers.begin(), headers.end());
  std::string canonical_headers, names;
  std::vector<std::string> lines;
  for (const auto& [name, value] : headers) {
    canonical_headers += fmt::format("{}:{}\n", name, value);
    names += (names.empty() ? "" : ";") + name;
    lines.push_back(fmt::format("{}: {}", name, value));
  }
  std::string canonical =
      fmt::format("{}\n{}\n{}\n{}\n{}\n{}", request.method, request.path, CanonicalQuery(request),
                  canonical_headers, names, payload_hash);
  std::string scope = fmt::format("{}/{}/{}/aws4_request", date, region, service);
  std::string to_sign =
      fmt::format("AWS4-HMAC-SHA256\n{}\n{}\n{}", stamp, scope, Hex(Sha256(canonical)));
  std::string key = Hmac("AWS4" + credentials.secret_access_key, date);
  for (std::string_view part : {region, service, std::string_view("aws4_request")}) {
    key = Hmac(key, part);
  }
  lines.push_back(
      fmt::format("authorization: AWS4-HMAC-SHA256 Credential={}/{},SignedHeaders={},Signature={}",
                  credentials.access_key_id, scope, names, Hex(Hmac(key, to_sign))));
  return lines;
}

}  // namespace terrace::storage
