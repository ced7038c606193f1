#include "text/grammar/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/status.h"
#include "text/grammar/nfa.h"

namespace terrace::grammar {
namespace {

// Rules up to this many expressions are written out where they are called.
constexpr size_t kInlineExprs = 100;
// A rule whose deterministic automaton would have more states than this keeps the other one.
constexpr size_t kDeterminedStates = 60'000;

absl::Status TooLarge(std::string_view what) {
  return absl::InvalidArgumentError(fmt::format("the grammar is too large: {}", what));
}

// The rules that `body` calls, and how many expressions it has.
std::set<int32_t> Callees(const Grammar& grammar, ExprId body, size_t* exprs) {
  std::set<int32_t> out;
  std::set<ExprId> seen;
  std::vector<ExprId> work{body};
  while (!work.empty()) {
    const ExprId id = work.back();
    work.pop_back();
    if (!seen.insert(id).second) continue;
    const Expr& expr = grammar.expr(id);
    if (expr.kind == ExprKind::kRule) out.insert(expr.index);
    work.insert(work.end(), expr.kids.begin(), expr.kids.end());
    *exprs += expr.kind == ExprKind::kBytes ? expr.bytes.size() : 1;
    if (expr.kind == ExprKind::kRepeat) *exprs += static_cast<size_t>(std::max(expr.max, 0));
  }
  return out;
}

// Which rules are written out: small ones whose own calls are all decided before. `*depth`: of the
// longest chain of rules that call one another, as far as none of them recurs.
std::vector<bool> ChooseInlined(const Grammar& grammar, int32_t* depth) {
  const size_t count = grammar.rules().size();
  std::vector<size_t> sizes(count, 0), open(count, 0);
  std::vector<std::vector<size_t>> callers(count);
  std::vector<std::set<int32_t>> callees(count);
  std::deque<size_t> ready;
  for (size_t rule = 0; rule < count; ++rule) {
    callees[rule] = Callees(grammar, grammar.rules()[rule].body, &sizes[rule]);
    open[rule] = callees[rule].size();
    for (int32_t callee : callees[rule]) callers[static_cast<size_t>(callee)].push_back(rule);
    if (open[rule] == 0) ready.push_back(rule);
  }
  std::vector<bool> inlined(count, false);
  std::vector<int32_t> depths(count, 0);
  while (!ready.empty()) {
    const size_t rule = ready.front();
    ready.pop_front();
    for (int32_t callee : callees[rule]) {
      depths[rule] = std::max(depths[rule], depths[static_cast<size_t>(callee)] + 1);
      *depth = std::max(*depth, depths[rule]);
      if (inlined[static_cast<size_t>(callee)]) sizes[rule] += sizes[static_cast<size_t>(callee)];
    }
    inlined[rule] = grammar.rules()[rule].may_inline && sizes[rule] <= kInlineExprs;
    for (size_t caller : callers[rule]) {
      if (--open[caller] == 0) ready.push_back(caller);
    }
  }
  return inlined;
}

}  // namespace

// Builds rule by rule from the root, then checks and trims the whole.
class Program::Builder {
 public:
  Builder(const Grammar& grammar, const ProgramLimits& limits, Program* out)
      : grammar_(grammar), limits_(limits), out_(*out) {}

  absl::Status Run() {
    if (grammar_.size() > limits_.max_exprs || grammar_.rules().size() > limits_.max_exprs) {
      return TooLarge(fmt::format("more than {} parts", limits_.max_exprs));
    }
    for (const Rule& rule : grammar_.rules()) {
      if (rule.body < 0) {
        return absl::InvalidArgumentError(fmt::format("the rule \"{}\" is missing", rule.name));
      }
    }
    int32_t depth = 0;
    options_.inlined = ChooseInlined(grammar_, &depth);
    if (depth > limits_.max_depth) {
      return absl::InvalidArgumentError(
          fmt::format("the rules nest deeper than {}", limits_.max_depth));
    }
    options_.max_depth = limits_.max_depth;
    options_.repeat_rule = [this](ExprId kid, int32_t min, int32_t max) {
      return kOurs + RuleFor(kid, min, max, fmt::format("a part repeated {} times", max));
    };
    out_.root_ = RuleOf(grammar_.root());
    for (size_t rule = 0; rule < bodies_.size(); ++rule) RETURN_IF_ERROR(AddStates(rule));
    FindCallers();
    RETURN_IF_ERROR(FindNullable());
    RETURN_IF_ERROR(Trim());
    RETURN_IF_ERROR(CheckLeftCalls());
    MarkTails();
    return absl::OkStatus();
  }

