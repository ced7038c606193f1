// Requests of other chat APIs as requests of the chat completions API: /v1/responses and
// /v1/messages differ from it in names and nesting, not in what can be asked.
#ifndef TERRACE_SERVER_CHAT_TRANSLATION_H_
#define TERRACE_SERVER_CHAT_TRANSLATION_H_

#include <optional>
#include <string_view>

#include "server/api_error.h"
#include "server/openai_request.h"

namespace terrace::server {

// Each fills `*out` or says what is wrong, in the names of its own API.
std::optional<ApiError> ParseResponsesRequest(std::string_view body, ChatRequest* out);
std::optional<ApiError> ParseMessagesRequest(std::string_view body, ChatRequest* out);

}  // namespace terrace::server

#endif  // TERRACE_SERVER_CHAT_TRANSLATION_H_
