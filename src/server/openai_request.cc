#include "server/openai_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "server/json_fields.h"

namespace terrace::server {
namespace {

namespace json = boost::json;

constexpr size_t kMaxStopBytes = 1024;
constexpr int32_t kMaxTopLogprobs = 20;
constexpr float kGreedyBelow = 1e-5f;
constexpr std::array<std::string_view, 6> kRoles = {"system",    "developer", "user",
                                                    "assistant", "tool",      "function"};

std::string_view Text(const json::value& value) {
  const json::string& text = value.get_string();
  return {text.data(), text.size()};
}

void ReadStop(JsonFields* fields, std::vector<std::string>* out) {
  const json::value* value = fields->Find("stop");
  if (value == nullptr) return;
  auto add = [&](std::string_view name, const json::value& each) {
    if (!each.is_string()) {
      return fields->FailKind(name, "a string or an array of strings", each);
    }
    const std::string_view text = Text(each);
    if (text.empty() || text.size() > kMaxStopBytes) {
      return fields->FailField(
          name, fmt::format("{} must have 1 to {} bytes.", fields->Path(name), kMaxStopBytes));
    }
    out->emplace_back(text);
  };
  if (!value->is_array()) return add("stop", *value);
  const json::array& list = value->get_array();
  if (list.size() > kMaxStops) {
    return fields->FailField("stop", fmt::format("stop takes at most {} strings.", kMaxStops));
  }
  for (size_t i = 0; i < list.size() && fields->ok(); ++i) add(fmt::format("stop[{}]", i), list[i]);
}

void ReadLogitBias(JsonFields* fields, std::vector<std::pair<int32_t, float>>* out) {
  const json::value* value = fields->Find("logit_bias");
  if (value == nullptr) return;
  if (!value->is_object()) {
    return fields->FailKind("logit_bias", "an object of token ids and numbers", *value);
  }
  for (const auto& entry : value->get_object()) {
    const std::string_view key(entry.key().data(), entry.key().size());
    const std::string name = fmt::format("logit_bias[\"{}\"]", key.substr(0, 64));
    int32_t id = -1;
    const auto [end, ec] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (ec != std::errc() || end != key.data() + key.size() || id < 0) {
      return fields->FailField(name,
                               fmt::format("{}: the key must be a token id of the model.", name));
    }
    if (!entry.value().is_number()) return fields->FailKind(name, "a number", entry.value());
    json::error_code error;
    const double bias = entry.value().to_number<double>(error);
    if (error || !std::isfinite(bias) || bias < -100 || bias > 100) {
      return fields->FailField(name, fmt::format("{} must be between -100 and 100.", name));
    }
    out->emplace_back(id, static_cast<float>(bias));
  }
}

void ReadSeed(JsonFields* fields, std::optional<uint64_t>* out) {
  const json::value* value = fields->Find("seed");
  if (value == nullptr) return;
  if (value->is_int64()) {
    *out = static_cast<uint64_t>(value->get_int64());
  } else if (value->is_uint64()) {
    *out = value->get_uint64();
  } else {
    fields->FailKind("seed", "a 64-bit integer", *value);
  }
}

void ReadSampling(JsonFields* fields, SamplingParams* out) {
  fields->Number("temperature", 0, 2, false, &out->temperature);
  fields->Number("top_p", 0, 1, false, &out->top_p);
  fields->Number("min_p", 0, 1, false, &out->min_p);
  fields->Number("typical_p", 0, 1, true, &out->typical_p);
  fields->Number("presence_penalty", -2, 2, false, &out->presence_penalty);
  fields->Number("frequency_penalty", -2, 2, false, &out->frequency_penalty);
  fields->Number("repetition_penalty", 0, 10, true, &out->repetition_penalty);
  fields->Int("top_k", -1, std::numeric_limits<int32_t>::max(), &out->top_k);
  ReadSeed(fields, &out->seed);
  ReadLogitBias(fields, &out->logit_bias);
  // A penalty or a temperature so small that dividing by it leaves float's range.
  if (out->temperature < kGreedyBelow) out->temperature = 0;
  out->repetition_penalty = std::max(out->repetition_penalty, 1e-3f);
  out->top_k = std::max(out->top_k, 0);
  if (out->top_p < kGreedyBelow) {  // only the best token is within it
    out->top_p = 1;
    out->temperature = 0;
  }
  out->typical_p = std::max(out->typical_p, kGreedyBelow);
}

void ReadStreaming(JsonFields* fields, GenerationParams* out) {
  fields->Bool("stream", &out->stream);
  const json::value* value = fields->Find("stream_options");
  if (value == nullptr) return;
  if (!value->is_object()) return fields->FailKind("stream_options", "an object", *value);
  if (!out->stream) {
    return fields->FailField("stream_options",
                             "stream_options is only allowed when stream is true.");
  }
  JsonFields options(value->get_object(), "stream_options.");
  options.Bool("include_usage", &out->include_usage);
  if (auto error = options.TakeError()) fields->Fail(std::move(*error));
}

// Kept by nobody, but checked as OpenAI does: short strings by name.
void ReadMetadata(JsonFields* fields) {
  const json::value* value = fields->Find("metadata");
  if (value == nullptr) return;
  if (!value->is_object()) return fields->FailKind("metadata", "an object of strings", *value);
  for (const auto& [key, each] : value->get_object()) {
    if (each.is_string()) continue;
    const std::string_view name(key.data(), key.size());
    return fields->FailKind(fmt::format("metadata[\"{}\"]", name.substr(0, 64)), "a string", each);
  }
}

// `least`: what limits of tokens begin with.
void ReadCommon(JsonFields* fields, int64_t least, GenerationParams* out) {
  fields->RequiredString("model", &out->model);
  fields->Int("n", 1, kMaxChoices, &out->n);
  ReadStreaming(fields, out);
  ReadStop(fields, &out->stop);
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  fields->Int("max_tokens", least, kMost, &out->max_tokens);
  fields->Int("max_completion_tokens", least, kMost, &out->max_tokens);
  ReadSampling(fields, &out->sampling);
  ReadAnswerFormat(fields, &out->format);
  std::string user;
  fields->String("user", &user);
  ReadMetadata(fields);
}

// Which reasoning comes out how, and whether the template asks for some.
void ReadReasoning(JsonFields* fields, GenerationParams* out, Conversation* input) {
  bool include = true, separate = true;
  std::string form, effort;
  fields->Bool("include_reasoning", &include);
  fields->Bool("separate_reasoning", &separate);
  fields->String("reasoning_format", &form);
  if (form == "none") separate = false;
  if (!include || form == "hidden") {
    out->reasoning = ReasoningOutput::kHide;
  } else if (!separate) {
    out->reasoning = ReasoningOutput::kInline;
  }
  fields->String("reasoning_effort", &effort);
  if (effort.empty() || !fields->ok()) return;
  json::value kwargs;
  if (ParseObject(input->template_kwargs, &kwargs)) kwargs = json::object();
  json::object& object = kwargs.get_object();
  object.emplace("reasoning_effort", json::string(effort));
  if (effort == "none") object.emplace("enable_thinking", false);
  input->template_kwargs = json::serialize(kwargs);
}

// A string, or an array of text parts, joined with nothing between.
void ReadContent(JsonFields* fields, const json::value& value, std::string* out) {
  if (value.is_string()) {
    *out = Text(value);
    return;
  }
  if (!value.is_array()) {
    return fields->FailKind("content", "a string or an array of parts", value);
  }
  const json::array& parts = value.get_array();
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string name = fmt::format("content[{}]", i);
    if (!parts[i].is_object()) return fields->FailKind(name, "an object", parts[i]);
    JsonFields part(parts[i].get_object(), fields->Path(name) + ".");
    std::string type, text;
    part.RequiredString("type", &type);
    if (part.ok() && type != "text" && type != "input_text" && type != "refusal") {
      part.FailField("type",
                     fmt::format("{}: parts of type \"{}\" are not supported; send text "
                                 "parts.",
                                 part.Path("type"), type.substr(0, 64)),
                     "unsupported_content");
    }
    const std::string_view field = type == "refusal" ? "refusal" : "text";
    if (part.ok() && part.Find(field) == nullptr) {
      part.FailField(field, fmt::format("{} is missing.", part.Path(field)), "missing_field");
    }
    part.String(field, &text);
    if (auto error = part.TakeError()) return fields->Fail(std::move(*error));
    *out += text;
  }
}

void ReadToolCalls(JsonFields* fields, const json::value& value, std::vector<ToolCall>* out) {
  if (!value.is_array()) return fields->FailKind("tool_calls", "an array", value);
  const json::array& calls = value.get_array();
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string name = fmt::format("tool_calls[{}]", i);
    if (!calls[i].is_object()) return fields->FailKind(name, "an object", calls[i]);
    JsonFields call(calls[i].get_object(), fields->Path(name) + ".");
    ToolCall read;
    call.String("id", &read.id);
    const json::value* function = call.Find("function");
    if (call.ok() && (function == nullptr || !function->is_object())) {
      call.FailField("function", fmt::format("{} must be an object.", call.Path("function")));
    }
    if (call.ok()) {
      JsonFields inner(function->get_object(), call.Path("function."));
      inner.RequiredString("name", &read.name);
      if (const json::value* arguments = inner.Find("arguments")) {
        read.arguments =
            arguments->is_string() ? std::string(Text(*arguments)) : json::serialize(*arguments);
      }
      if (auto error = inner.TakeError()) call.Fail(std::move(*error));
    }
    if (auto error = call.TakeError()) return fields->Fail(std::move(*error));
    out->push_back(std::move(read));
  }
}