 private:
  int32_t RuleFor(ExprId body, int32_t min, int32_t max, std::string name) {
    const auto [it, fresh] =
        ids_.try_emplace({body, min, max}, static_cast<int32_t>(bodies_.size()));
    if (fresh) {
      bodies_.push_back(body);
      CompiledRule rule;
      rule.name = std::move(name);
      rule.min = min;
      rule.max = max;
      out_.rules_.push_back(std::move(rule));
    }
    return it->second;
  }
  int32_t RuleOf(int32_t index) {
    const Rule& rule = grammar_.rules()[static_cast<size_t>(index)];
    return RuleFor(rule.body, 1, 1, rule.name);
  }

  absl::Status AddStates(size_t rule) {
    const auto first = static_cast<uint32_t>(out_.states_.size());
    options_.max_states = limits_.max_states - first;
    ASSIGN_OR_RETURN(const Nfa nfa, Nfa::Create(grammar_, bodies_[rule], options_));
    const Nfa::Flat flat = nfa.Flatten(kDeterminedStates);
    if (first + flat.edges.size() > limits_.max_states) {
      return TooLarge(fmt::format("more than {} states", limits_.max_states));
    }
    bool self_contained = true;
    for (size_t i = 0; i < flat.edges.size(); ++i) {
      State state;
      state.rule = static_cast<int32_t>(rule);
      state.final = flat.final[i];
      for (const Nfa::Edge& edge : flat.edges[i]) {
        const uint32_t target = first + static_cast<uint32_t>(edge.target);
        if (edge.kind == Nfa::Edge::Kind::kBytes) {
          state.bytes.push_back({edge.low, edge.high, target});
        } else if (edge.kind == Nfa::Edge::Kind::kCall) {
          state.calls.push_back({RuleOfCall(edge.value), target, false});
          self_contained = false;
        } else {
          state.tokens.push_back({edge.value, target});
          self_contained = false;
        }
      }
      out_.states_.push_back(std::move(state));
    }
    CompiledRule& compiled = out_.rules_[rule];
    compiled.start = compiled.first = first;
    compiled.last = static_cast<uint32_t>(out_.states_.size());
    compiled.self_contained = self_contained;
    return absl::OkStatus();
  }
  // Calls of the grammar's rules hold their index there; those of repeats are marked as ours.
  int32_t RuleOfCall(int32_t value) { return value >= kOurs ? value - kOurs : RuleOf(value); }

  void FindCallers() {
    callers_.resize(out_.rules_.size());
    for (const State& state : out_.states_) {
      for (const CallEdge& call : state.calls) {
        callers_[static_cast<size_t>(call.rule)].insert(state.rule);
      }
    }
  }

  // Calls `found(rule)` for each rule until nothing changes: again for the callers of a rule that
  // it gave true for the first time.
  template <typename F>
  std::vector<bool> Fixpoint(F found) {
    std::vector<bool> holds(out_.rules_.size(), false);
    std::deque<int32_t> work;
    for (size_t i = out_.rules_.size(); i-- > 0;) work.push_back(static_cast<int32_t>(i));
    while (!work.empty()) {
      const int32_t rule = work.front();
      work.pop_front();
      if (holds[static_cast<size_t>(rule)] || !found(rule, holds)) continue;
      holds[static_cast<size_t>(rule)] = true;
      for (int32_t caller : callers_[static_cast<size_t>(rule)]) work.push_back(caller);
    }
    return holds;
  }

