// The bodies of OpenAI-style requests, read and checked. Everything in a body is hostile: size is
// bounded by the HTTP server, nesting and counts here, every number is checked for being finite and
// in range, and every error names its field. null means absent; unknown fields are ignored. The
// rules for each field are in docs/API.md.
#ifndef TERRACE_SERVER_OPENAI_REQUEST_H_
#define TERRACE_SERVER_OPENAI_REQUEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "request/request.h"
#include "server/api_error.h"
#include "server/openai_format.h"

namespace terrace::server {

inline constexpr int kMaxJsonDepth = 64;
inline constexpr int kMaxChoices = 16;  // n, or prompts times n
inline constexpr int kMaxStops = 16;
inline constexpr int kMaxMessages = 10'000;

// What becomes of reasoning that the model's format marks.
enum class ReasoningOutput : uint8_t {
  kSplit,   // reasoning_content
  kInline,  // a part of the text, markers and all
  kHide,    // left out
};

struct GenerationParams {
  std::string model;
  int32_t n = 1;
  int32_t best_of = 1;  // answers made for each prompt, of which the n likeliest are given
  bool stream = false;
  bool include_usage = false;
  std::vector<std::string> stop;
  std::optional<int32_t> max_tokens;  // 0: the prompt is to be scored only
  bool prompt_logprobs = false;       // reports of the prompt's tokens come before the answer's
  SamplingParams sampling;
  AnswerFormat format;
  ReasoningOutput reasoning = ReasoningOutput::kSplit;
};

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // as sent: usually the text of a JSON object
};

struct ChatMessage {
  std::string role;     // system, developer, user, assistant, tool or function
  std::string content;  // parts joined with nothing between
  std::string name;
  std::string tool_call_id;
  std::string reasoning_content;
  std::vector<ToolCall> tool_calls;
};

struct Conversation {
  std::vector<ChatMessage> messages;
  bool add_generation_prompt = true;
  std::string template_kwargs;  // chat_template_kwargs: the text of a JSON object; empty: none
  std::string tools;            // the text of a JSON array, as the API has it; empty: none
};

struct ChatRequest {
  GenerationParams params;
  Conversation input;
  ToolRequest tools;
};

// Text, or token ids.
struct Prompt {
  std::string text;
  std::vector<int32_t> ids;
  bool is_ids = false;
};

struct CompletionRequest {
  GenerationParams params;
  std::vector<Prompt> prompts;  // at least one
  bool echo = false;
  std::string suffix;  // what stands behind the answer; empty: nothing
};

struct TokenizeRequest {
  std::string model;
  std::string text;
  std::optional<Conversation> chat;  // instead of text
  bool add_special = true;
  bool parse_special = true;
};

struct DetokenizeRequest {
  std::string model;
  std::vector<int32_t> ids;
};

// Each fills `*out` or returns what is wrong with the body.
std::optional<ApiError> ParseChatRequest(std::string_view body, ChatRequest* out);
std::optional<ApiError> ParseCompletionRequest(std::string_view body, CompletionRequest* out);
std::optional<ApiError> ParseTokenizeRequest(std::string_view body, TokenizeRequest* out);
std::optional<ApiError> ParseDetokenizeRequest(std::string_view body, DetokenizeRequest* out);

// What can only be checked once the model is known: ids against its vocabulary.
std::optional<ApiError> CheckLogitBias(const GenerationParams& params, int32_t vocab_size);
std::optional<ApiError> CheckIds(const std::vector<int32_t>& ids, std::string_view field,
                                 int32_t vocab_size);

}  // namespace terrace::server

#endif  // TERRACE_SERVER_OPENAI_REQUEST_H_
