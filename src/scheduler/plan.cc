#include "scheduler/plan.h"

#include <algorithm>

namespace terrace::scheduler {
namespace {

bool HasWork(const ModelView& model) { return model.waiting > 0 || model.running > 0; }

// The model with work, other than `except`, that has waited longest; -1 if there is none.
int32_t LongestWaiting(std::span<const ModelView> models, int32_t except) {
  int32_t best = -1;
  for (size_t i = 0; i < models.size(); ++i) {
    if (static_cast<int32_t>(i) == except || !HasWork(models[i])) continue;
    if (best < 0 ||
        models[i].waiting_since_us < models[static_cast<size_t>(best)].waiting_since_us) {
      best = static_cast<int32_t>(i);
    }
  }
  return best;
}

}  // namespace

PlanDecision Plan(const PlanOptions& options, const PlanInput& input) {
  PlanDecision decision;
  uint64_t kv_bytes = 0;
  uint64_t weight_bytes = 0;
  for (size_t i = 0; i < input.models.size(); ++i) {
    const ModelView& model = input.models[i];
    kv_bytes += model.kv_bytes;
    // The current model's weights are there even when its work has just ended.
    const bool current = static_cast<int32_t>(i) == input.current;
    if (current || HasWork(model)) weight_bytes += model.weight_bytes;
  }
  const int32_t other = LongestWaiting(input.models, input.current);
  const bool has_current =
      input.current >= 0 && static_cast<size_t>(input.current) < input.models.size();
  if (!has_current) {
    decision.model = other;
    return decision;
  }
  const ModelView& current = input.models[static_cast<size_t>(input.current)];
  if (other < 0) {
    decision.model = HasWork(current) ? input.current : -1;
    return decision;
  }
  const ModelView& next = input.models[static_cast<size_t>(other)];
  const bool together = weight_bytes + kv_bytes <= input.budget_bytes;
  if (together) {
    // The one that has waited longest is the next in the round.
    decision.model = other;
    return decision;
  }
  const bool overdue = input.now_us - next.waiting_since_us >= options.max_wait_us;
  if (!HasWork(current)) {
    const int64_t linger_left = input.last_work_us + options.linger_us - input.now_us;
    if (!overdue && linger_left > 0) {
      decision.wait_us = linger_left;
      return decision;
    }
    decision.model = other;
    return decision;
  }
  if (!overdue) {
    decision.model = input.current;
    return decision;
  }
  // The other's turn has come. Running sequences pause with their KV kept if there is room for it
  // beside the other's weights; else they run to their end and nobody new joins them. If that takes
  // too long, they give way: their KV moves down or is dropped as the other needs the room.
  const bool too_long = input.now_us - next.waiting_since_us >= 2 * options.max_wait_us;
  if (too_long || current.running == 0 || kv_bytes + next.weight_bytes <= input.budget_bytes) {
    decision.model = other;
  } else {
    decision.model = input.current;
    decision.admit = false;
  }
  return decision;
}

}  // namespace terrace::scheduler