void ReadMessage(JsonFields* fields, ChatMessage* out) {
  fields->RequiredString("role", &out->role);
  if (fields->ok() && std::find(kRoles.begin(), kRoles.end(), out->role) == kRoles.end()) {
    fields->FailField("role", fmt::format("{}: \"{}\" is not a role; use system, developer, user, "
                                          "assistant or tool.",
                                          fields->Path("role"), out->role.substr(0, 64)));
  }
  fields->String("name", &out->name);
  fields->String("tool_call_id", &out->tool_call_id);
  fields->String("reasoning_content", &out->reasoning_content);
  if (const json::value* calls = fields->Find("tool_calls")) {
    ReadToolCalls(fields, *calls, &out->tool_calls);
  }
  if (const json::value* content = fields->Find("content")) {
    ReadContent(fields, *content, &out->content);
  } else if (out->role != "assistant" || out->tool_calls.empty()) {
    fields->FailField(
        "content",
        fmt::format("{} must be a string or an array of parts; only assistant messages "
                    "with tool_calls may do without.",
                    fields->Path("content")),
        "missing_field");
  }
}

void ReadChatInput(JsonFields* fields, Conversation* out) {
  const json::value* value = fields->Find("messages");
  if (value == nullptr) {
    return fields->FailField("messages", "messages is missing.", "missing_field");
  }
  if (!value->is_array()) return fields->FailKind("messages", "an array", *value);
  const json::array& list = value->get_array();
  if (list.empty() || list.size() > kMaxMessages) {
    return fields->FailField("messages",
                             fmt::format("messages must hold 1 to {} messages.", kMaxMessages));
  }
  out->messages.resize(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string name = fmt::format("messages[{}]", i);
    if (!list[i].is_object()) return fields->FailKind(name, "an object", list[i]);
    JsonFields message(list[i].get_object(), name + ".");
    ReadMessage(&message, &out->messages[i]);
    if (auto error = message.TakeError()) return fields->Fail(std::move(*error));
  }
  fields->Bool("add_generation_prompt", &out->add_generation_prompt);
  if (const json::value* kwargs = fields->Find("chat_template_kwargs")) {
    if (!kwargs->is_object()) return fields->FailKind("chat_template_kwargs", "an object", *kwargs);
    out->template_kwargs = json::serialize(*kwargs);
  }
}

