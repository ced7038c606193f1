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
  UseHistory history;        // of the model
  int64_t hot_until_us = 0;  // the model's hot_keep_time as a point in time
  // The segment belongs to the model that asks for room; `steps_ahead` is how many segments its
  // execution passes before it comes to this one again (cyclic).
  bool own = false;
  uint32_t steps_ahead = 0;
  double own_value = 0;  // before steps_ahead: what it is worth to keep (experts: recent use)
  double reload_us = 0;  // to bring it back, from the nearest tier that holds it
  // Its reload would end before execution comes to it, if the segments before it stay: the model's
  // head computes while this one loads.
  bool hidden = false;
  double link_busy = 0;     // share of the time, lately, in which the link it would come over was
  double sla_weight = 1.0;  // of the model
  double usual_rate = 0;    // UseHistory::UsualRate of the model, now
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
  // Sorts `candidates` so that the first is the best to evict. All policies agree on the floor:
  // other models' segments past their hot_keep_time, then those of hot models, then the asking
  // model's own (before hot ones if it cannot fit anyway); and on tails before heads.
  void Order(const EvictionRequest& request, std::vector<EvictionCandidate>& candidates) const;

 protected:
  // What it is worth to keep a segment of another model; the lowest goes first.
  virtual double Value(const EvictionRequest& request,
                       const EvictionCandidate& candidate) const = 0;
};

// "lru": the least recently used model. "lru-k": the model whose use before last is the longest ago
// (O'Neil et al. 1993, K = 2). "lfu": the model used least often, then least recently. "cost": the
// lowest rate of use x what its reload costs x SLA weight / bytes. InvalidArgument names them.
absl::StatusOr<std::unique_ptr<EvictionPolicy>> CreateEvictionPolicy(std::string_view name);

}  // namespace terrace::tier

#endif  // TERRACE_TIER_POLICY_H_
