#include "server/messages_writer.h"

#include <fmt/format.h>

#include <iterator>

#include "base/text.h"
#include "server/json_text.h"

namespace terrace::server {
namespace {

void Event(std::string_view type, std::string_view rest, std::string* out) {
  fmt::format_to(std::back_inserter(*out), "event: {0}\ndata: {{\"type\":\"{0}\"{1}}}\n\n", type,
                 rest);
}

std::string ErrorBody(const ApiError& error) {
  std::string_view type = "api_error";
  if (error.status == 400) type = "invalid_request_error";
  if (error.status == 401) type = "authentication_error";
  if (error.status == 403) type = "permission_error";
  if (error.status == 404) type = "not_found_error";
  if (error.status == 413) type = "request_too_large";
  if (error.status == 429) type = "rate_limit_error";
  if (error.status == 503) type = "overloaded_error";
  return fmt::format("{{\"type\":\"error\",\"error\":{{\"type\":\"{}\",\"message\":{}}}}}", type,
                     JsonString(ToValidUtf8(error.message)));
}

std::string StopFields(const ChoiceAnswer& answer) {
  std::string_view reason = "end_turn";
  if (answer.reason == FinishReason::kLength) {
    reason = "max_tokens";
  } else if (!answer.stop_text.empty()) {
    reason = "stop_sequence";
  } else if (!answer.calls.empty()) {
    reason = "tool_use";
  }
  return fmt::format("\"stop_reason\":\"{}\",\"stop_sequence\":{}", reason,
                     answer.stop_text.empty() ? "null" : JsonString(answer.stop_text));
}

std::string ToolBlock(const AnswerCall& call, std::string_view input) {
  return fmt::format("{{\"type\":\"tool_use\",\"id\":{},\"name\":{},\"input\":{}}}",
                     JsonString(call.id), JsonString(call.name), input);
}

}  // namespace

HttpResponse MessagesError(const ApiError& error) {
  HttpResponse response = ErrorResponse(error);
  response.body = ErrorBody(error);
  return response;
}

std::string MessagesWriter::Whole(std::span<const ChoiceAnswer> choices, const Usage& usage) {
  const ChoiceAnswer& answer = choices[0];
  std::string blocks;
  auto add = [&blocks](const std::string& block) { blocks += (blocks.empty() ? "" : ",") + block; };
  if (!answer.reasoning.empty()) {
    add(fmt::format("{{\"type\":\"thinking\",\"thinking\":{},\"signature\":\"\"}}",
                    JsonString(answer.reasoning)));
  }
  if (!answer.text.empty()) {
    add(fmt::format("{{\"type\":\"text\",\"text\":{}}}", JsonString(answer.text)));
  }
  // Arguments that a token limit has cut off are no JSON: they are left out.
  for (size_t i = 0; i < answer.calls.size(); ++i) {
    const AnswerCall& call = answer.calls[i];
    const bool cut = answer.reason == FinishReason::kLength && i + 1 == answer.calls.size();
    add(ToolBlock(call, cut ? "{}" : call.arguments));
  }
  return fmt::format(
      "{{\"id\":{},\"type\":\"message\",\"role\":\"assistant\",\"model\":{},\"content\":[{}],{},"
      "\"usage\":{{\"input_tokens\":{},\"cache_read_input_tokens\":{},\"output_tokens\":{}}}}}",
      JsonString(id_), JsonString(model_), blocks, StopFields(answer),
      usage.prompt_tokens - usage.cached_tokens, usage.cached_tokens, usage.completion_tokens);
}

void MessagesWriter::Begin(int32_t index, std::string* out) {
  if (index != 0) return;
  Event("message_start",
        fmt::format(",\"message\":{{\"id\":{},\"type\":\"message\",\"role\":\"assistant\","
                    "\"model\":{},\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,"
                    "\"usage\":{{\"input_tokens\":{},\"output_tokens\":0}}}}",
                    JsonString(id_), JsonString(model_), prompt_tokens_),
        out);
}

void MessagesWriter::Open(Block kind, std::string_view block, std::string* out) {
  if (open_ == kind && kind != Block::kTool) return;
  Close(out);
  open_ = kind;
  Event("content_block_start", fmt::format(",\"index\":{},\"content_block\":{}", blocks_, block),
        out);
}

void MessagesWriter::Close(std::string* out) {
  if (open_ == Block::kNone) return;
  open_ = Block::kNone;
  Event("content_block_stop", fmt::format(",\"index\":{}", blocks_++), out);
}

void MessagesWriter::Delta(std::string_view type, std::string_view field, std::string_view text,
                           std::string* out) {
  Event("content_block_delta",
        fmt::format(",\"index\":{},\"delta\":{{\"type\":\"{}\",\"{}\":{}}}", blocks_, type, field,
                    JsonString(text)),
        out);
}

void MessagesWriter::Content(int32_t index, std::string_view text, std::span<const TokenReport>,
                             std::string* out) {
  if (index != 0 || text.empty()) return;
  Open(Block::kText, "{\"type\":\"text\",\"text\":\"\"}", out);
  Delta("text_delta", "text", text, out);
}

void MessagesWriter::Reasoning(int32_t index, std::string_view text, std::string* out) {
  if (index != 0) return;
  Open(Block::kThinking, "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}", out);
  Delta("thinking_delta", "thinking", text, out);
}

void MessagesWriter::Call(int32_t index, size_t, const AnswerCall& begun, std::string* out) {
  if (index != 0) return;
  Open(Block::kTool, ToolBlock(begun, "{}"), out);
}

void MessagesWriter::Arguments(int32_t index, size_t, std::string_view text, std::string* out) {
  if (index != 0) return;
  Delta("input_json_delta", "partial_json", text, out);
}

void MessagesWriter::Finish(int32_t index, const ChoiceAnswer& answer, std::string* out) {
  if (index != 0) return;
  Close(out);
  stop_ = StopFields(answer);
}

void MessagesWriter::End(const Usage& usage, std::string* out) {
  Event("message_delta",
        fmt::format(",\"delta\":{{{}}},\"usage\":{{\"output_tokens\":{}}}", stop_,
                    usage.completion_tokens),
        out);
  Event("message_stop", "", out);
}

void MessagesWriter::Error(const ApiError& error, std::string* out) {
  fmt::format_to(std::back_inserter(*out), "event: error\ndata: {}\n\n", ErrorBody(error));
}

HttpResponse MessagesWriter::Failure(const ApiError& error) { return MessagesError(error); }

}  // namespace terrace::server
