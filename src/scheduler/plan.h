// What runs next: a pure function of a snapshot, so that the simulator, `terrace replay` and tests
// can run the very decision that the server makes.
//
// Models whose weights and KV fit the budget together take turns by step. Otherwise one model has
// the turn: it keeps it while it has work and nobody else has waited too long, so that each load
// serves as many requests as it can (no A-B-A thrash) and no model starves.
#ifndef TERRACE_SCHEDULER_PLAN_H_
#define TERRACE_SCHEDULER_PLAN_H_

#include <cstdint>
#include <span>

namespace terrace::scheduler {

// One model with work, as the decision sees it.
struct ModelView {
  int32_t waiting = 0;           // requests not yet admitted
  int32_t running = 0;           // sequences admitted
  int64_t waiting_since_us = 0;  // since when it has had work without a step
  uint64_t weight_bytes = 0;
  uint64_t kv_bytes = 0;  // of its running sequences
};

struct PlanOptions {
  // A model with work gets the turn after this long, or after twice as long where that takes the KV
  // of running sequences away.
  int64_t max_wait_us = 2'000'000;
  // A model that just ran out of work keeps the turn this long: its client's next request is often
  // on its way, and a switch costs more.
  int64_t linger_us = 20'000;
};

struct PlanInput {
  int64_t now_us = 0;
  uint64_t budget_bytes = 0;          // for weights and KV
  int32_t current = -1;               // index of the model that has the turn; -1: none
  int64_t last_work_us = 0;           // when the current model last did a step
  std::span<const ModelView> models;  // every model, also those without work
};

struct PlanDecision {
  int32_t model = -1;    // to run a step of; -1: nothing to do now
  bool admit = true;     // whether it may take in waiting requests
  int64_t wait_us = -1;  // with model -1: look again after this long; -1: when something arrives
};

PlanDecision Plan(const PlanOptions& options, const PlanInput& input);

}  // namespace terrace::scheduler

#endif  // TERRACE_SCHEDULER_PLAN_H_
