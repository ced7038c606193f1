#include "server/constraint.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <limits>
#include <string>
#include <utility>

#include "base/status.h"
#include "server/served_model.h"
#include "text/grammar/gbnf.h"
#include "text/grammar/json_schema.h"
#include "text/grammar/regex.h"

namespace terrace::server {
namespace {

namespace json = boost::json;
using grammar::ExprId;
using grammar::Grammar;
using Kind = AnswerFormat::Kind;

json::value Parse(const std::string& text) {
  json::error_code ec;
  json::parse_options options;
  options.max_depth = kMaxJsonDepth;
  return json::parse(json::string_view(text), ec, {}, options);  // checked when it was read
}

class Constraint final : public TokenConstraint {
 public:
  Constraint(std::shared_ptr<const grammar::CompiledGrammar> grammar,
             std::vector<int32_t> end_tokens)
      : matcher_(std::move(grammar)), end_tokens_(std::move(end_tokens)) {}

  void Mask(std::span<float> logits) override {
    std::vector<float> ends;
    if (matcher_.can_end()) {
      for (int32_t id : end_tokens_) ends.push_back(logits[static_cast<size_t>(id)]);
    }
    grammar::ForbidOthers(matcher_.Allowed(), logits);
    for (size_t i = 0; i < ends.size(); ++i) {
      logits[static_cast<size_t>(end_tokens_[i])] = ends[i];
    }
  }

  void Accept(int32_t token) override { matcher_.Accept(token); }

  bool Finished() const override { return matcher_.can_end() && !matcher_.can_continue(); }

 private:
  grammar::Matcher matcher_;
  const std::vector<int32_t> end_tokens_;
};

// Writes the grammar of a request's answers.
class RulesWriter {
 public:
  RulesWriter(const AnswerRules& rules, const ServedModel& model)
      : rules_(rules), tokenizer_(model.tokenizer()), json_(&grammar_) {}

  absl::StatusOr<Grammar> Write() {
    ASSIGN_OR_RETURN(const ExprId answer, Answer());
    const int32_t root = grammar_.AddRule("answer");
    grammar_.SetRule(root, WithReasoning(answer));
    grammar_.set_root(root);
    return std::move(grammar_);
  }
  // The field that was at work when an error came up.
  const std::string& field() const { return field_; }

 private:
  // Fixed text; control tokens in it are meant as such.
  ExprId Literal(std::string_view text) {
    std::vector<ExprId> parts;
    size_t begin = 0;
    for (size_t at = 0; at < text.size();) {
      const auto token = ControlAt(text, at);
      if (!token) {
        ++at;
        continue;
      }
      parts.push_back(grammar_.Bytes(text.substr(begin, at - begin)));
      parts.push_back(grammar_.Token(token->first));
      begin = at += token->second;
    }
    parts.push_back(grammar_.Bytes(text.substr(begin)));
    return grammar_.Sequence(std::move(parts));
  }
  // The control token spelled at this place, and its length.
  std::optional<std::pair<int32_t, size_t>> ControlAt(std::string_view text, size_t at) const {
    if (text[at] != '<' && text[at] != '[') return std::nullopt;
    const char close = text[at] == '<' ? '>' : ']';
    const size_t end = text.find(close, at);
    if (end == std::string_view::npos) return std::nullopt;
    const auto id = tokenizer_.Find(text.substr(at, end + 1 - at));
    if (!id || !tokenizer_.IsControl(*id)) return std::nullopt;
    return std::pair(*id, end + 1 - at);
  }

  ExprId AnyText() {
    return grammar_.Automaton([] {
      grammar::ByteAutomaton any;
      any.Add(true);
      any.Connect(0, 0, 255, 0);
      return any;
    }());
  }
  // Text up to a marker, which it does not hold.
  ExprId TextUntil(std::string_view marker) {
    if (ControlAt(marker, 0)) return AnyText();  // bytes cannot spell it
    return grammar_.Automaton(grammar::TextWithout(marker));
  }
  ExprId Blanks() { return grammar_.Repeat(grammar_.Class({{' ', ' '}, {'\n', '\n'}}), 0, 4); }

  ExprId WithReasoning(ExprId answer) {
    const auto& reasoning = rules_.syntax->reasoning;
    if (!reasoning) return answer;
    const ExprId thought = grammar_.Sequence(
        {TextUntil(reasoning->close), Literal(reasoning->close), Blanks(), answer});
    if (rules_.syntax->starts_in_reasoning) return thought;
    const ExprId opened = grammar_.Sequence({Literal(reasoning->open), thought});
    if (reasoning->skip.empty()) return grammar_.Choice({opened, answer});
    return grammar_.Choice({opened, grammar_.Sequence({Literal(reasoning->skip), answer})});
  }

  absl::StatusOr<ExprId> Answer() {
    const ToolRequest* tools = rules_.tools;
    if (tools == nullptr) return Formatted();
    ASSIGN_OR_RETURN(const ExprId calls, Calls());
    if (tools->choice == ToolChoice::kRequired || tools->choice == ToolChoice::kNamed) return calls;
    if (rules_.format->kind != Kind::kText) {
      ASSIGN_OR_RETURN(const ExprId formatted, Formatted());
      return grammar_.Choice({calls, formatted});
    }
    return grammar_.Sequence({TextUntil(rules_.syntax->tools->trigger), grammar_.Optional(calls)});
  }

