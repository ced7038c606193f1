#include "cli/load/ask.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <boost/json.hpp>
#include <memory>

#include "base/status.h"

namespace terrace::cli {
namespace {

namespace json = boost::json;

struct Answer {
  std::string body;
  size_t line_begin = 0;
  const AskOptions* options = nullptr;
};

size_t Take(char* data, size_t size, size_t count, void* to) {
  auto* answer = static_cast<Answer*>(to);
  answer->body.append(data, size * count);
  if (!answer->options->on_line) return size * count;
  for (size_t end; (end = answer->body.find('\n', answer->line_begin)) != std::string::npos;
       answer->line_begin = end + 1) {
    answer->options->on_line(
        std::string_view(answer->body).substr(answer->line_begin, end - answer->line_begin));
  }
  return size * count;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ListModels(const std::string& url,
                                                    const std::string& key) {
  ASSIGN_OR_RETURN(const std::string text, AskServer(url + "/v1/models", {.key = key}));
  json::error_code error;
  const json::value value = json::parse(text, error);
  const json::value* data =
      !error && value.is_object() ? value.get_object().if_contains("data") : nullptr;
  if (data == nullptr || !data->is_array()) {
    return absl::FailedPreconditionError(url + "/v1/models is no list of models");
  }
  std::vector<std::string> models;
  for (const json::value& each : data->get_array()) {
    const json::value* id = each.is_object() ? each.get_object().if_contains("id") : nullptr;
    if (id != nullptr && id->is_string()) models.emplace_back(id->get_string());
  }
  if (models.empty()) return absl::FailedPreconditionError("the server has no models");
  return models;
}

std::string ErrorMessage(std::string_view body) {
  json::error_code failed;
  const json::value value = json::parse(json::string_view(body.data(), body.size()), failed);
  const json::value* error =
      !failed && value.is_object() ? value.get_object().if_contains("error") : nullptr;
  if (error == nullptr) return std::string(body.substr(0, 200));
  const json::value* message =
      error->is_object() ? error->get_object().if_contains("message") : error;
  return message != nullptr && message->is_string() ? std::string(message->get_string())
                                                    : json::serialize(*error);
}

absl::StatusOr<std::string> AskServer(const std::string& url, const AskOptions& options) {
  const std::unique_ptr<CURL, void (*)(CURL*)> curl(curl_easy_init(), curl_easy_cleanup);
  if (curl == nullptr) return absl::InternalError("the HTTP client cannot begin");
  Answer answer{.body = "", .options = &options};
  curl_slist* headers = curl_slist_append(nullptr, "Content-Type: application/json");
  for (const std::string& header : options.headers) {
    headers = curl_slist_append(headers, header.c_str());
  }
  if (!options.key.empty()) {
    headers = curl_slist_append(headers, ("Authorization: Bearer " + options.key).c_str());
  }
  curl_easy_setopt(curl.get(), CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_HTTPHEADER, headers);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, &Take);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, &answer);
  curl_easy_setopt(curl.get(), CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_TIMEOUT, options.timeout_s);
  if (!options.body.empty()) {
    curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDSIZE, static_cast<long>(options.body.size()));
    curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDS, options.body.c_str());
  }
  const CURLcode code = curl_easy_perform(curl.get());
  long status = 0;
  curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &status);
  curl_slist_free_all(headers);
  if (code != CURLE_OK) {
    return absl::UnavailableError(
        fmt::format("{}: {}; is the server running?", url, curl_easy_strerror(code)));
  }
  if (status == 401 || status == 403) {
    return absl::PermissionDeniedError(
        fmt::format("{} wants an API key with the right to it: set TERRACE_KEY", url));
  }
  if (status != 200) {
    return absl::FailedPreconditionError(
        fmt::format("{} answered {}: {}", url, status, ErrorMessage(answer.body)));
  }
  return std::move(answer.body);
}

}  // namespace terrace::cli
