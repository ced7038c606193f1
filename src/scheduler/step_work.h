// What the scheduler's thread hands from one part of it to the next. Plain data, of one decision.
#ifndef TERRACE_SCHEDULER_STEP_WORK_H_
#define TERRACE_SCHEDULER_STEP_WORK_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "scheduler/arbiter.h"
#include "scheduler/live_request.h"

namespace terrace::scheduler {

struct ModelQueue;

// A name that requests may ask for: a model, or an adapter of one.
struct ServedName {
  ModelQueue* queue = nullptr;
  std::shared_ptr<const engine::Adapter> adapter;  // null: the model itself
  bool removed = false;                            // its last requests are waited for
};

// What a step computes: entry i is of request i.
struct StepWork {
  std::vector<LiveRequest*> requests;
  std::vector<engine::StepEntry> entries;
  int32_t decode_rows = 0;
  int32_t prompt_rows = 0;
  bool loads_are_urgent = false;
  bool guesses = false;
  bool others = false;    // requests that give way to none are at work, here or elsewhere
  bool favoured = false;  // some of them are in this step
  bool guests = false;    // requests that give way to others are in it
};

// What the arbiter decides on.
struct View {
  std::vector<ArbiterModel> models;
  std::vector<const std::string*> names;  // of `models`
  std::vector<QueuedView> queued;
  std::vector<LiveRequest*> waiting;  // as `queued`
  std::vector<ArbiterTenant> tenants;
  int32_t current = -1;
  int64_t deadline_us = 0;  // the first at which a waiting request gives up; 0: none
};

// Whether one of the coming models is waited for by somebody more urgent than those whose streams
// decode, by somebody whose contract ends, or for long enough.
bool LoadsAreUrgent(const ArbiterOptions& options, const View& view,
                    std::span<const int32_t> coming, int64_t now_us);

// Tells the tier manager that a step begins.
void AnnounceStep(const ModelQueue& queue, const StepWork& work, tier::TierManager* manager);

}  // namespace terrace::scheduler

#endif  // TERRACE_SCHEDULER_STEP_WORK_H_