void ReadIds(JsonFields* fields, std::string_view name, const json::array& list,
             std::vector<int32_t>* out) {
  out->reserve(list.size());
  for (const json::value& each : list) {
    if (!each.is_int64() || each.get_int64() < 0 ||
        each.get_int64() > std::numeric_limits<int32_t>::max()) {
      return fields->FailField(
          name, fmt::format("{} must hold token ids only: integers from 0.", fields->Path(name)));
    }
    out->push_back(static_cast<int32_t>(each.get_int64()));
  }
  if (out->empty()) {
    fields->FailField(name, fmt::format("{} must hold at least one token.", fields->Path(name)));
  }
}

void ReadPrompts(JsonFields* fields, std::vector<Prompt>* out) {
  const json::value* value = fields->Find("prompt");
  if (value == nullptr) return fields->FailField("prompt", "prompt is missing.", "missing_field");
  if (value->is_string()) {
    out->push_back({.text = std::string(Text(*value))});
    return;
  }
  if (!value->is_array() || value->get_array().empty()) {
    return fields->FailKind("prompt", "a string, an array of strings or token ids", *value);
  }
  const json::array& list = value->get_array();
  if (list[0].is_number()) {
    out->push_back({.is_ids = true});
    return ReadIds(fields, "prompt", list, &out->back().ids);
  }
  if (list.size() > kMaxChoices) {
    return fields->FailField("prompt",
                             fmt::format("prompt takes at most {} prompts at once.", kMaxChoices));
  }
  for (size_t i = 0; i < list.size() && fields->ok(); ++i) {
    const std::string name = fmt::format("prompt[{}]", i);
    if (list[i].is_string()) {
      out->push_back({.text = std::string(Text(list[i]))});
    } else if (list[i].is_array()) {
      out->push_back({.is_ids = true});
      ReadIds(fields, name, list[i].get_array(), &out->back().ids);
    } else {
      fields->FailKind(name, "a string or an array of token ids", list[i]);
    }
  }
}

}  // namespace

