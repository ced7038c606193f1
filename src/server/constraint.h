// From what a request asks of an answer (format, tools, reasoning) to the grammar that its tokens
// must follow.
#ifndef TERRACE_SERVER_CONSTRAINT_H_
#define TERRACE_SERVER_CONSTRAINT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "request/request.h"
#include "server/answer_parser.h"
#include "server/api_error.h"
#include "server/openai_format.h"
#include "text/grammar/matcher.h"

namespace terrace::server {

class ServedModel;

// What restricts one request's answers.
struct AnswerRules {
  const AnswerFormat* format = nullptr;
  const ToolRequest* tools = nullptr;  // null: none can be called
  const AnswerSyntax* syntax = nullptr;
};

// The compiled grammar, null if any text will do; or a 400 that names the field. Reasoning, if the
// syntax has it, may come before what the grammar is about. Takes up to some tens of milliseconds
// for a new grammar.
std::optional<ApiError> CompileRules(const AnswerRules& rules, const ServedModel& model,
                                     std::shared_ptr<const grammar::CompiledGrammar>* out);

// One answer's way through the grammar. `end_tokens` may come where its text may end.
std::unique_ptr<TokenConstraint> MakeConstraint(
    std::shared_ptr<const grammar::CompiledGrammar> grammar, std::vector<int32_t> end_tokens);

}  // namespace terrace::server

#endif  // TERRACE_SERVER_CONSTRAINT_H_