  absl::StatusOr<ExprId> Formatted() {
    const AnswerFormat& format = *rules_.format;
    field_ = format.field;
    switch (format.kind) {
      case Kind::kText:
        return AnyText();
      case Kind::kJsonObject:
        return json_.Object();
      case Kind::kJsonSchema:
        return grammar::AddJsonSchema(Parse(format.text), {}, &json_);
      case Kind::kRegex:
        return grammar::ParseRegex(format.text, {}, &grammar_);
      case Kind::kChoice: {
        std::vector<ExprId> kids;
        for (const std::string& choice : format.choices) kids.push_back(grammar_.Bytes(choice));
        return grammar_.Choice(std::move(kids));
      }
      case Kind::kGrammar:
        return grammar::AddGbnf(format.text, &grammar_);
    }
    return AnyText();
  }

  ExprId Parts(const FormatParts& parts) {
    std::vector<ExprId> kids;
    for (const FormatPart& part : parts) {
      if (part.kind == FormatPart::Kind::kText) {
        kids.push_back(Literal(part.text));
      } else if (part.kind == FormatPart::Kind::kIndex) {
        kids.push_back(grammar_.Repeat(grammar_.Class({{'0', '9'}}), 1, 3));
      } else {
        const grammar::Ranges letters = {{'0', '9'}, {'A', 'Z'}, {'a', 'z'}};
        kids.push_back(grammar_.Repeat(grammar_.Class(letters), 9, 9));
      }
    }
    return grammar_.Sequence(std::move(kids));
  }

  // NAME middle ARGUMENTS of any of the tools.
  absl::StatusOr<ExprId> Call() {
    const ToolFormat& format = *rules_.syntax->tools;
    const ExprId middle = Parts(format.middle);
    std::vector<ExprId> kids;
    for (size_t i = 0; i < rules_.tools->tools.size(); ++i) {
      const Tool& tool = rules_.tools->tools[i];
      if (rules_.tools->choice == ToolChoice::kNamed && tool.name != rules_.tools->named) continue;
      ExprId arguments = json_.Object();
      if (!tool.parameters.empty()) {
        field_ = fmt::format("tools[{}].function.parameters", i);
        json::value schema = Parse(tool.parameters);
        schema.get_object()["type"] = "object";  // arguments are an object, whatever it says
        ASSIGN_OR_RETURN(arguments, grammar::AddJsonSchema(
                                        schema, {.lenient = !tool.strict, .path = "#"}, &json_));
      }
      kids.push_back(grammar_.Sequence({grammar_.Bytes(tool.name), middle, arguments}));
    }
    const int32_t rule = grammar_.AddRule("call");
    grammar_.SetRule(rule, grammar_.Choice(std::move(kids)));
    return grammar_.Call(rule);
  }

  absl::StatusOr<ExprId> Calls() {
    const ToolFormat& format = *rules_.syntax->tools;
    FormatParts open = format.open;
    // In front of the trigger text is free; where calls must come there is none.
    std::string& text = open[0].text;
    text.erase(0, std::min(text.find(format.trigger), text.size()));
    ASSIGN_OR_RETURN(const ExprId call, Call());
    std::vector<ExprId> parts{Parts(open), call};
    if (format.parallel && rules_.tools->parallel && rules_.tools->choice != ToolChoice::kNamed) {
      constexpr int32_t kMoreCalls = 15;
      parts.push_back(
          grammar_.Repeat(grammar_.Sequence({Parts(format.between), call}), 0, kMoreCalls));
    }
    parts.push_back(Parts(format.close));
    return grammar_.Sequence(std::move(parts));
  }

  const AnswerRules& rules_;
  const Tokenizer& tokenizer_;
  Grammar grammar_;
  grammar::JsonRules json_;
  std::string field_;
};

// Names the grammar: requests with equal keys have equal grammars.
std::string Key(const AnswerRules& rules) {
  const AnswerFormat& format = *rules.format;
  std::string key = fmt::format("{}\n{}", static_cast<int>(format.kind), format.text);
  for (const std::string& choice : format.choices) {
    key += fmt::format("\n{}:{}", choice.size(), choice);
  }
  if (rules.tools != nullptr) {
    key += fmt::format("\n{} {} {} {}", static_cast<int>(rules.tools->choice), rules.tools->named,
                       rules.tools->parallel, rules.tools->json);
  }
  const auto& syntax = *rules.syntax;
  key += fmt::format("\n{}{}", syntax.reasoning.has_value(), syntax.starts_in_reasoning);
  return key;
}

}  // namespace

std::optional<ApiError> CompileRules(const AnswerRules& rules, const ServedModel& model,
                                     std::shared_ptr<const grammar::CompiledGrammar>* out) {
  if (rules.format->kind == Kind::kText && rules.tools == nullptr) return std::nullopt;
  std::string field = rules.format->field;
  auto compiled = model.grammars().Get(Key(rules), [&]() -> absl::StatusOr<Grammar> {
    RulesWriter writer(rules, model);
    auto grammar = writer.Write();
    if (!writer.field().empty()) field = writer.field();
    return grammar;
  });
  if (!compiled.ok()) {
    if (field.empty()) field = "tools";
    return BadField(field,
                    fmt::format("{} cannot be followed: {}.", field, Message(compiled.status())),
                    "invalid_schema");
  }
  *out = *std::move(compiled);
  return std::nullopt;
}

std::unique_ptr<TokenConstraint> MakeConstraint(
    std::shared_ptr<const grammar::CompiledGrammar> grammar, std::vector<int32_t> end_tokens) {
  return std::make_unique<Constraint>(std::move(grammar), std::move(end_tokens));
}

}  // namespace terrace::server
