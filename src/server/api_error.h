// An error as clients of the OpenAI API see it: an HTTP status and an `error` object whose message
// says what to do. Plain data.
#ifndef TERRACE_SERVER_API_ERROR_H_
#define TERRACE_SERVER_API_ERROR_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "server/exchange.h"

namespace terrace::server {

struct ApiError {
  int status = 500;
  std::string code;  // "context_length_exceeded", "invalid_value" ...
  std::string message;
  std::string param;      // the field at fault, e.g. "messages[2].content"; empty: none
  int retry_after_s = 0;  // > 0: sent as Retry-After
};

// 400 for a field of the body.
ApiError BadField(std::string_view param, std::string message,
                  std::string_view code = "invalid_value");

// How an error of the layers below shows outside: its message as it is, the status by its code.
ApiError FromStatus(const absl::Status& status);

// {"error": {"message", "type", "param", "code"}}: valid UTF-8 whatever the message holds.
std::string ErrorJson(const ApiError& error);

HttpResponse ErrorResponse(const ApiError& error);

}  // namespace terrace::server

#endif  // TERRACE_SERVER_API_ERROR_H_
