// One model's requests, waiting and running, and what has been measured of it. Plain data of the
// scheduler, guarded by its lock.
#ifndef TERRACE_SCHEDULER_MODEL_QUEUE_H_
#define TERRACE_SCHEDULER_MODEL_QUEUE_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "engine/engine.h"
#include "scheduler/arbiter.h"
#include "scheduler/live_request.h"
#include "scheduler/step_budget.h"

namespace terrace::scheduler {

// Tokens of growth booked beyond the prompt when a request is admitted; more is taken as it comes,
// and the youngest request gives way if it cannot be had.
inline constexpr int32_t kBookedGrowth = 256;
// Rows that a step may have however little memory there is.
inline constexpr int32_t kLeastStepRows = 16;

// Steps don't wait for a store beyond this machine that has given nothing for longer.
inline constexpr int64_t kMostSilenceUs = 1'000'000;

// One model and its requests.
struct ModelQueue {
  ModelQueue(const StepBudget& step_budget, int32_t most_tokens)
      : budget(step_budget), most_kv_tokens(most_tokens) {}

  std::shared_ptr<engine::EngineModel> model;
  std::deque<std::unique_ptr<LiveRequest>> waiting;
  std::vector<std::unique_ptr<LiveRequest>> running;  // oldest first
  int64_t waiting_since_us = 0;
  size_t names = 0;  // that requests know it by
  StepBudget budget;
  int32_t most_kv_tokens;           // whose KV a sequence holds at any time; what its window leaves
  double prefill_tokens_per_s = 0;  // moving average; 0: not known yet
  int64_t load_us = 0;              // that its requests waited for weights; moving average
  uint64_t missing_bytes = 0;       // of its weights, when it was last looked at with work
  int64_t came_us = 0;              // when some of them came last
  bool was_away = false;            // some were missing while another model had the turn
  bool stuck = false;               // as ArbiterModel::stuck; until none is missing
  double return_us = 0;             // as ArbiterModel::return_us; moving average
  int64_t realtime_us = 0;          // when a realtime request was there last; 0: never
  bool kept = false;                // its weights stay for the next realtime request
  int32_t admissible = 0;           // of the front of `waiting`
  int told_band = kNoBand;          // to the tier manager, of its requests

  // A request comes, and there was no work.
  void NoteReturn(int64_t now_us) {
    constexpr double kWeight = 0.3;
    // Longer is no news: so that a few quick ones tell soon that the pace has changed.
    constexpr double kMostUs = 200'000;
    if (waiting_since_us > 0) {  // the end of its last step
      const double pause_us =
          std::clamp(static_cast<double>(now_us - waiting_since_us), 1.0, kMostUs);
      return_us += (return_us == 0 ? 1 : kWeight) * (pause_us - return_us);
    }
    waiting_since_us = now_us;
  }
  bool has_work() const { return !waiting.empty() || !running.empty(); }
  bool has_requests(const std::string& name) const {
    const auto is_for = [&](const auto& live) { return live->request->model == name; };
    return std::any_of(waiting.begin(), waiting.end(), is_for) ||
           std::any_of(running.begin(), running.end(), is_for);
  }
  // Bytes of the adapters that running requests use, and `live`.
  uint64_t AdapterBytes(const LiveRequest& live) const {
    std::vector<const engine::Adapter*> used;
    auto add = [&](const LiveRequest& each) {
      const engine::Adapter* adapter = each.adapter.get();
      if (adapter != nullptr && std::find(used.begin(), used.end(), adapter) == used.end()) {
        used.push_back(adapter);
      }
    };
    for (const auto& each : running) add(*each);
    add(live);
    uint64_t bytes = 0;
    for (const engine::Adapter* adapter : used) bytes += adapter->weights().total_bytes();
    return bytes;
  }
  // What a request may come to before anyone is asked to give way. What it has in common with one
  // that was running before it is booked there.
  uint64_t BookedBytes(const LiveRequest& live) const {
    const auto tokens = static_cast<int32_t>(live.tokens.size());
    const int32_t held =
        live.kv ? static_cast<int32_t>(live.kv->held_blocks()) * kv::kBlockTokens : 0;
    const int32_t booked = std::min({live.token_limit, tokens + kBookedGrowth, most_kv_tokens});
    const uint64_t bytes = model->KvBytes(std::max(held, booked));
    return bytes - std::min(bytes, model->KvBytes(live.alike));
  }
  // KV that a running request holds or takes in its next step, but for what it has in common.
  uint64_t TakenBytes(const LiveRequest& live) const {
    const auto tokens = static_cast<int32_t>(live.tokens.size()) + 1;
    const uint64_t held = model->KvBytes(std::min(tokens, most_kv_tokens));
    return held - std::min(held, model->KvBytes(live.alike));
  }
  uint64_t booked_kv_bytes() const {
    uint64_t bytes = 0;
    for (const auto& live : running) bytes += BookedBytes(*live);
    return bytes;
  }
  // What the rest of its prompt takes to compute, by what rows cost lately.
  double PromptUs(const LiveRequest& live) const {
    const int32_t begun = live.kv ? live.kv->length() : 0;
    const int32_t left = static_cast<int32_t>(live.tokens.size()) - begun;
    return left < 2 ? 0 : left * budget.RowUs(begun + left / 2.0);
  }
  // Seconds to compute one KV block's tokens; 0: not known yet.
  double BlockSeconds() const {
    return prefill_tokens_per_s > 0 ? kv::kBlockTokens / prefill_tokens_per_s : 0;
  }
};

}  // namespace terrace::scheduler

#endif  // TERRACE_SCHEDULER_MODEL_QUEUE_H_
