// Any bytes as the body of a request. What is accepted must lie within the limits that the layers
// below rely on; what is refused must come with a well-formed error.
#include <algorithm>
#include <boost/json/parse.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/text.h"
#include "server/api_error.h"
#include "server/chat_translation.h"
#include "server/embeddings.h"
#include "server/openai_request.h"
#include "server/url.h"

namespace {

using namespace terrace;
using namespace terrace::server;

void Check(bool holds) {
  if (!holds) std::abort();
}

void CheckError(const ApiError& error) {
  Check(error.status == 400 && !error.message.empty() && !error.code.empty());
  const std::string body = ErrorJson(error);
  boost::json::error_code ec;
  const auto value = boost::json::parse(body, ec);
  Check(!ec && value.is_object() && IsValidUtf8(body));
}

void CheckNumber(float value, float low, float high) {
  Check(std::isfinite(value) && value >= low && value <= high);
}

void CheckParams(const GenerationParams& params, bool echo = false) {
  Check(!params.model.empty() && IsValidUtf8(params.model));
  Check(params.n >= 1 && params.n <= kMaxChoices);
  Check(params.best_of >= 1 && params.best_of <= kMaxChoices);
  Check(params.stop.size() <= kMaxStops);
  for (const std::string& stop : params.stop) Check(!stop.empty() && IsValidUtf8(stop));
  Check(!params.max_tokens || *params.max_tokens >= (echo ? 0 : 1));
  Check(!params.prompt_logprobs || (echo && params.sampling.top_logprobs));
  Check(params.stream || !params.include_usage);
  const SamplingParams& sampling = params.sampling;
  CheckNumber(sampling.temperature, 0, 2);
  CheckNumber(sampling.top_p, 0, 1);
  CheckNumber(sampling.min_p, 0, 1);
  CheckNumber(sampling.typical_p, 0, 1);
  CheckNumber(sampling.presence_penalty, -2, 2);
  CheckNumber(sampling.frequency_penalty, -2, 2);
  CheckNumber(sampling.repetition_penalty, 0, 10);
  Check(sampling.temperature == 0 || std::isfinite(1000 / sampling.temperature));
  Check(sampling.top_p > 0 && sampling.typical_p > 0 && sampling.repetition_penalty > 0);
  Check(sampling.top_k >= 0);
  Check(!sampling.top_logprobs || (*sampling.top_logprobs >= 0 && *sampling.top_logprobs <= 20));
  for (const auto& [id, bias] : sampling.logit_bias) {
    Check(id >= 0);
    CheckNumber(bias, -100, 100);
  }
  const auto error = CheckLogitBias(params, 100);
  if (error) CheckError(*error);
}

void CheckConversation(const Conversation& conversation) {
  Check(!conversation.messages.empty() && conversation.messages.size() <= kMaxMessages);
  for (const ChatMessage& message : conversation.messages) {
    Check(!message.role.empty() && IsValidUtf8(message.content));
    for (const ToolCall& call : message.tool_calls) Check(!call.name.empty());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  ChatRequest chat;
  if (auto error = ParseChatRequest(body, &chat)) {
    CheckError(*error);
  } else {
    CheckParams(chat.params);
    CheckConversation(chat.input);
  }
  for (const auto parse : {ParseResponsesRequest, ParseMessagesRequest}) {
    ChatRequest translated;
    if (auto error = parse(body, &translated)) {
      CheckError(*error);
    } else {
      CheckParams(translated.params);
      CheckConversation(translated.input);
    }
  }
  CompletionRequest completion;
  if (auto error = ParseCompletionRequest(body, &completion)) {
    CheckError(*error);
  } else {
    CheckParams(completion.params, completion.echo);
    Check(!completion.params.prompt_logprobs || completion.suffix.empty());
    Check(!completion.prompts.empty());
    const int32_t each = std::max(completion.params.n, completion.params.best_of);
    Check(completion.prompts.size() * static_cast<size_t>(each) <= kMaxChoices);
    for (const Prompt& prompt : completion.prompts) {
      Check(!prompt.is_ids || !prompt.ids.empty());
      auto error_of_ids = CheckIds(prompt.ids, "prompt", 100);
      if (error_of_ids) CheckError(*error_of_ids);
    }
  }
  TokenizeRequest tokenize;
  if (auto error = ParseTokenizeRequest(body, &tokenize)) {
    CheckError(*error);
  } else if (tokenize.chat) {
    CheckConversation(*tokenize.chat);
  }
  DetokenizeRequest detokenize;
  if (auto error = ParseDetokenizeRequest(body, &detokenize)) CheckError(*error);
  for (const auto parse : {ParseEmbeddingRequest, ParseRerankRequest}) {
    EmbeddingRequest embedding;
    if (auto error = parse(body, &embedding)) {
      CheckError(*error);
      continue;
    }
    Check(!embedding.model.empty() && !embedding.inputs.empty());
    Check(embedding.inputs.size() <= kMaxInputs);
    Check(!embedding.dimensions || *embedding.dimensions >= 1);
    Check(!embedding.top_n || *embedding.top_n >= 1);
    for (const Prompt& input : embedding.inputs) {
      Check(input.is_ids ? !input.ids.empty() : !input.text.empty() && IsValidUtf8(input.text));
    }
  }
  std::string path, query;
  if (SplitTarget(body, &path, &query)) Check(!path.empty() && IsValidUtf8(path));
  return 0;
}
