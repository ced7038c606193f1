// A grammar as the front ends (regular expressions, GBNF, JSON schema) write it: rules made of
// expressions over Unicode text. Program (program.h) is what it compiles to. Not thread-safe.
#ifndef TERRACE_TEXT_GRAMMAR_GRAMMAR_H_
#define TERRACE_TEXT_GRAMMAR_GRAMMAR_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace terrace::grammar {

// Code points, both ends included.
struct Range {
  uint32_t low = 0;
  uint32_t high = 0;
};
using Ranges = std::vector<Range>;

inline constexpr uint32_t kLastCodePoint = 0x10FFFF;
inline constexpr int32_t kUnbounded = -1;

// Sorted, joined where they touch, without surrogates.
Ranges Normalized(Ranges ranges);
// All code points that are not in `ranges`.
Ranges Complement(const Ranges& ranges);
Ranges Intersection(const Ranges& a, const Ranges& b);

// A finite automaton over bytes written out, for what expressions say badly: numbers in a range,
// keys other than some, text up to a marker. State 0 is the start.
struct ByteAutomaton {
  struct Edge {
    uint8_t low = 0;
    uint8_t high = 0;
    int32_t target = 0;
  };
  struct State {
    std::vector<Edge> edges;
    bool final = false;
  };
  std::vector<State> states;

  int32_t Add(bool final = false) {
    states.push_back({{}, final});
    return static_cast<int32_t>(states.size()) - 1;
  }
  void Connect(int32_t from, uint8_t low, uint8_t high, int32_t to) {
    states[static_cast<size_t>(from)].edges.push_back({low, high, to});
  }
};

using ExprId = int32_t;

// Parts joined freely: expressions on the edges between states, of which 0 is the start.
struct Graph {
  struct Edge {
    ExprId label = 0;
    int32_t target = 0;
  };
  struct State {
    std::vector<Edge> edges;
    bool final = false;
  };
  std::vector<State> states;
};

enum class ExprKind : uint8_t {
  kEmpty,
  kNever,      // matches nothing at all
  kBytes,      // `bytes`
  kClass,      // one character of `ranges`, in UTF-8
  kSequence,   // `kids` one after the other
  kChoice,     // one of `kids`
  kRepeat,     // kids[0], `min` to `max` times
  kRule,       // the rule `index`
  kToken,      // the one token `index` of the vocabulary (a control token)
  kAutomaton,  // the automaton `index`
  kGraph,      // the graph `index`, whose labels are `kids`
};

struct Expr {
  ExprKind kind = ExprKind::kEmpty;
  int32_t index = 0;
  int32_t min = 0;
  int32_t max = 0;
  std::string bytes;
  Ranges ranges;
  std::vector<ExprId> kids;
};

struct Rule {
  std::string name;  // for messages
  ExprId body = -1;  // -1: not set
  // May be written out where it is called, which makes running faster; a rule that many grammars or
  // many places share is better kept.
  bool may_inline = false;
};

class Grammar {
 public:
  ExprId Empty() { return Add({}); }
  ExprId Never() { return Add({.kind = ExprKind::kNever}); }
  ExprId Bytes(std::string_view text);
  ExprId Class(Ranges ranges);
  ExprId Sequence(std::vector<ExprId> kids);
  ExprId Choice(std::vector<ExprId> kids);
  ExprId Repeat(ExprId kid, int32_t min, int32_t max);
  ExprId Optional(ExprId kid) { return Repeat(kid, 0, 1); }
  ExprId Call(int32_t rule) { return Add({.kind = ExprKind::kRule, .index = rule}); }
  ExprId Token(int32_t id) { return Add({.kind = ExprKind::kToken, .index = id}); }
  ExprId Automaton(ByteAutomaton automaton);
  ExprId Join(Graph graph);

  int32_t AddRule(std::string name, bool may_inline = false);
  void SetRule(int32_t rule, ExprId body) { rules_[static_cast<size_t>(rule)].body = body; }
  void set_root(int32_t rule) { root_ = rule; }

  const Expr& expr(ExprId id) const { return exprs_[static_cast<size_t>(id)]; }
  const std::vector<Rule>& rules() const { return rules_; }
  const ByteAutomaton& automaton(int32_t index) const {
    return automata_[static_cast<size_t>(index)];
  }
  const Graph& graph(int32_t index) const { return graphs_[static_cast<size_t>(index)]; }
  int32_t root() const { return root_; }
  size_t size() const { return exprs_.size(); }

 private:
  ExprId Add(Expr expr);

  std::vector<Expr> exprs_;
  std::vector<Rule> rules_;
  std::vector<ByteAutomaton> automata_;
  std::vector<Graph> graphs_;
  int32_t root_ = 0;
};

// Any text (UTF-8) that does not hold `marker`, which is not part of it; for a marker that follows.
// The empty text included. REQUIRES: `marker` is not empty.
ByteAutomaton TextWithout(std::string_view marker);

// What matches both.
ByteAutomaton Intersect(const ByteAutomaton& a, const ByteAutomaton& b);

}  // namespace terrace::grammar

#endif  // TERRACE_TEXT_GRAMMAR_GRAMMAR_H_
