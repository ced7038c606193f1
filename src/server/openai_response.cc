#include "server/openai_response.h"

#include <fmt/format.h>

#include <iterator>

#include "base/text.h"
#include "server/json_text.h"

namespace terrace::server {
namespace {

void AppendInt(int64_t value, std::string* out) {
  fmt::format_to(std::back_inserter(*out), "{}", value);
}

std::string_view ReasonName(const ChoiceAnswer& answer) {
  if (answer.reason == FinishReason::kLength) return "length";
  return answer.calls.empty() ? "stop" : "tool_calls";
}

// {"id":...,"type":"function","function":{"name":...,"arguments":...
void AppendCall(const AnswerCall& call, std::string* out) {
  out->append("{\"id\":");
  AppendJsonString(call.id, out);
  out->append(",\"type\":\"function\",\"function\":{\"name\":");
  AppendJsonString(call.name, out);
  out->append(",\"arguments\":");
  AppendJsonString(call.arguments, out);
  out->append("}}");
}

// The message of a whole chat answer.
void AppendMessage(const ChoiceAnswer& choice, std::string* out) {
  out->append("{\"role\":\"assistant\",\"content\":");
  if (choice.text.empty() && !choice.calls.empty()) {
    out->append("null");
  } else {
    AppendJsonString(choice.text, out);
  }
  out->append(",\"refusal\":null");
  if (!choice.reasoning.empty()) {
    out->append(",\"reasoning_content\":");
    AppendJsonString(choice.reasoning, out);
  }
  if (!choice.calls.empty()) {
    out->append(",\"tool_calls\":[");
    for (size_t i = 0; i < choice.calls.size(); ++i) {
      if (i > 0) out->push_back(',');
      AppendCall(choice.calls[i], out);
    }
    out->push_back(']');
  }
  out->push_back('}');
}

void AppendUsage(const Usage& usage, std::string* out) {
  fmt::format_to(std::back_inserter(*out),
                 "{{\"prompt_tokens\":{},\"completion_tokens\":{},\"total_tokens\":{},"
                 "\"prompt_tokens_details\":{{\"cached_tokens\":{}}}",
                 usage.prompt_tokens, usage.completion_tokens,
                 usage.prompt_tokens + usage.completion_tokens, usage.cached_tokens);
  if (usage.moved_bytes > 0) {
    // Not of the API: weights that were brought in for this answer, in bytes.
    const auto tokens = static_cast<uint64_t>(std::max(1, usage.completion_tokens));
    fmt::format_to(std::back_inserter(*out),
                   ",\"weight_bytes_moved\":{},\"weight_bytes_moved_per_token\":{}",
                   usage.moved_bytes, usage.moved_bytes / tokens);
  }
  out->push_back('}');
}

// {"token":"...","logprob":-0.1,"bytes":[...]
void AppendToken(std::string_view bytes, float logprob, std::string* out) {
  out->append("{\"token\":");
  AppendJsonString(ToValidUtf8(bytes), out);
  out->append(",\"logprob\":");
  AppendJsonNumber(logprob, out);
  out->append(",\"bytes\":[");
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i > 0) out->push_back(',');
    AppendInt(static_cast<unsigned char>(bytes[i]), out);
  }
  out->push_back(']');
}

}  // namespace

ResponseWriter::ResponseWriter(Api api, std::string id, int64_t created, std::string_view model,
                               bool logprobs, bool usage_in_stream)
    : api_(api), id_(std::move(id)), logprobs_(logprobs), usage_in_stream_(usage_in_stream) {
  const bool chat = api == Api::kChat;
  auto head = [&](std::string_view object) {
    std::string out = "{\"id\":";
    AppendJsonString(id_, &out);
    fmt::format_to(std::back_inserter(out), ",\"object\":\"{}\",\"created\":{},\"model\":", object,
                   created);
    AppendJsonString(model, &out);
    out += ",\"choices\":[";
    return out;
  };
  whole_head_ = head(chat ? "chat.completion" : "text_completion");
  chunk_head_ = "data: " + head(chat ? "chat.completion.chunk" : "text_completion");
  chunk_tail_ = usage_in_stream ? "],\"usage\":null}\n\n" : "]}\n\n";
}

std::string ResponseWriter::Whole(std::span<const ChoiceAnswer> choices, const Usage& usage) {
  std::string out = whole_head_;
  for (size_t i = 0; i < choices.size(); ++i) {
    const ChoiceAnswer& choice = choices[i];
    if (i > 0) out.push_back(',');
    out += "{\"index\":";
    AppendInt(static_cast<int64_t>(i), &out);
    if (api_ == Api::kChat) {
      out += ",\"message\":";
      AppendMessage(choice, &out);
    } else {
      out += ",\"text\":";
      AppendJsonString(choice.text, &out);
    }
    AppendLogprobs(choice.tokens, &out);
    out += ",\"finish_reason\":\"";
    out += ReasonName(choice);
    out += "\"}";
  }
  out += "],\"usage\":";
  AppendUsage(usage, &out);
  out += "}";
  return out;
}

void ResponseWriter::Begin(int32_t index, std::string* out) {
  if (api_ != Api::kChat) return;
  OpenDelta(index, out);
  out->append("\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}");
  out->append(chunk_tail_);
}

