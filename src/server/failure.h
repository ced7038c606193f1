// An error in the shape of whichever API a request speaks, by its path: for those who answer
// instead of the handler. Pure functions.
#ifndef TERRACE_SERVER_FAILURE_H_
#define TERRACE_SERVER_FAILURE_H_

#include <string>
#include <string_view>

#include "server/api_error.h"
#include "server/exchange.h"

namespace terrace::server {

// The whole answer.
HttpResponse FailureResponse(std::string_view path, const ApiError& error);

// What is appended to an answer that streams as `content_type`, so that its reader learns of the
// error.
std::string FailureEvent(std::string_view path, std::string_view content_type,
                         const ApiError& error);

}  // namespace terrace::server

#endif  // TERRACE_SERVER_FAILURE_H_
