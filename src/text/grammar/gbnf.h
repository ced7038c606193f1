// Grammars in GBNF, the notation that llama.cpp and its kin use: rules `name ::= alternatives` with
// "literals", [classes], `.`, groups, and the repeats * + ? {m} {m,} {m,n}. The rule `root` is the
// whole text. A rule goes on until the next `name ::=`.
#ifndef TERRACE_TEXT_GRAMMAR_GBNF_H_
#define TERRACE_TEXT_GRAMMAR_GBNF_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "text/grammar/grammar.h"

namespace terrace::grammar {

// Adds the rules of `text` to `*grammar`; the result calls their root. InvalidArgument names the
// line.
absl::StatusOr<ExprId> AddGbnf(std::string_view text, Grammar* grammar);

}  // namespace terrace::grammar

#endif  // TERRACE_TEXT_GRAMMAR_GBNF_H_
