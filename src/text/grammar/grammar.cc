#include "text/grammar/grammar.h"

#include <algorithm>
#include <map>
#include <utility>

namespace terrace::grammar {

Ranges Normalized(Ranges ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.low < b.low; });
  Ranges joined;
  for (const Range& range : ranges) {
    if (range.low > range.high) continue;
    if (!joined.empty() && range.low <= joined.back().high + 1) {
      joined.back().high = std::max(joined.back().high, range.high);
    } else {
      joined.push_back(range);
    }
  }
  Ranges out;  // without U+D800 to U+DFFF, which UTF-8 cannot write
  for (const Range& range : joined) {
    if (range.low < 0xD800) out.push_back({range.low, std::min(range.high, 0xD7FFu)});
    if (range.high > 0xDFFF) out.push_back({std::max(range.low, 0xE000u), range.high});
  }
  return out;
}

Ranges Complement(const Ranges& ranges) {
  Ranges out;
  uint32_t next = 0;
  for (const Range& range : Normalized(ranges)) {
    if (range.low > next) out.push_back({next, range.low - 1});
    next = range.high + 1;
  }
  if (next <= kLastCodePoint) out.push_back({next, kLastCodePoint});
  return Normalized(std::move(out));
}

Ranges Intersection(const Ranges& a, const Ranges& b) {
  Ranges out;
  for (const Range& x : a) {
    for (const Range& y : b) {
      const Range both{std::max(x.low, y.low), std::min(x.high, y.high)};
      if (both.low <= both.high) out.push_back(both);
    }
  }
  return Normalized(std::move(out));
}

ExprId Grammar::Add(Expr expr) {
  exprs_.push_back(std::move(expr));
  return static_cast<ExprId>(exprs_.size()) - 1;
}

ExprId Grammar::Bytes(std::string_view text) {
  if (text.empty()) return Empty();
  return Add({.kind = ExprKind::kBytes, .bytes = std::string(text)});
}

ExprId Grammar::Class(Ranges ranges) {
  ranges = Normalized(std::move(ranges));
  if (ranges.empty()) return Never();
  return Add({.kind = ExprKind::kClass, .ranges = std::move(ranges)});
}

ExprId Grammar::Sequence(std::vector<ExprId> kids) {
  if (kids.empty()) return Empty();
  if (kids.size() == 1) return kids[0];
  return Add({.kind = ExprKind::kSequence, .kids = std::move(kids)});
}

ExprId Grammar::Choice(std::vector<ExprId> kids) {
  if (kids.empty()) return Never();
  if (kids.size() == 1) return kids[0];
  return Add({.kind = ExprKind::kChoice, .kids = std::move(kids)});
}

ExprId Grammar::Repeat(ExprId kid, int32_t min, int32_t max) {
  if (max == 0) return Empty();
  if (min == 1 && max == 1) return kid;
  return Add({.kind = ExprKind::kRepeat, .min = min, .max = max, .kids = {kid}});
}

ExprId Grammar::Automaton(ByteAutomaton automaton) {
  automata_.push_back(std::move(automaton));
  return Add({.kind = ExprKind::kAutomaton, .index = static_cast<int32_t>(automata_.size()) - 1});
}

ExprId Grammar::Join(Graph graph) {
  Expr expr{.kind = ExprKind::kGraph, .index = static_cast<int32_t>(graphs_.size())};
  for (const Graph::State& state : graph.states) {
    for (const Graph::Edge& edge : state.edges) expr.kids.push_back(edge.label);
  }
  graphs_.push_back(std::move(graph));
  return Add(std::move(expr));
}

int32_t Grammar::AddRule(std::string name, bool may_inline) {
  rules_.push_back({std::move(name), -1, may_inline});
  return static_cast<int32_t>(rules_.size()) - 1;
}

ByteAutomaton TextWithout(std::string_view marker) {
  // Knuth, Morris and Pratt: the state is how much of the marker the text ends with. All bytes are
  // let through: tokens may hold parts of characters, and models write UTF-8.
  const size_t n = marker.size();
  std::vector<size_t> fail(n, 0);
  for (size_t i = 1, k = 0; i < n; ++i) {
    while (k > 0 && marker[i] != marker[k]) k = fail[k - 1];
    if (marker[i] == marker[k]) ++k;
    fail[i] = k;
  }
  ByteAutomaton out;
  // Text that ends with a beginning of the marker may go on to it, and may also end here.
  for (size_t i = 0; i < n; ++i) out.Add(true);
  for (size_t state = 0; state < n; ++state) {
    for (int byte = 0; byte < 256; ++byte) {
      size_t k = state;
      const char c = static_cast<char>(byte);
      while (k > 0 && marker[k] != c) k = fail[k - 1];
      if (marker[k] == c) ++k;
      if (k == n) continue;
      auto& edges = out.states[state].edges;
      const auto value = static_cast<uint8_t>(byte);
      if (!edges.empty() && edges.back().target == static_cast<int32_t>(k) &&
          edges.back().high + 1 == byte) {
        edges.back().high = value;
      } else {
        edges.push_back({value, value, static_cast<int32_t>(k)});
      }
    }
  }
  return out;
}

ByteAutomaton Intersect(const ByteAutomaton& a, const ByteAutomaton& b) {
  ByteAutomaton out;
  std::map<std::pair<int32_t, int32_t>, int32_t> ids;
  std::vector<std::pair<int32_t, int32_t>> pairs;
  auto state = [&](int32_t x, int32_t y) {
    const auto [it, fresh] = ids.try_emplace({x, y}, static_cast<int32_t>(pairs.size()));
    if (fresh) {
      pairs.emplace_back(x, y);
      out.Add(a.states[static_cast<size_t>(x)].final && b.states[static_cast<size_t>(y)].final);
    }
    return it->second;
  };
  state(0, 0);
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto [x, y] = pairs[i];
    for (const auto& p : a.states[static_cast<size_t>(x)].edges) {
      for (const auto& q : b.states[static_cast<size_t>(y)].edges) {
        const uint8_t low = std::max(p.low, q.low), high = std::min(p.high, q.high);
        if (low <= high) {
          const int32_t target = state(p.target, q.target);
          out.Connect(static_cast<int32_t>(i), low, high, target);
        }
      }
    }
  }
  return out;
}

}  // namespace terrace::grammar
