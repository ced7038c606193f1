// Models that rank by judging (Qwen3 rerankers, 2025): asked whether a document meets a query, they
// answer "yes" or "no", and the share of "yes" is the document's score.
#ifndef TERRACE_SERVER_JUDGE_H_
#define TERRACE_SERVER_JUDGE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "request/request.h"
#include "text/tokenizer.h"

namespace terrace::server {

struct JudgeTokens {
  int32_t yes = 0;
  int32_t no = 0;
};

// Nothing if the vocabulary has no token for either word or for the marks of turns.
std::optional<JudgeTokens> FindJudgeTokens(const Tokenizer& tokenizer);

// The question in the form that these models were trained on. Control tokens are only those of the
// form, whatever query and document hold.
absl::StatusOr<std::vector<int32_t>> JudgePrompt(const Tokenizer& tokenizer,
                                                 std::string_view instruction,
                                                 std::string_view query, std::string_view document);

// Allows the two answers.
std::unique_ptr<TokenConstraint> OnlyAnswers(const JudgeTokens& tokens);

// The share of "yes" among the two, of the token that was sampled under OnlyAnswers with two
// alternatives reported.
float YesShare(const JudgeTokens& tokens, const TokenEvent& event);

}  // namespace terrace::server

#endif  // TERRACE_SERVER_JUDGE_H_
