#include "tier/policy.h"

#include <algorithm>
#include <tuple>

#include <fmt/format.h>

namespace terrace::tier {
namespace {

// A segment whose reload hides behind the head's computing costs no time of its own, and on an idle
// link next to nothing.
constexpr double kHiddenCost = 0.1;

// What a segment's reload costs all who use the link, as a share of what it costs where nothing
// hides it. On a link that is busy for a share u of the time whatever moves delays u / (1 - u)
// others by as much (a single queue: those who come until it runs empty). Hidden, that is all it
// costs; else its own wait comes on top: u / (1 - u) of 1 + u / (1 - u) is u.
double CostShare(const EvictionCandidate& candidate) {
  if (!candidate.hidden) return 1;
  return std::clamp(candidate.link_busy, kHiddenCost, 1.0);
}

// What goes first, whatever the policy's own measure says:
//   0  other models past their hot_keep_time
//   1  other models still hot: the floor gives way when nothing else fits
//   2  the asking model's own segments
// A model that cannot fit as a whole has to stream anyway, so it uses its own segments before it
// disturbs a hot model.
int FloorRank(const EvictionRequest& request, const EvictionCandidate& candidate) {
  if (candidate.own) return request.own_model_fits ? 2 : 1;
  if (candidate.hot_until_us <= request.now_us) return 0;
  return request.own_model_fits ? 1 : 2;
}

class Lru final : public EvictionPolicy {
 public:
  std::string_view name() const override { return "lru"; }

 protected:
  double Value(const EvictionRequest&, const EvictionCandidate& candidate) const override {
    return static_cast<double>(candidate.history.last_us);
  }
};

class LruK final : public EvictionPolicy {
 public:
  std::string_view name() const override { return "lru-k"; }

 protected:
  double Value(const EvictionRequest&, const EvictionCandidate& candidate) const override {
    // Used once: its second-to-last use lies infinitely far back. Among such the oldest goes first.
    const UseHistory& history = candidate.history;
    if (history.uses < 2) return static_cast<double>(history.last_us) - 1e18;
    return static_cast<double>(history.previous_began_us);
  }
};

class Lfu final : public EvictionPolicy {
 public:
  std::string_view name() const override { return "lfu"; }

 protected:
  double Value(const EvictionRequest& request, const EvictionCandidate& candidate) const override {
    // Recency as a fraction below one decides between equal counts.
    const double age = static_cast<double>(request.now_us - candidate.history.last_us);
    return static_cast<double>(candidate.history.uses) + 1e6 / (1e6 + std::max(0.0, age) + 1);
  }
};

class Cost final : public EvictionPolicy {
 public:
  std::string_view name() const override { return "cost"; }

 protected:
  double Value(const EvictionRequest& request, const EvictionCandidate& candidate) const override {
    // What its absence would cost per time. The rate fades while nothing comes; a model used once
    // gets the benefit of its one use, and one that is usually asked for at this hour may come
    // although it has been still.
    const double rate =
        std::max(candidate.history.RecentRate(request.now_us), candidate.usual_rate);
    const double cost_us = candidate.reload_us * CostShare(candidate);
    // In single precision, in which the segments of one model are equal whatever their sizes.
    return static_cast<float>(rate * cost_us * candidate.sla_weight /
                              static_cast<double>(std::max<uint64_t>(1, candidate.bytes)));
  }
};

}  // namespace

// Of equal value the tail goes first, so that the head, which hides the load of the rest, stays
// longest. Of the asking model's own segments the one whose turn is furthest away goes first:
// execution is a cyclic scan, for which plain recency would evict exactly what comes next.
void EvictionPolicy::Order(const EvictionRequest& request,
                           std::vector<EvictionCandidate>& candidates) const {
  struct Ranked {
    std::tuple<int, double, ModelId, uint32_t> key;
    EvictionCandidate candidate;
  };
  std::vector<Ranked> ranked;
  ranked.reserve(candidates.size());
  for (const EvictionCandidate& c : candidates) {
    ranked.push_back({{FloorRank(request, c), c.own ? c.own_value : Value(request, c), c.model,
                       ~(c.own ? c.steps_ahead : c.segment)},
                      c});
  }
  std::sort(ranked.begin(), ranked.end(),
            [](const Ranked& a, const Ranked& b) { return a.key < b.key; });
  for (size_t i = 0; i < ranked.size(); ++i) candidates[i] = ranked[i].candidate;
}

absl::StatusOr<std::unique_ptr<EvictionPolicy>> CreateEvictionPolicy(std::string_view name) {
  if (name == "lru") return std::unique_ptr<EvictionPolicy>(std::make_unique<Lru>());
  if (name == "lru-k") return std::unique_ptr<EvictionPolicy>(std::make_unique<LruK>());
  if (name == "lfu") return std::unique_ptr<EvictionPolicy>(std::make_unique<Lfu>());
  if (name == "cost") return std::unique_ptr<EvictionPolicy>(std::make_unique<Cost>());
  return absl::InvalidArgumentError(
      fmt::format("unknown eviction policy '{}': use lru, lru-k, lfu or cost", name));
}

}  // namespace terrace::tier
