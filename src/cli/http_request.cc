#include "cli/http_request.h"

#include <fmt/format.h>

#include <utility>

namespace terrace::cli {

HttpRequest::HttpRequest(const std::string& url, const std::string& ca) : curl_(curl_easy_init()) {
  curl_easy_setopt(curl(), CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl(), CURLOPT_NOSIGNAL, 1L);
  if (!ca.empty()) curl_easy_setopt(curl(), CURLOPT_CAINFO, ca.c_str());
}

void HttpRequest::AddHeader(const std::string& line) {
  curl_slist* longer = curl_slist_append(headers_.get(), line.c_str());
  if (longer == nullptr) return;
  (void)headers_.release();
  headers_.reset(longer);
  curl_easy_setopt(curl(), CURLOPT_HTTPHEADER, longer);
}

void HttpRequest::AddKey(const std::string& key) {
  if (!key.empty()) AddHeader(fmt::format("Authorization: Bearer {}", key));
}

void HttpRequest::Post(std::string body) {
  body_ = std::move(body);
  AddHeader("Content-Type: application/json");
  AddHeader("Expect:");
  curl_easy_setopt(curl(), CURLOPT_POSTFIELDSIZE, static_cast<long>(body_.size()));
  curl_easy_setopt(curl(), CURLOPT_POSTFIELDS, body_.c_str());
}

void HttpRequest::OnData(size_t (*take)(char* data, size_t size, size_t count, void* to),
                         void* to) {
  curl_easy_setopt(curl(), CURLOPT_WRITEFUNCTION, take);
  curl_easy_setopt(curl(), CURLOPT_WRITEDATA, to);
}

long HttpRequest::status() const {
  long status = 0;
  curl_easy_getinfo(curl(), CURLINFO_RESPONSE_CODE, &status);
  return status;
}

std::string ReasonOf(CURLcode code) {
  const char* advice = code == CURLE_PEER_FAILED_VERIFICATION
                           ? "; --ca FILE names the authority that signed its certificate"
                       : code == CURLE_SSL_CACERT_BADFILE
                           ? "; --ca wants a file of certificates (PEM)"
                           : "";
  return fmt::format("{}{}", curl_easy_strerror(code), advice);
}

}  // namespace terrace::cli
