// A grammar compiled for running: each rule a finite automaton over bytes, whose edges may also
// call other rules, so that the whole is a pushdown automaton. Immutable after Create, safe to
// share.
//
// Bounded time and memory whatever the grammar: sizes are limited, rules that call themselves
// before anything is read (left recursion) are refused, and what can never end is cut away.
#ifndef TERRACE_TEXT_GRAMMAR_PROGRAM_H_
#define TERRACE_TEXT_GRAMMAR_PROGRAM_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "text/grammar/grammar.h"

namespace terrace::grammar {

struct ProgramLimits {
  size_t max_exprs = 200'000;
  size_t max_states = 200'000;  // of all rules together
  int32_t max_depth = 400;      // of expressions, and of rules that begin with one another
};

class Program {
 public:
  struct ByteEdge {
    uint8_t low = 0;
    uint8_t high = 0;
    uint32_t target = 0;
  };
  struct CallEdge {
    int32_t rule = 0;
    uint32_t target = 0;  // where the caller goes on
    bool tail = false;    // nothing follows there: the caller need not be returned to
  };
  struct TokenEdge {
    int32_t token = 0;
    uint32_t target = 0;
  };
  struct State {
    std::vector<ByteEdge> bytes;
    std::vector<CallEdge> calls;
    std::vector<TokenEdge> tokens;
    int32_t rule = 0;
    bool final = false;
  };
  struct CompiledRule {
    std::string name;
    uint32_t start = 0;
    uint32_t first = 0, last = 0;  // its states: [first, last)
    // The automaton is passed min to max times (kUnbounded: no limit).
    int32_t min = 1;
    int32_t max = 1;
    // States are named by nothing outside it: the same automaton in another grammar means the same.
    bool self_contained = false;
  };

  // InvalidArgument says which rule or limit is at fault.
  static absl::StatusOr<Program> Create(const Grammar& grammar, const ProgramLimits& limits = {});

  const State& state(uint32_t id) const { return states_[id]; }
  const CompiledRule& rule(int32_t id) const { return rules_[static_cast<size_t>(id)]; }
  size_t states() const { return states_.size(); }
  size_t rules() const { return rules_.size(); }
  int32_t root() const { return root_; }

  // The automaton of a self-contained rule as bytes: equal for equal automata.
  std::string RuleContent(int32_t rule) const;

 private:
  class Builder;

  std::vector<State> states_;
  std::vector<CompiledRule> rules_;
  int32_t root_ = 0;
};

// The automaton of an expression without rules and tokens. InvalidArgument if it has some, or if it
// has more than `max_states` states.
absl::StatusOr<ByteAutomaton> ToAutomaton(const Grammar& grammar, ExprId expr, size_t max_states);

}  // namespace terrace::grammar

#endif  // TERRACE_TEXT_GRAMMAR_PROGRAM_H_
