#include "cli/admin_client.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <cstdlib>
#include <memory>

namespace terrace::cli {
namespace {

namespace json = boost::json;

size_t Append(char* data, size_t size, size_t count, void* to) {
  static_cast<std::string*>(to)->append(data, size * count);
  return size * count;
}

}  // namespace

absl::StatusOr<json::value> FetchAdmin(const std::string& base, const std::string& path) {
  const std::unique_ptr<CURL, void (*)(CURL*)> curl(curl_easy_init(), curl_easy_cleanup);
  if (curl == nullptr) return absl::InternalError("the HTTP client cannot begin");
  std::string body;
  const std::string url = base + path;
  curl_easy_setopt(curl.get(), CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, &Append);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, &body);
  curl_easy_setopt(curl.get(), CURLOPT_TIMEOUT, 10L);
  curl_slist* headers = nullptr;
  // A key on the command line would be seen by everyone on the machine.
  if (const char* key = std::getenv("TERRACE_KEY"); key != nullptr) {
    headers = curl_slist_append(headers, fmt::format("Authorization: Bearer {}", key).c_str());
    curl_easy_setopt(curl.get(), CURLOPT_HTTPHEADER, headers);
  }
  const CURLcode code = curl_easy_perform(curl.get());
  long status = 0;
  curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &status);
  curl_slist_free_all(headers);
  if (code != CURLE_OK) {
    return absl::UnavailableError(
        fmt::format("{}: {}; is the server running, with server.admin_port on?", base,
                    curl_easy_strerror(code)));
  }
  if (status == 401 || status == 403) {
    return absl::PermissionDeniedError(
        "the server wants an API key with the right to administer: set TERRACE_KEY");
  }
  json::error_code ec;
  json::value answer = json::parse(body, ec);
  if (status != 200 || ec || !answer.is_object()) {
    const json::value* error =
        answer.is_object() ? answer.get_object().if_contains("error") : nullptr;
    const json::value* message = error != nullptr && error->is_object()
                                     ? error->get_object().if_contains("message")
                                     : nullptr;
    if (message != nullptr && message->is_string()) {
      return absl::FailedPreconditionError(std::string(message->get_string()));
    }
    return absl::UnavailableError(fmt::format("{} answered {}", url, status));
  }
  return answer;
}

}  // namespace terrace::cli
