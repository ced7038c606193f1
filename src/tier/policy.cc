#include "tier/policy.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include <fmt/format.h>

namespace terrace::tier {
namespace {

// The horizon within which the `cost` policy asks whether a model will be used.
constexpr double kHorizonUs = 60e6;
// A segment whose reload hides behind the head's computing costs no time, only link.
constexpr double kHiddenCost = 0.1;

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
    // A Poisson rate that fades while nothing comes; a model used once gets the benefit of its one
    // use, and one that is usually asked for at this hour may come although it has been still.
    const double rate =
        std::max(candidate.history.RecentRate(request.now_us), candidate.usual_rate);
    const double likely = 1 - std::exp(-rate * kHorizonUs);
    const double cost_us = candidate.reload_us * (candidate.hidden ? kHiddenCost : 1);
    // In single precision, in which the segments of one model are equal whatever their sizes.
    return static_cast<float>(likely * cost_us * candidate.sla_weight /
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