std::optional<ApiError> ParseChatRequest(std::string_view body, ChatRequest* out) {
  json::value value;
  if (auto error = ParseObject(body, &value)) return error;
  JsonFields fields(value.get_object());
  ReadCommon(&fields, 1, &out->params);
  bool logprobs = false;
  std::optional<int32_t> top;
  fields.Bool("logprobs", &logprobs);
  fields.Int("top_logprobs", 0, kMaxTopLogprobs, &top);
  if (top && !logprobs && *top > 0) {
    fields.FailField("top_logprobs", "top_logprobs needs logprobs to be true.");
  }
  if (logprobs) out->params.sampling.top_logprobs = top.value_or(0);
  ReadChatInput(&fields, &out->input);
  ReadReasoning(&fields, &out->params, &out->input);
  ReadTools(&fields, &out->tools);
  return fields.TakeError();
}

std::optional<ApiError> ParseCompletionRequest(std::string_view body, CompletionRequest* out) {
  json::value value;
  if (auto error = ParseObject(body, &value)) return error;
  JsonFields fields(value.get_object());
  ReadCommon(&fields, 0, &out->params);
  fields.Int("logprobs", 0, kMaxTopLogprobs, &out->params.sampling.top_logprobs);
  fields.Bool("echo", &out->echo);
  out->params.prompt_logprobs = out->echo && out->params.sampling.top_logprobs;
  if (out->params.max_tokens == 0 && !out->echo) {
    const bool newer = fields.Find("max_completion_tokens") != nullptr;
    const std::string_view name = newer ? "max_completion_tokens" : "max_tokens";
    fields.FailField(name, fmt::format("{} must be at least 1 without echo.", name));
  }
  fields.String("suffix", &out->suffix);
  if (out->params.prompt_logprobs && !out->suffix.empty()) {
    fields.FailField("suffix",
                     "suffix cannot be used with echo and logprobs: what the model reads "
                     "is not in the order of the text.");
  }
  if (fields.Find("best_of") != nullptr) {
    fields.Int("best_of", 1, kMaxChoices, &out->params.best_of);
  }
  if (fields.Find("best_of") != nullptr && out->params.best_of < out->params.n) {
    fields.FailField("best_of", "best_of must be at least n.");
  }
  if (out->params.best_of > out->params.n && out->params.stream) {
    fields.FailField("best_of",
                     "best_of above n cannot be streamed: answers are compared when they "
                     "are whole.");
  }
  ReadPrompts(&fields, &out->prompts);
  const auto each = static_cast<size_t>(std::max(out->params.n, out->params.best_of));
  if (fields.ok() && out->prompts.size() * each > kMaxChoices) {
    fields.FailField("n", fmt::format("The number of prompts times n (or best_of) must be at most "
                                      "{}.",
                                      kMaxChoices));
  }
  return fields.TakeError();
}

