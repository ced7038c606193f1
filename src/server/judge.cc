#include "server/judge.h"

#include <array>
#include <cmath>
#include <limits>
#include <span>

namespace terrace::server {
namespace {

constexpr std::string_view kDefaultInstruction =
    "Given a web search query, retrieve relevant passages that answer the query";

class TwoTokens final : public TokenConstraint {
 public:
  explicit TwoTokens(const JudgeTokens& tokens) : tokens_(tokens) {}
  void Mask(std::span<float> logits) override {
    const float yes = logits[static_cast<size_t>(tokens_.yes)];
    const float no = logits[static_cast<size_t>(tokens_.no)];
    for (float& logit : logits) logit = -std::numeric_limits<float>::infinity();
    logits[static_cast<size_t>(tokens_.yes)] = yes;
    logits[static_cast<size_t>(tokens_.no)] = no;
  }
  void Accept(int32_t) override {}
  bool Finished() const override { return false; }

 private:
  const JudgeTokens tokens_;
};

}  // namespace

std::optional<JudgeTokens> FindJudgeTokens(const Tokenizer& tokenizer) {
  const auto yes = tokenizer.Find("yes"), no = tokenizer.Find("no");
  if (!yes || !no || !tokenizer.Find("<|im_start|>") || !tokenizer.Find("<|im_end|>")) {
    return std::nullopt;
  }
  return JudgeTokens{*yes, *no};
}

absl::StatusOr<std::vector<int32_t>> JudgePrompt(const Tokenizer& tokenizer,
                                                 std::string_view instruction,
                                                 std::string_view query,
                                                 std::string_view document) {
  const std::array<TextSpan, 7> spans = {{
      {"<|im_start|>system\nJudge whether the Document meets the requirements based on the Query "
       "and the Instruct provided. Note that the answer can only be \"yes\" or "
       "\"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: ",
       true},
      {instruction.empty() ? kDefaultInstruction : instruction, false},
      {"\n<Query>: ", true},
      {query, false},
      {"\n<Document>: ", true},
      {document, false},
      {"<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", true},
  }};
  return tokenizer.Encode(std::span<const TextSpan>(spans),
                          {.add_special = true, .add_end = false});
}

std::unique_ptr<TokenConstraint> OnlyAnswers(const JudgeTokens& tokens) {
  return std::make_unique<TwoTokens>(tokens);
}

float YesShare(const JudgeTokens& tokens, const TokenEvent& event) {
  double yes = 0, no = 0;
  for (const TokenLogprob& each : event.top) {
    if (each.token == tokens.yes) yes = std::exp(static_cast<double>(each.logprob));
    if (each.token == tokens.no) no = std::exp(static_cast<double>(each.logprob));
  }
  return yes + no > 0 ? static_cast<float>(yes / (yes + no)) : 0.0f;
}

}  // namespace terrace::server
