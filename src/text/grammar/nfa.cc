#include "text/grammar/nfa.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

namespace terrace::grammar {
namespace {

// Repeats that take more states than this, written out, become counted rules.
constexpr size_t kWrittenOutStates = 96;
// Places looked at, in all sets together, before one state for each set is given up.
constexpr size_t kMaxWork = 8'000'000;

struct Utf8Sequence {
  std::array<std::pair<uint8_t, uint8_t>, 4> bytes;
  int length = 0;
};

int Encode(uint32_t point, std::array<uint8_t, 4>* out) {
  auto& b = *out;
  if (point < 0x80) {
    b[0] = static_cast<uint8_t>(point);
    return 1;
  }
  const int length = point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
  for (int i = length - 1; i > 0; --i, point >>= 6) {
    b[static_cast<size_t>(i)] = static_cast<uint8_t>(0x80 | (point & 0x3F));
  }
  b[0] = static_cast<uint8_t>((0xF00 >> length) | point);
  return length;
}

// Splits a range so that each part is a sequence of byte ranges.
void Split(uint32_t low, uint32_t high, std::vector<Utf8Sequence>* out) {
  for (uint32_t border : {0x7Fu, 0x7FFu, 0xFFFFu}) {
    if (low <= border && high > border) {
      Split(low, border, out);
      return Split(border + 1, high, out);
    }
  }
  std::array<uint8_t, 4> a{}, b{};
  const int length = Encode(low, &a);
  Encode(high, &b);
  for (int i = 1; i < length; ++i) {
    const uint32_t mask = (1u << (6 * i)) - 1;
    if ((low & ~mask) == (high & ~mask)) continue;
    if ((low & mask) != 0) {
      Split(low, low | mask, out);
      return Split((low | mask) + 1, high, out);
    }
    if ((high & mask) != mask) {
      Split(low, (high & ~mask) - 1, out);
      return Split(high & ~mask, high, out);
    }
  }
  Utf8Sequence sequence;
  sequence.length = length;
  for (size_t i = 0; i < static_cast<size_t>(length); ++i) sequence.bytes[i] = {a[i], b[i]};
  out->push_back(sequence);
}

}  // namespace

absl::StatusOr<Nfa> Nfa::Create(const Grammar& grammar, ExprId expr, const Options& options) {
  Nfa nfa(grammar, options);
  nfa.end_ = nfa.Emit(expr, nfa.Add(), 0);
  if (!nfa.status_.ok()) return nfa.status_;
  return nfa;
}

int32_t Nfa::Add() {
  if (edges_.size() >= options_.max_states) {
    status_ = absl::InvalidArgumentError(
        fmt::format("the grammar is too large: more than {} states", options_.max_states));
    return 0;
  }
  edges_.emplace_back();
  return static_cast<int32_t>(edges_.size()) - 1;
}

int32_t Nfa::Emit(ExprId id, int32_t from, int32_t depth) {
  if (!status_.ok()) return from;
  if (depth > options_.max_depth) {
    status_ = absl::InvalidArgumentError(
        fmt::format("the grammar nests deeper than {}", options_.max_depth));
    return from;
  }
  const Expr& expr = grammar_.expr(id);
  switch (expr.kind) {
    case ExprKind::kEmpty:
      return from;
    case ExprKind::kNever:
      return Add();
    case ExprKind::kBytes: {
      for (char c : expr.bytes) {
        const int32_t next = Add();
        const auto byte = static_cast<uint8_t>(c);
        Connect(from, {Edge::Kind::kBytes, byte, byte, 0, next});
        from = next;
      }
      return from;
    }
    case ExprKind::kClass:
      return EmitClass(expr.ranges, from);
    case ExprKind::kSequence:
      for (ExprId kid : expr.kids) from = Emit(kid, from, depth + 1);
      return from;
    case ExprKind::kChoice: {
      const int32_t end = Add();
      for (ExprId kid : expr.kids) {
        const int32_t begin = Add();
        Empty(from, begin);
        Empty(Emit(kid, begin, depth + 1), end);
      }
      return end;
    }
    case ExprKind::kRepeat:
      return EmitRepeat(expr, from, depth);
    case ExprKind::kRule:
    case ExprKind::kToken: {
      if (const auto rule = static_cast<size_t>(expr.index); expr.kind == ExprKind::kRule &&
                                                             rule < options_.inlined.size() &&
                                                             options_.inlined[rule]) {
        return Emit(grammar_.rules()[rule].body, from, depth + 1);
      }
      const int32_t next = Add();
      const bool call = expr.kind == ExprKind::kRule;
      Connect(from, {call ? Edge::Kind::kCall : Edge::Kind::kToken, 0, 0, expr.index, next});
      return next;
    }
    case ExprKind::kAutomaton:
      return EmitAutomaton(grammar_.automaton(expr.index), from);
    case ExprKind::kGraph:
      return EmitGraph(grammar_.graph(expr.index), from, depth);
  }
  return from;
}

bool Nfa::MayBeEmpty(ExprId id, int32_t depth) const {
  if (depth > options_.max_depth) return true;
  const Expr& expr = grammar_.expr(id);
  auto may = [&](ExprId kid) { return MayBeEmpty(kid, depth + 1); };
  switch (expr.kind) {
    case ExprKind::kEmpty:
      return true;
    case ExprKind::kSequence:
      return std::all_of(expr.kids.begin(), expr.kids.end(), may);
    case ExprKind::kChoice:
      return std::any_of(expr.kids.begin(), expr.kids.end(), may);
    case ExprKind::kRepeat:
      return expr.min == 0 || may(expr.kids[0]);
    case ExprKind::kAutomaton:
      return grammar_.automaton(expr.index).states[0].final;
    case ExprKind::kGraph:
      return grammar_.graph(expr.index).states[0].final ||
             std::any_of(expr.kids.begin(), expr.kids.end(), may);
    case ExprKind::kRule: {
      const auto rule = static_cast<size_t>(expr.index);
      return rule < options_.inlined.size() && options_.inlined[rule] &&
             may(grammar_.rules()[rule].body);
    }
    case ExprKind::kNever:
    case ExprKind::kBytes:
    case ExprKind::kClass:
    case ExprKind::kToken:
      return false;
  }
  return false;
}

int32_t Nfa::EmitRepeat(const Expr& expr, int32_t from, int32_t depth) {
  const ExprId kid = expr.kids[0];
  // A place of its own, so that loops do not lead back into what came before.
  const int32_t begin = Add();
  Empty(from, begin);
  if (expr.min == 0 && expr.max == kUnbounded) {
    Empty(Emit(kid, begin, depth + 1), begin);
    const int32_t end = Add();
    Empty(begin, end);
    return end;
  }
  from = begin;
  const int32_t copies = expr.max == kUnbounded ? expr.min + 1 : expr.max;
  const size_t before = edges_.size();
  int32_t next = Emit(kid, from, depth + 1);
  if (!status_.ok()) return from;
  const size_t cost = std::max<size_t>(edges_.size() - before, 1);
  if (options_.repeat_rule && copies > 2 && !MayBeEmpty(kid, depth) &&
      cost * static_cast<size_t>(copies) > kWrittenOutStates) {
    // What was tried is left unconnected.
    edges_[static_cast<size_t>(from)].clear();
    next = Add();
    const int32_t rule = options_.repeat_rule(kid, std::max(expr.min, 1), expr.max);
    Connect(from, {Edge::Kind::kCall, 0, 0, rule, next});
    if (expr.min == 0) Empty(from, next);
    return next;
  }
  const int32_t end = Add();
  for (int32_t i = 1;; ++i) {
    if (i > expr.min) Empty(from, end);
    from = next;
    if (i >= copies || !status_.ok()) break;
    // Again a place of its own: the copy just made may loop at its end.
    const int32_t place = Add();
    Empty(from, place);
    from = place;
    next = Emit(kid, from, depth + 1);
  }
  if (expr.max == kUnbounded) {  // the last copy as often as wanted
    const int32_t loop = Add();
    Empty(from, loop);
    Empty(Emit(kid, loop, depth + 1), loop);
    from = loop;
  }
  Empty(from, end);
  return end;
}

int32_t Nfa::EmitClass(const Ranges& ranges, int32_t from) {
  std::vector<Utf8Sequence> sequences;
  for (const Range& range : ranges) Split(range.low, range.high, &sequences);
  const int32_t end = Add();
  for (const Utf8Sequence& sequence : sequences) {
    int32_t at = from;
    for (int i = 0; i < sequence.length; ++i) {
      const int32_t next = i + 1 == sequence.length ? end : Add();
      const auto [low, high] = sequence.bytes[static_cast<size_t>(i)];
      Connect(at, {Edge::Kind::kBytes, low, high, 0, next});
      at = next;
    }
  }
  return end;
}

int32_t Nfa::EmitAutomaton(const ByteAutomaton& automaton, int32_t from) {
  const auto offset = static_cast<int32_t>(edges_.size());
  for (size_t i = 0; i < automaton.states.size(); ++i) Add();
  const int32_t end = Add();
  if (!status_.ok()) return from;
  for (size_t i = 0; i < automaton.states.size(); ++i) {
    const int32_t state = offset + static_cast<int32_t>(i);
    for (const auto& edge : automaton.states[i].edges) {
      Connect(state, {Edge::Kind::kBytes, edge.low, edge.high, 0, offset + edge.target});
    }
    if (automaton.states[i].final) Empty(state, end);
  }
  Empty(from, offset);
  return end;
}

int32_t Nfa::EmitGraph(const Graph& graph, int32_t from, int32_t depth) {
  std::vector<int32_t> places;
  for (size_t i = 0; i < graph.states.size(); ++i) places.push_back(Add());
  const int32_t end = Add();
  if (!status_.ok()) return from;
  for (size_t i = 0; i < graph.states.size(); ++i) {
    for (const Graph::Edge& edge : graph.states[i].edges) {
      const int32_t begin = Add();
      Empty(places[i], begin);
      Empty(Emit(edge.label, begin, depth + 1), places[static_cast<size_t>(edge.target)]);
    }
    if (graph.states[i].final) Empty(places[i], end);
  }
  Empty(from, places[0]);
  return end;
}

std::vector<int32_t> Nfa::Closure(std::vector<int32_t> states, std::vector<bool>* seen) const {
  std::vector<int32_t> out;
  auto reach = [&](int32_t state) {
    if ((*seen)[static_cast<size_t>(state)]) return;
    (*seen)[static_cast<size_t>(state)] = true;
    out.push_back(state);
  };
  for (int32_t state : states) reach(state);
  for (size_t i = 0; i < out.size(); ++i) {
    for (const Edge& edge : edges_[static_cast<size_t>(out[i])]) {
      if (edge.kind == Edge::Kind::kEmpty) reach(edge.target);
    }
  }
  for (int32_t state : out) (*seen)[static_cast<size_t>(state)] = false;
  // Places that only lead on tell sets apart without need.
  std::erase_if(out, [this](int32_t state) {
    const auto& edges = edges_[static_cast<size_t>(state)];
    return state != end_ && std::all_of(edges.begin(), edges.end(), [](const Edge& edge) {
             return edge.kind == Edge::Kind::kEmpty;
           });
  });
  std::sort(out.begin(), out.end());
  return out;
}

bool Nfa::Determine(size_t max_states, Flat* out) const {
  std::map<std::vector<int32_t>, int32_t> ids;
  std::vector<const std::vector<int32_t>*> sets;
  size_t work = 0;
  std::vector<bool> seen(edges_.size(), false);
  auto state = [&](std::vector<int32_t> set) {
    const auto [it, fresh] = ids.try_emplace(Closure(std::move(set), &seen), sets.size());
    if (fresh) {
      sets.push_back(&it->first);
      out->edges.emplace_back();
      out->final.push_back(std::binary_search(it->first.begin(), it->first.end(), end_));
    }
    return it->second;
  };
  state({0});
  for (size_t i = 0; i < sets.size(); ++i) {
    work += sets[i]->size();
    if (sets.size() > max_states || work > kMaxWork) return false;
    std::vector<Edge> bytes;
    std::map<std::pair<Edge::Kind, int32_t>, std::vector<int32_t>> others;
    std::array<bool, 257> border{};
    for (int32_t each : *sets[i]) {
      for (const Edge& edge : edges_[static_cast<size_t>(each)]) {
        if (edge.kind == Edge::Kind::kBytes) {
          bytes.push_back(edge);
          border[edge.low] = border[edge.high + 1u] = true;
        } else if (edge.kind != Edge::Kind::kEmpty) {
          others[{edge.kind, edge.value}].push_back(edge.target);
        }
      }
    }
    std::vector<Edge> found;
    for (size_t low = 0; low < 256 && !bytes.empty();) {
      size_t next = low + 1;
      while (next < 256 && !border[next]) ++next;
      std::vector<int32_t> targets;
      for (const Edge& edge : bytes) {
        if (edge.low <= low && low <= edge.high) targets.push_back(edge.target);
      }
      if (!targets.empty()) {
        const int32_t target = state(std::move(targets));
        if (!found.empty() && found.back().target == target && found.back().high + 1u == low) {
          found.back().high = static_cast<uint8_t>(next - 1);
        } else {
          found.push_back({Edge::Kind::kBytes, static_cast<uint8_t>(low),
                           static_cast<uint8_t>(next - 1), 0, target});
        }
      }
      low = next;
    }
    for (auto& [key, targets] : others) {
      found.push_back({key.first, 0, 0, key.second, state(std::move(targets))});
    }
    out->edges[i] = std::move(found);
  }
  return true;
}

Nfa::Flat Nfa::WithoutEmpty() const {
  Flat out;
  out.edges.resize(edges_.size());
  out.final.resize(edges_.size());
  std::vector<bool> seen(edges_.size(), false);
  for (size_t i = 0; i < edges_.size(); ++i) {
    for (int32_t each : Closure({static_cast<int32_t>(i)}, &seen)) {
      if (each == end_) out.final[i] = true;
      for (const Edge& edge : edges_[static_cast<size_t>(each)]) {
        if (edge.kind != Edge::Kind::kEmpty) out.edges[i].push_back(edge);
      }
    }
  }
  return out;
}

Nfa::Flat Nfa::Flatten(size_t max_states) const {
  Flat out;
  if (Determine(max_states, &out)) return out;
  return WithoutEmpty();
}

}  // namespace terrace::grammar
