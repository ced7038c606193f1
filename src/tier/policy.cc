#include "tier/policy.h"

#include <algorithm>
#include <tuple>

#include <fmt/format.h>

namespace terrace::tier {
namespace {

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

// The least recently used model first and of it the tail first, so that the head, which hides the
// load of the rest, stays longest. Of the asking model's own segments the one whose turn is
// furthest away: execution is a cyclic scan, for which plain recency would evict exactly what comes
// next.
class Lru final : public EvictionPolicy {
 public:
  std::string_view name() const override { return "lru"; }

  void Order(const EvictionRequest& request,
             std::vector<EvictionCandidate>& candidates) const override {
    auto key = [&](const EvictionCandidate& c) {
      const int64_t recency = c.own ? 0 : c.model_last_used_us;
      const uint32_t reach = c.own ? c.steps_ahead : c.segment;
      return std::tuple(FloorRank(request, c), recency, c.model, ~reach);
    };
    std::sort(candidates.begin(), candidates.end(),
              [&](const auto& a, const auto& b) { return key(a) < key(b); });
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<EvictionPolicy>> CreateEvictionPolicy(std::string_view name) {
  if (name == "lru") return std::unique_ptr<EvictionPolicy>(std::make_unique<Lru>());
  return absl::InvalidArgumentError(fmt::format("unknown eviction policy '{}': use lru", name));
}

}  // namespace terrace::tier
