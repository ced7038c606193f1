// From a checked request and its model to what is to be generated: the prompt's tokens, the grammar
// that answers must follow, how they are split. Thread-safe, as the model is.
#ifndef TERRACE_SERVER_OPENAI_PLAN_H_
#define TERRACE_SERVER_OPENAI_PLAN_H_

#include <memory>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "server/api_error.h"
#include "server/generation.h"
#include "server/openai_request.h"

namespace terrace::server {

// Each fills `*out` or returns what is wrong with the request.
std::optional<ApiError> PlanChat(ChatRequest request, std::shared_ptr<const ServedModel> model,
                                 GenerationPlan* out);
std::optional<ApiError> PlanCompletion(CompletionRequest request,
                                       std::shared_ptr<const ServedModel> model,
                                       GenerationPlan* out);

// A prompt that could not be made: the client's input is at fault, unless something is wrong here.
ApiError PromptError(const absl::Status& status, std::string_view field);

}  // namespace terrace::server

#endif  // TERRACE_SERVER_OPENAI_PLAN_H_