  // The states of `rule` that are reached from its start without reading anything.
  std::vector<uint32_t> AtStart(int32_t rule, const std::vector<bool>& nullable) const {
    const CompiledRule& compiled = out_.rules_[static_cast<size_t>(rule)];
    std::vector<uint32_t> reached{compiled.start};
    std::set<uint32_t> seen{compiled.start};
    for (size_t i = 0; i < reached.size(); ++i) {
      for (const CallEdge& call : out_.states_[reached[i]].calls) {
        if (nullable[static_cast<size_t>(call.rule)] && seen.insert(call.target).second) {
          reached.push_back(call.target);
        }
      }
    }
    return reached;
  }

  absl::Status FindNullable() {
    nullable_ = Fixpoint([this](int32_t rule, const std::vector<bool>& holds) {
      for (uint32_t state : AtStart(rule, holds)) {
        if (out_.states_[state].final) return true;
      }
      return false;
    });
    for (size_t i = 0; i < out_.rules_.size(); ++i) {
      if (nullable_[i] && out_.rules_[i].max != 1) {
        return absl::InvalidArgumentError(fmt::format(
            "{} may be empty; make it match at least one character", out_.rules_[i].name));
      }
    }
    return absl::OkStatus();
  }

  // The states of `rule` from which its end can be reached.
  std::vector<bool> Alive(int32_t rule, const std::vector<bool>& productive) const {
    const CompiledRule& compiled = out_.rules_[static_cast<size_t>(rule)];
    const size_t count = compiled.last - compiled.first;
    std::vector<std::vector<uint32_t>> back(count);
    std::vector<uint32_t> work;
    for (uint32_t i = 0; i < count; ++i) {
      const State& state = out_.states_[compiled.first + i];
      for (const ByteEdge& edge : state.bytes) back[edge.target - compiled.first].push_back(i);
      for (const TokenEdge& edge : state.tokens) back[edge.target - compiled.first].push_back(i);
      for (const CallEdge& edge : state.calls) {
        if (productive[static_cast<size_t>(edge.rule)]) {
          back[edge.target - compiled.first].push_back(i);
        }
      }
      if (state.final) work.push_back(i);
    }
    std::vector<bool> alive(count, false);
    for (uint32_t i : work) alive[i] = true;
    while (!work.empty()) {
      const uint32_t at = work.back();
      work.pop_back();
      for (uint32_t from : back[at]) {
        if (!alive[from]) {
          alive[from] = true;
          work.push_back(from);
        }
      }
    }
    return alive;
  }

  absl::Status Trim() {
    const std::vector<bool> productive =
        Fixpoint([this](int32_t rule, const std::vector<bool>& holds) {
          return static_cast<bool>(Alive(rule, holds)[0]);
        });
    if (!productive[static_cast<size_t>(out_.root_)]) {
      return absl::InvalidArgumentError("nothing can ever match this");
    }
    for (size_t rule = 0; rule < out_.rules_.size(); ++rule) {
      const std::vector<bool> alive = Alive(static_cast<int32_t>(rule), productive);
      const uint32_t first = out_.rules_[rule].first;
      for (uint32_t i = 0; i < alive.size(); ++i) {
        State& state = out_.states_[first + i];
        auto dead = [&](const auto& edge) { return !alive[edge.target - first]; };
        std::erase_if(state.bytes, dead);
        std::erase_if(state.tokens, dead);
        std::erase_if(state.calls, [&](const CallEdge& edge) {
          return dead(edge) || !productive[static_cast<size_t>(edge.rule)];
        });
      }
    }
    return absl::OkStatus();
  }

