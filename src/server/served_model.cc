#include "server/served_model.h"

#include <fmt/format.h>

#include <boost/json/parse.hpp>
#include <span>
#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "text/chat_template.h"
#include "text/tokenizer_metadata.h"

namespace terrace::server {
namespace {

namespace json = boost::json;

constexpr std::string_view kTemplateKey = "tokenizer.chat_template";

json::string Text(const std::string& text) { return json::string(text.data(), text.size()); }

json::object ToJson(const ChatMessage& message) {
  json::object out;
  out["role"] = Text(message.role);
  out["content"] = Text(message.content);
  if (!message.name.empty()) out["name"] = Text(message.name);
  if (!message.tool_call_id.empty()) out["tool_call_id"] = Text(message.tool_call_id);
  if (!message.reasoning_content.empty()) {
    out["reasoning_content"] = Text(message.reasoning_content);
  }
  if (message.tool_calls.empty()) return out;
  json::array calls;
  for (const ToolCall& call : message.tool_calls) {
    json::object function{{"name", Text(call.name)}, {"arguments", Text(call.arguments)}};
    json::object entry{{"type", "function"}, {"function", std::move(function)}};
    if (!call.id.empty()) entry["id"] = Text(call.id);
    calls.push_back(std::move(entry));
  }
  out["tool_calls"] = std::move(calls);
  return out;
}

}  // namespace

ServedModel::~ServedModel() = default;

absl::StatusOr<std::shared_ptr<const ServedModel>> ServedModel::Create(Options options,
                                                                       const Metadata& metadata,
                                                                       const Clock* clock) {
  std::shared_ptr<ServedModel> model(new ServedModel);
  ASSIGN_OR_RETURN(TokenizerConfig config, TokenizerConfigFromMetadata(metadata));
  ASSIGN_OR_RETURN(model->tokenizer_, Tokenizer::Create(std::move(config)));
  const Tokenizer& tokenizer = *model->tokenizer_;
  if (tokenizer.vocab_size() > options.vocab_size) {
    return absl::InvalidArgumentError(
        fmt::format("the tokenizer has {} tokens, but the model only {}", tokenizer.vocab_size(),
                    options.vocab_size));
  }
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.IsEndOfGeneration(id)) model->end_tokens_.push_back(id);
  }
  model->warnings_ = tokenizer.warnings();
  ASSIGN_OR_RETURN(const std::vector<std::string>* notes, metadata.GetStrings("terrace.notes"));
  if (notes != nullptr) {
    model->warnings_.insert(model->warnings_.end(), notes->begin(), notes->end());
  }

  ASSIGN_OR_RETURN(const std::string source, metadata.GetString(kTemplateKey, ""));
  ChatTemplateOptions words;
  if (tokenizer.bos()) words.bos_token = tokenizer.TokenBytes(*tokenizer.bos(), true);
  if (tokenizer.eos()) words.eos_token = tokenizer.TokenBytes(*tokenizer.eos(), true);
  if (source.empty()) {
    model->template_status_ = absl::InvalidArgumentError(
        fmt::format("The model {} has no chat template; use /v1/completions.", options.name));
  } else if (auto parsed = ChatTemplate::Create(source, std::move(words)); parsed.ok()) {
    model->template_ = *std::move(parsed);
  } else {
    model->template_status_ = absl::InvalidArgumentError(
        fmt::format("The chat template of {} cannot be read ({}); use /v1/completions.",
                    options.name, Message(parsed.status())));
    model->warnings_.push_back(std::string(Message(model->template_status_)));
  }
  model->options_ = std::move(options);
  model->clock_ = clock;
  return std::shared_ptr<const ServedModel>(std::move(model));
}

absl::StatusOr<std::vector<int32_t>> ServedModel::EncodeChat(const Conversation& input) const {
  if (template_ == nullptr) return template_status_;
  terrace::ChatInput context;
  context.messages.reserve(input.messages.size());
  for (const ChatMessage& message : input.messages) context.messages.push_back(ToJson(message));
  context.add_generation_prompt = input.add_generation_prompt;
  if (!input.template_kwargs.empty()) {
    json::error_code ec;
    json::parse_options options;
    options.max_depth = kMaxJsonDepth;
    const json::value extra =
        json::parse(json::string_view(input.template_kwargs), ec, {}, options);
    if (!ec && extra.is_object()) context.extra = extra.get_object();
  }
  context.now = [this] { return clock_->WallUs() / 1'000'000; };
  ASSIGN_OR_RETURN(const RenderedPrompt rendered, template_->Render(context));
  const std::string_view text = rendered.text;
  std::vector<TextSpan> spans;
  spans.reserve(rendered.spans.size());
  for (const jinja::Span& span : rendered.spans) {
    spans.push_back({text.substr(span.begin, span.end - span.begin), span.trusted});
  }
  // An end token belongs behind a whole text, not between a prompt and its answer.
  ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                   tokenizer_->Encode(std::span<const TextSpan>(spans),
                                      {.add_special = true, .add_end = false}));
  return ids;
}

absl::StatusOr<std::vector<int32_t>> ServedModel::EncodeText(std::string_view text,
                                                             bool add_special,
                                                             bool parse_special) const {
  return tokenizer_->Encode(
      text, {.add_special = add_special, .add_end = false, .parse_special = parse_special});
}

}  // namespace terrace::server
