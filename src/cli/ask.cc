#include "cli/ask.h"

#include <fmt/format.h>

#include <utility>

#include "base/status.h"
#include "cli/http_request.h"

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
                                                    const AskOptions& options) {
  ASSIGN_OR_RETURN(const std::string text, AskServer(url + "/v1/models", options));
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
  HttpRequest request(url, options.ca);
  if (request.curl() == nullptr) return absl::InternalError("the HTTP client cannot begin");
  Answer answer{.body = "", .options = &options};
  for (const std::string& header : options.headers) request.AddHeader(header);
  request.AddKey(options.key);
  if (!options.body.empty()) request.Post(options.body);
  request.OnData(&Take, &answer);
  curl_easy_setopt(request.curl(), CURLOPT_TIMEOUT, options.timeout_s);
  const CURLcode code = curl_easy_perform(request.curl());
  if (code != CURLE_OK) {
    const bool absent = code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST;
    return absl::UnavailableError(
        fmt::format("{}: {}{}", url, ReasonOf(code), absent ? "; is the server running?" : ""));
  }
  const long status = request.status();
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

absl::StatusOr<json::value> AskAdmin(const std::string& base, const std::string& path,
                                     AskOptions options) {
  options.timeout_s = 10;
  absl::StatusOr<std::string> body = AskServer(base + path, options);
  if (absl::IsUnavailable(body.status())) {
    return WithContext(body.status(), "the admin port (server.admin_port)");
  }
  if (!body.ok()) return body.status();
  json::error_code error;
  json::value answer = json::parse(*body, error);
  if (error || !answer.is_object()) {
    return absl::FailedPreconditionError(fmt::format("{} is no admin port of Terrace", base));
  }
  return answer;
}

}  // namespace terrace::cli
