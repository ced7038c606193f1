// The automaton of one rule on its way to a Program: expressions become a graph with empty edges
// (Thompson), the graph becomes states without them, one state for each set of places that the text
// so far may have reached. Not thread-safe.
#ifndef TERRACE_TEXT_GRAMMAR_NFA_H_
#define TERRACE_TEXT_GRAMMAR_NFA_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "text/grammar/grammar.h"

namespace terrace::grammar {

class Nfa {
 public:
  struct Edge {
    enum class Kind : uint8_t { kEmpty, kBytes, kCall, kToken };
    Kind kind = Kind::kEmpty;
    uint8_t low = 0;
    uint8_t high = 0;
    int32_t value = 0;  // rule or token
    int32_t target = 0;
  };

  struct Options {
    size_t max_states = 0;
    int32_t max_depth = 0;
    // Called for repeats too long to be written out: the rule that repeats `kid`. Empty: they are
    // written out.
    std::function<int32_t(ExprId kid, int32_t min, int32_t max)> repeat_rule;
    // By rule: whether calls of it are written out; empty: none is.
    std::vector<bool> inlined;
  };

  // The graph of `expr` from start() to end(). `grammar` must outlive the object.
  static absl::StatusOr<Nfa> Create(const Grammar& grammar, ExprId expr, const Options& options);

  // States with their edges (no empty ones), and which are final; 0 is the start.
  struct Flat {
    std::vector<std::vector<Edge>> edges;
    std::vector<bool> final;
  };
  // One target a byte, if that takes at most `max_states` states; else with several.
  Flat Flatten(size_t max_states) const;

 private:
  Nfa(const Grammar& grammar, const Options& options) : grammar_(grammar), options_(options) {}

  int32_t Add();
  void Connect(int32_t from, Edge edge) { edges_[static_cast<size_t>(from)].push_back(edge); }
  void Empty(int32_t from, int32_t to) { Connect(from, {.target = to}); }
  // Adds the graph of `id` behind `from`; returns its end.
  int32_t Emit(ExprId id, int32_t from, int32_t depth);
  int32_t EmitRepeat(const Expr& expr, int32_t from, int32_t depth);
  int32_t EmitClass(const Ranges& ranges, int32_t from);
  // Whether the empty text matches, as far as can be seen without looking into rules.
  bool MayBeEmpty(ExprId id, int32_t depth) const;
  int32_t EmitGraph(const Graph& graph, int32_t from, int32_t depth);
  int32_t EmitAutomaton(const ByteAutomaton& automaton, int32_t from);
  // `*seen` has a mark for each state; marks are left as they were found.
  std::vector<int32_t> Closure(std::vector<int32_t> states, std::vector<bool>* seen) const;
  bool Determine(size_t max_states, Flat* out) const;
  Flat WithoutEmpty() const;

  const Grammar& grammar_;
  const Options& options_;
  std::vector<std::vector<Edge>> edges_;
  absl::Status status_;
  int32_t end_ = 0;
};

}  // namespace terrace::grammar

#endif  // TERRACE_TEXT_GRAMMAR_NFA_H_
