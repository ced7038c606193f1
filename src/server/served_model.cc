#include "server/served_model.h"

#include <fmt/format.h>

#include <array>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
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
// For models without a template whose vocabulary has these turn markers.
constexpr std::string_view kTurnTemplate =
    "{{ bos_token }}{% for m in messages %}<start_of_turn>"
    "{{ 'model' if m.role == 'assistant' else 'user' }}\n{{ m.content | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}";

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

json::value ParseText(const std::string& text) {
  json::error_code ec;
  json::parse_options options;
  options.max_depth = kMaxJsonDepth;
  return json::parse(json::string_view(text), ec, {}, options);
}

// A call as the generic format writes it.
std::string GenericCall(const ToolCall& call) {
  return fmt::format("<tool_call>\n{{\"name\": {}, \"arguments\": {}}}\n</tool_call>",
                     json::serialize(Text(call.name)),
                     call.arguments.empty() ? "{}" : call.arguments);
}

// The tokens of a vocabulary that can fill in, by the spellings in use.
std::optional<FillTokens> FindFillTokens(const Tokenizer& tokenizer) {
  static constexpr std::array<std::array<std::string_view, 3>, 5> kSpellings = {{
      {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},
      {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},
      {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},
      {"<PRE>", "<SUF>", "<MID>"},
      {"<\uFF5Cfim\u2581begin\uFF5C>", "<\uFF5Cfim\u2581hole\uFF5C>", "<\uFF5Cfim\u2581end\uFF5C>"},
  }};
  for (const auto& [before, behind, middle] : kSpellings) {
    const auto a = tokenizer.Find(before), b = tokenizer.Find(behind), c = tokenizer.Find(middle);
    if (a && b && c) return FillTokens{*a, *b, *c};
  }
  return std::nullopt;
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
  model->grammars_ = std::make_unique<grammar::GrammarCache>(&tokenizer);
  model->fill_tokens_ = FindFillTokens(tokenizer);
  if (options.judge) model->judge_ = FindJudgeTokens(tokenizer);
  if (options.judge && !model->judge_) {
    model->warnings_.push_back(
        "its vocabulary cannot answer yes or no as rerankers do: it ranks by its vectors");
  }
  model->tool_format_ = GenericToolFormat();

  ASSIGN_OR_RETURN(std::string source, metadata.GetString(kTemplateKey, ""));
  if (source.empty() && tokenizer.Find("<start_of_turn>") && tokenizer.Find("<end_of_turn>")) {
    source = kTurnTemplate;
    model->warnings_.push_back(
        "the model has no chat template; its vocabulary's turn markers are used for one");
  }
  ChatTemplateOptions words;
  if (tokenizer.bos()) words.bos_token = tokenizer.TokenBytes(*tokenizer.bos(), true);
  if (tokenizer.eos()) words.eos_token = tokenizer.TokenBytes(*tokenizer.eos(), true);
  if (source.empty()) {
    model->template_status_ = absl::InvalidArgumentError(
        fmt::format("The model {} has no chat template; use /v1/completions.", options.name));
  } else if (auto parsed = ChatTemplate::Create(source, std::move(words)); parsed.ok()) {
    model->template_ = *std::move(parsed);
    std::vector<std::string> ends;
    for (int32_t id : model->end_tokens_) ends.push_back(tokenizer.TokenBytes(id, true));
    if (auto format = FindToolFormat(*model->template_, ends)) {
      model->tool_format_ = *std::move(format);
    }
    model->reasoning_ = FindReasoningFormat(source);
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

void ServedModel::AddMessages(const Conversation& input, ChatInput* out) const {
  const bool calls_as_text = !tool_format_.native;
  const bool tools_as_text = calls_as_text && !template_->capabilities().tools;
  out->messages.reserve(input.messages.size() + 1);
  if (!input.tools.empty() && !tools_as_text) out->tools = ParseText(input.tools);
  std::string prompt;
  if (!input.tools.empty() && tools_as_text) prompt = GenericToolPrompt(input.tools);
  if (!prompt.empty() && (input.messages.empty() || input.messages[0].role != "system")) {
    out->messages.push_back(ToJson({.role = "system", .content = prompt}));
    prompt.clear();
  }
  for (const ChatMessage& message : input.messages) {
    ChatMessage adapted = message;
    if (!prompt.empty()) adapted.content += "\n\n" + std::exchange(prompt, "");
    if (calls_as_text) {
      for (const ToolCall& call : adapted.tool_calls) {
        adapted.content += (adapted.content.empty() ? "" : "\n") + GenericCall(call);
      }
      adapted.tool_calls.clear();
    }
    if (tools_as_text && (adapted.role == "tool" || adapted.role == "function")) {
      adapted.role = "user";
      adapted.content = fmt::format("<tool_response>\n{}\n</tool_response>", message.content);
      adapted.tool_call_id.clear();
      adapted.name.clear();
      // Results of one turn come together, as templates want turns to alternate.
      if (!out->messages.empty()) {
        json::object& last = out->messages.back().as_object();
        const json::string& text = last["content"].as_string();
        if (last["role"] == "user" && text.starts_with("<tool_response>")) {
          last["content"] = Text(std::string(text.data(), text.size()) + "\n" + adapted.content);
          continue;
        }
      }
    }
    out->messages.push_back(ToJson(adapted));
  }
}

absl::StatusOr<ChatPrompt> ServedModel::EncodeChat(const Conversation& input) const {
  if (template_ == nullptr) return template_status_;
  terrace::ChatInput context;
  AddMessages(input, &context);
  context.add_generation_prompt = input.add_generation_prompt;
  if (!input.template_kwargs.empty()) {
    const json::value extra = ParseText(input.template_kwargs);
    if (extra.is_object()) context.extra = extra.get_object();
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
  ChatPrompt prompt;
  ASSIGN_OR_RETURN(prompt.ids, tokenizer_->Encode(std::span<const TextSpan>(spans),
                                                  {.add_special = true, .add_end = false}));
  if (reasoning_) {
    // The template's own opening, with nothing but white space behind it.
    const size_t open = text.rfind(reasoning_->open);
    prompt.in_reasoning =
        open != std::string_view::npos &&
        text.find_first_not_of(" \n", open + reasoning_->open.size()) == std::string_view::npos;
  }
  return prompt;
}

absl::StatusOr<std::vector<int32_t>> ServedModel::EncodeText(std::string_view text,
                                                             bool add_special,
                                                             bool parse_special) const {
  return tokenizer_->Encode(
      text, {.add_special = add_special, .add_end = false, .parse_special = parse_special});
}

absl::StatusOr<std::vector<int32_t>> ServedModel::EncodeWhole(std::string_view text) const {
  return tokenizer_->Encode(text, {.add_special = true, .add_end = true, .parse_special = false});
}

}  // namespace terrace::server