std::optional<ApiError> ParseTokenizeRequest(std::string_view body, TokenizeRequest* out) {
  json::value value;
  if (auto error = ParseObject(body, &value)) return error;
  JsonFields fields(value.get_object());
  fields.RequiredString("model", &out->model);
  fields.Bool("add_special_tokens", &out->add_special);
  fields.Bool("parse_special", &out->parse_special);
  if (fields.Find("messages") != nullptr) {
    out->chat.emplace();
    ReadChatInput(&fields, &*out->chat);
  } else if (fields.Find("prompt") != nullptr) {
    fields.String("prompt", &out->text);
  } else if (fields.Find("content") != nullptr) {
    fields.String("content", &out->text);
  } else {
    fields.FailField("prompt", "prompt (text) or messages is missing.", "missing_field");
  }
  return fields.TakeError();
}

std::optional<ApiError> ParseDetokenizeRequest(std::string_view body, DetokenizeRequest* out) {
  json::value value;
  if (auto error = ParseObject(body, &value)) return error;
  JsonFields fields(value.get_object());
  fields.RequiredString("model", &out->model);
  if (const json::value* tokens = fields.Find("tokens")) {
    if (!tokens->is_array()) {
      fields.FailKind("tokens", "an array of token ids", *tokens);
    } else if (!tokens->get_array().empty()) {
      ReadIds(&fields, "tokens", tokens->get_array(), &out->ids);
    }
  } else {
    fields.FailField("tokens", "tokens is missing.", "missing_field");
  }
  return fields.TakeError();
}

std::optional<ApiError> CheckLogitBias(const GenerationParams& params, int32_t vocab_size) {
  for (const auto& [id, bias] : params.sampling.logit_bias) {
    if (id < vocab_size) continue;
    const std::string name = fmt::format("logit_bias[\"{}\"]", id);
    return BadField(name, fmt::format("{}: the model has no token {}; its ids are 0 to {}.", name,
                                      id, vocab_size - 1));
  }
  return std::nullopt;
}

std::optional<ApiError> CheckIds(const std::vector<int32_t>& ids, std::string_view field,
                                 int32_t vocab_size) {
  for (int32_t id : ids) {
    if (id >= 0 && id < vocab_size) continue;
    return BadField(field, fmt::format("{}: the model has no token {}; its ids are 0 to {}.", field,
                                       id, vocab_size - 1));
  }
  return std::nullopt;
}

}  // namespace terrace::server
