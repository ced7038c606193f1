#include "server/openai_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "server/constraint.h"
#include "text/detokenizer.h"

namespace terrace::server {
namespace {

// Tokens that /v1/completions gives if max_tokens is not said, as OpenAI defines it.
constexpr int32_t kCompletionTokens = 16;

// A prompt that the model cannot take.
std::optional<ApiError> CheckLength(const ServedModel& model, size_t tokens,
                                    std::string_view field) {
  if (tokens == 0) {
    return BadField(field, fmt::format("{} gives no token at all; say something.", field));
  }
  if (tokens < static_cast<size_t>(model.max_context())) return std::nullopt;
  return BadField(
      field,
      fmt::format(
          "The context of {} is {} tokens, and the prompt has {}, which leaves no room for an "
          "answer; shorten it by at least {}.",
          model.name(), model.max_context(), tokens, tokens + 1 - model.max_context()),
      "context_length_exceeded");
}

// The control tokens spelled in `text`.
void AddMarkers(const Tokenizer& tokenizer, std::string_view text, std::vector<int32_t>* out) {
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '<' && text[at] != '[') continue;
    const size_t end = text.find(text[at] == '<' ? '>' : ']', at);
    if (end == std::string_view::npos) break;
    const auto id = tokenizer.Find(text.substr(at, end + 1 - at));
    if (id && tokenizer.IsControl(*id)) out->push_back(*id);
  }
}

void AddMarkers(const Tokenizer& tokenizer, const AnswerSyntax& syntax, std::vector<int32_t>* out) {
  if (syntax.reasoning) {
    for (const std::string* text :
         {&syntax.reasoning->open, &syntax.reasoning->close, &syntax.reasoning->skip}) {
      AddMarkers(tokenizer, *text, out);
    }
  }
  if (syntax.tools) {
    for (const FormatParts* parts : {&syntax.tools->open, &syntax.tools->middle,
                                     &syntax.tools->between, &syntax.tools->close}) {
      for (const FormatPart& part : *parts) AddMarkers(tokenizer, part.text, out);
    }
  }
  std::sort(out->begin(), out->end());
}

// `[before] prefix [behind] suffix [middle]`: the answer is what stands between.
std::optional<ApiError> EncodeFill(const ServedModel& model, const std::string& prefix,
                                   const std::string& suffix, std::vector<int32_t>* out) {
  const auto& tokens = model.fill_tokens();
  if (!tokens) {
    return BadField("suffix",
                    fmt::format("The model {} has no fill-in-the-middle tokens, so it "
                                "cannot take a suffix.",
                                model.name()),
                    "unsupported_parameter");
  }
  const auto first = model.EncodeText(prefix, false, false);
  const auto second = model.EncodeText(suffix, false, false);
  if (!first.ok()) return PromptError(first.status(), "prompt");
  if (!second.ok()) return PromptError(second.status(), "suffix");
  out->push_back(tokens->before);
  out->insert(out->end(), first->begin(), first->end());
  out->push_back(tokens->behind);
  out->insert(out->end(), second->begin(), second->end());
  out->push_back(tokens->middle);
  return std::nullopt;
}

}  // namespace

ApiError PromptError(const absl::Status& status, std::string_view field) {
  if (status.code() == absl::StatusCode::kInternal) return FromStatus(status);
  return BadField(field, std::string(Message(status)));
}

std::optional<ApiError> PlanChat(ChatRequest request, std::shared_ptr<const ServedModel> model,
                                 GenerationPlan* out) {
  const bool calls = request.tools.choice != ToolChoice::kNone;
  if (calls) request.input.tools = request.tools.json;
  auto prompt = model->EncodeChat(request.input);
  if (!prompt.ok()) return PromptError(prompt.status(), "messages");
  if (auto error = CheckLength(*model, prompt->ids.size(), "messages")) return error;
  if (auto error = CheckLogitBias(request.params, model->vocab_size())) return error;
  if (calls) out->syntax.tools = model->tool_format();
  if (model->reasoning()) {
    out->syntax.reasoning = model->reasoning();
    out->syntax.starts_in_reasoning = prompt->in_reasoning;
  }
  const AnswerRules rules{.format = &request.params.format,
                          .tools = calls ? &request.tools : nullptr,
                          .syntax = &out->syntax};
  if (auto error = CompileRules(rules, *model, &out->grammar)) return error;
  AddMarkers(model->tokenizer(), out->syntax, &out->markers);
  out->split = out->syntax.tools || out->syntax.reasoning;
  if (request.params.reasoning == ReasoningOutput::kInline) out->syntax.reasoning.reset();
  out->prompts.push_back(std::move(prompt->ids));
  out->params = std::move(request.params);
  out->model = std::move(model);
  return std::nullopt;
}

std::optional<ApiError> PlanCompletion(CompletionRequest request,
                                       std::shared_ptr<const ServedModel> model,
                                       GenerationPlan* out) {
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    Prompt& prompt = request.prompts[i];
    std::vector<int32_t> ids = std::move(prompt.ids);
    std::optional<ApiError> error;
    if (!request.suffix.empty()) {
      if (prompt.is_ids) {
        error = BadField("suffix", "suffix needs prompts of text, not of token ids.");
      } else {
        error = EncodeFill(*model, prompt.text, request.suffix, &ids);
      }
    } else if (prompt.is_ids) {
      error = CheckIds(ids, "prompt", model->vocab_size());
    } else if (auto encoded = model->EncodeText(prompt.text, true, true); encoded.ok()) {
      ids = *std::move(encoded);
    } else {
      error = PromptError(encoded.status(), "prompt");
    }
    if (!error) error = CheckLength(*model, ids.size(), "prompt");
    if (error) return error;
    if (request.echo) {
      out->echo.push_back(prompt.is_ids ? Decode(model->tokenizer(), ids) : std::move(prompt.text));
      if (!request.suffix.empty()) out->tail.push_back(request.suffix);
    }
    out->prompts.push_back(std::move(ids));
  }
  if (auto error = CheckLogitBias(request.params, model->vocab_size())) return error;
  const AnswerRules rules{.format = &request.params.format, .syntax = &out->syntax};
  if (auto error = CompileRules(rules, *model, &out->grammar)) return error;
  out->params = std::move(request.params);
  if (!out->params.max_tokens) out->params.max_tokens = kCompletionTokens;
  out->model = std::move(model);
  return std::nullopt;
}

}  // namespace terrace::server
