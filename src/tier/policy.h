// Which resident segments go down a tier first. Pure: a policy sees candidates and the time, holds
// no state and touches nothing, so that the simulator and a trace replay run the very same code.
#ifndef TERRACE_TIER_POLICY_H_
#define TERRACE_TIER_POLICY_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tier/types.h"

namespace terrace::tier {

// A segment that may be evicted: resident, not pinned, not leased.
struct EvictionCandidate {
  ModelId model = 0;
  uint32_t segment = 0;  // in execution order
  uint64_t bytes = 0;
  int64_t model_last_used_us = 0;
  int64_t hot_until_us = 0;  // the model's hot_keep_time as a point in time
  // The segment belongs to the model that asks for room; `steps_ahead` is how many segments its
  // execution passes before it comes to this one again (cyclic).
  bool own = false;
  uint32_t steps_ahead = 0;
};

struct EvictionRequest {
  int64_t now_us = 0;
  // The model that asks for room fits into the budget as a whole (with KV and workspace as they
  // are).
  bool own_model_fits = true;
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  virtual std::string_view name() const = 0;
  // Sorts `candidates` so that the first is the best to evict.
  virtual void Order(const EvictionRequest& request,
                     std::vector<EvictionCandidate>& candidates) const = 0;
};

// "lru". InvalidArgument names the known ones.
absl::StatusOr<std::unique_ptr<EvictionPolicy>> CreateEvictionPolicy(std::string_view name);

}  // namespace terrace::tier

#endif  // TERRACE_TIER_POLICY_H_
