// Regular expressions as grammars: the syntax of ECMA-262 (which JSON schemas use) as far as it is
// regular. Groups of all kinds are plain groups; lazy quantifiers match what greedy ones do; \d, \w
// and \s are ASCII. Look-around, back-references, \b, \p{...} and flags are refused, as is an
// anchor elsewhere than at the ends of the whole or of its alternatives.
#ifndef TERRACE_TEXT_GRAMMAR_REGEX_H_
#define TERRACE_TEXT_GRAMMAR_REGEX_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "text/grammar/grammar.h"

namespace terrace::grammar {

struct RegexOptions {
  // The whole text must match. Otherwise a part of it: only ^ and $ hold the ends.
  bool whole = true;
  // The text is written as the inside of a JSON string.
  bool json_string = false;
};

// Adds the expression to `*grammar`. InvalidArgument says what is wrong and where (in bytes).
absl::StatusOr<ExprId> ParseRegex(std::string_view pattern, const RegexOptions& options,
                                  Grammar* grammar);

// One character of `ranges`, as the inside of a JSON string writes it.
ExprId JsonStringClass(const Ranges& ranges, Grammar* grammar);

}  // namespace terrace::grammar

#endif  // TERRACE_TEXT_GRAMMAR_REGEX_H_
