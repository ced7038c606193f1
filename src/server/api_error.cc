#include "server/api_error.h"

#include <fmt/format.h>

#include <utility>

#include "base/retry_after.h"
#include "base/status.h"
#include "base/text.h"
#include "server/json_text.h"

namespace terrace::server {
namespace {

std::string_view ErrorType(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

}  // namespace

ApiError BadField(std::string_view param, std::string message, std::string_view code) {
  return {.status = 400,
          .code = std::string(code),
          .message = std::move(message),
          .param = std::string(param)};
}

ApiError FromStatus(const absl::Status& status) {
  ApiError error{.status = 500, .code = "internal_error", .message = std::string(Message(status))};
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      error.status = 400;
      error.code = "invalid_value";
      break;
    case absl::StatusCode::kNotFound:
      error.status = 404;
      error.code = "model_not_found";
      break;
    case absl::StatusCode::kResourceExhausted:
      error.status = 429;
      error.code = "overloaded";
      error.retry_after_s = 1;
      break;
    case absl::StatusCode::kUnavailable:
      error.status = 503;
      error.code = "unavailable";
      error.retry_after_s = 1;
      break;
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kAborted:
      error.status = 503;
      error.code = "cancelled";
      break;
    case absl::StatusCode::kFailedPrecondition:
      error.status = 503;
      error.code = "model_unavailable";
      break;
    case absl::StatusCode::kDeadlineExceeded:
      error.status = 504;
      error.code = "timeout";
      break;
    case absl::StatusCode::kUnimplemented:
      error.status = 501;
      error.code = "not_supported";
      break;
    default:
      break;
  }
  if (const int known_s = RetryAfterSeconds(status); known_s > 0) error.retry_after_s = known_s;
  return error;
}

std::string ErrorJson(const ApiError& error) {
  std::string out = "{\"error\":{\"message\":";
  AppendJsonString(ToValidUtf8(error.message), &out);
  out += ",\"type\":";
  AppendJsonString(ErrorType(error.status), &out);
  out += ",\"param\":";
  if (error.param.empty()) {
    out += "null";
  } else {
    AppendJsonString(ToValidUtf8(error.param), &out);
  }
  out += ",\"code\":";
  AppendJsonString(error.code, &out);
  out += "}}";
  return out;
}

HttpResponse ErrorResponse(const ApiError& error) {
  HttpResponse response{.status = error.status, .body = ErrorJson(error)};
  if (error.retry_after_s > 0) {
    response.headers.emplace_back("Retry-After", fmt::format("{}", error.retry_after_s));
  }
  return response;
}

}  // namespace terrace::server