  // Rules that begin with a call of themselves would never read anything.
  absl::Status CheckLeftCalls() const {
    const size_t count = out_.rules_.size();
    std::vector<std::vector<int32_t>> calls(count);
    for (size_t rule = 0; rule < count; ++rule) {
      for (uint32_t state : AtStart(static_cast<int32_t>(rule), nullable_)) {
        for (const CallEdge& call : out_.states_[state].calls) calls[rule].push_back(call.rule);
      }
    }
    std::vector<int32_t> depth(count, -1);  // -1: not seen, -2: being looked at
    for (size_t top = 0; top < count; ++top) {
      std::vector<std::pair<size_t, size_t>> path{{top, 0}};
      if (depth[top] == -1) depth[top] = -2;
      while (!path.empty() && depth[path.back().first] == -2) {
        auto& [rule, next] = path.back();
        if (next < calls[rule].size()) {
          const auto callee = static_cast<size_t>(calls[rule][next++]);
          if (depth[callee] == -2) {
            return absl::InvalidArgumentError(
                fmt::format("the rule \"{}\" begins with itself", out_.rules_[callee].name));
          }
          if (depth[callee] == -1) {
            depth[callee] = -2;
            path.emplace_back(callee, 0);
          }
          continue;
        }
        int32_t most = 0;
        for (int32_t callee : calls[rule]) {
          most = std::max(most, depth[static_cast<size_t>(callee)] + 1);
        }
        if (most > limits_.max_depth) {
          return absl::InvalidArgumentError(
              fmt::format("the rules nest deeper than {}", limits_.max_depth));
        }
        depth[rule] = most;
        path.pop_back();
      }
    }
    return absl::OkStatus();
  }

  void MarkTails() {
    for (State& state : out_.states_) {
      const CompiledRule& rule = out_.rules_[static_cast<size_t>(state.rule)];
      for (CallEdge& call : state.calls) {
        const State& target = out_.states_[call.target];
        call.tail = target.final && target.bytes.empty() && target.calls.empty() &&
                    target.tokens.empty() && rule.max == 1;
      }
    }
  }

  static constexpr int32_t kOurs = 1 << 30;

  const Grammar& grammar_;
  const ProgramLimits& limits_;
  Program& out_;
  Nfa::Options options_;
  std::map<std::tuple<ExprId, int32_t, int32_t>, int32_t> ids_;
  std::vector<ExprId> bodies_;  // by compiled rule
  std::vector<std::set<int32_t>> callers_;
  std::vector<bool> nullable_;
};

absl::StatusOr<Program> Program::Create(const Grammar& grammar, const ProgramLimits& limits) {
  Program program;
  RETURN_IF_ERROR(Builder(grammar, limits, &program).Run());
  return program;
}

std::string Program::RuleContent(int32_t id) const {
  const CompiledRule& compiled = rule(id);
  std::string out = fmt::format("{},{};", compiled.min, compiled.max);
  for (uint32_t i = compiled.first; i < compiled.last; ++i) {
    out += states_[i].final ? 'F' : 'S';
    for (const ByteEdge& edge : states_[i].bytes) {
      out += static_cast<char>(edge.low);
      out += static_cast<char>(edge.high);
      out += fmt::format("{},", edge.target - compiled.first);
    }
  }
  return out;
}

absl::StatusOr<ByteAutomaton> ToAutomaton(const Grammar& grammar, ExprId expr, size_t max_states) {
  Nfa::Options options;
  options.max_states = max_states * 8;
  options.max_depth = ProgramLimits{}.max_depth;
  ASSIGN_OR_RETURN(const Nfa nfa, Nfa::Create(grammar, expr, options));
  const Nfa::Flat flat = nfa.Flatten(max_states);
  if (flat.edges.size() > max_states) {
    return TooLarge(fmt::format("more than {} states", max_states));
  }
  ByteAutomaton out;
  for (size_t i = 0; i < flat.edges.size(); ++i) {
    out.Add(flat.final[i]);
    for (const Nfa::Edge& edge : flat.edges[i]) {
      if (edge.kind != Nfa::Edge::Kind::kBytes) {
        return absl::InvalidArgumentError("a part that calls rules cannot be used here");
      }
      out.Connect(static_cast<int32_t>(i), edge.low, edge.high, edge.target);
    }
  }
  return out;
}

}  // namespace terrace::grammar