void ResponseWriter::OpenDelta(int32_t index, std::string* out) const {
  out->append(chunk_head_).append("{\"index\":");
  AppendInt(index, out);
  out->append(",\"delta\":{");
}

void ResponseWriter::Content(int32_t index, std::string_view text,
                             std::span<const TokenReport> tokens, std::string* out) {
  if (api_ == Api::kChat) {
    OpenDelta(index, out);
    out->append("\"content\":");
    AppendJsonString(text, out);
    out->push_back('}');
  } else {
    out->append(chunk_head_).append("{\"index\":");
    AppendInt(index, out);
    out->append(",\"text\":");
    AppendJsonString(text, out);
  }
  AppendLogprobs(tokens, out);
  out->append(",\"finish_reason\":null}").append(chunk_tail_);
}

void ResponseWriter::Reasoning(int32_t index, std::string_view text, std::string* out) {
  OpenDelta(index, out);
  out->append("\"reasoning_content\":");
  AppendJsonString(text, out);
  out->append("},\"logprobs\":null,\"finish_reason\":null}").append(chunk_tail_);
}

void ResponseWriter::Call(int32_t index, size_t call, const AnswerCall& begun, std::string* out) {
  OpenDelta(index, out);
  out->append("\"tool_calls\":[{\"index\":");
  AppendInt(static_cast<int64_t>(call), out);
  out->push_back(',');
  std::string entry;
  AppendCall(begun, &entry);
  out->append(std::string_view(entry).substr(1));
  out->append("]},\"logprobs\":null,\"finish_reason\":null}").append(chunk_tail_);
}

void ResponseWriter::Arguments(int32_t index, size_t call, std::string_view text,
                               std::string* out) {
  OpenDelta(index, out);
  out->append("\"tool_calls\":[{\"index\":");
  AppendInt(static_cast<int64_t>(call), out);
  out->append(",\"function\":{\"arguments\":");
  AppendJsonString(text, out);
  out->append("}}]},\"logprobs\":null,\"finish_reason\":null}").append(chunk_tail_);
}

void ResponseWriter::Finish(int32_t index, const ChoiceAnswer& answer, std::string* out) {
  out->append(chunk_head_).append("{\"index\":");
  AppendInt(index, out);
  out->append(api_ == Api::kChat ? ",\"delta\":{}" : ",\"text\":\"\"");
  out->append(",\"logprobs\":null,\"finish_reason\":\"").append(ReasonName(answer)).append("\"}");
  out->append(chunk_tail_);
}

void ResponseWriter::End(const Usage& usage, std::string* out) {
  if (usage_in_stream_) {
    out->append(chunk_head_).append("],\"usage\":");
    AppendUsage(usage, out);
    out->append("}\n\n");
  }
  out->append("data: [DONE]\n\n");
}

void ResponseWriter::Error(const ApiError& error, std::string* out) {
  out->append("data: ").append(ErrorJson(error)).append("\n\n");
}

void ResponseWriter::AppendLogprobs(std::span<const TokenReport> tokens, std::string* out) const {
  out->append(",\"logprobs\":");
  if (!logprobs_) {
    out->append("null");
  } else if (api_ == Api::kChat) {
    AppendChatLogprobs(tokens, out);
  } else {
    AppendCompletionLogprobs(tokens, out);
  }
}

void ResponseWriter::AppendChatLogprobs(std::span<const TokenReport> tokens,
                                        std::string* out) const {
  out->append("{\"content\":[");
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) out->push_back(',');
    AppendToken(tokens[i].bytes, tokens[i].logprob, out);
    out->append(",\"top_logprobs\":[");
    for (size_t j = 0; j < tokens[i].top.size(); ++j) {
      if (j > 0) out->push_back(',');
      AppendToken(tokens[i].top[j].first, tokens[i].top[j].second, out);
      out->push_back('}');
    }
    out->append("]}");
  }
  out->append("],\"refusal\":null}");
}

void ResponseWriter::AppendCompletionLogprobs(std::span<const TokenReport> tokens,
                                              std::string* out) const {
  auto list = [&](std::string_view name, auto&& each) {
    out->append(name).append(":[");
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0) out->push_back(',');
      each(tokens[i]);
    }
    out->push_back(']');
  };
  out->push_back('{');
  list("\"tokens\"", [&](const TokenReport& t) { AppendJsonString(ToValidUtf8(t.bytes), out); });
  out->push_back(',');
  list("\"token_logprobs\"", [&](const TokenReport& t) {
    t.first ? void(out->append("null")) : AppendJsonNumber(t.logprob, out);
  });
  out->push_back(',');
  list("\"top_logprobs\"", [&](const TokenReport& t) {
    if (t.first) return void(out->append("null"));
    out->push_back('{');
    for (size_t j = 0; j < t.top.size(); ++j) {
      if (j > 0) out->push_back(',');
      AppendJsonString(ToValidUtf8(t.top[j].first), out);
      out->push_back(':');
      AppendJsonNumber(t.top[j].second, out);
    }
    out->push_back('}');
  });
  out->push_back(',');
  list("\"text_offset\"",
       [&](const TokenReport& t) { AppendInt(static_cast<int64_t>(t.text_offset), out); });
  out->push_back('}');
}

}  // namespace terrace::server
