// What the scheduler's thread hands from one part of it to the next. Plain data, of one decision.
#ifndef TERRACE_SCHEDULER_STEP_WORK_H_
#define TERRACE_SCHEDULER_STEP_WORK_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
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

// For which newcomers a step under way may be given up.
enum class GiveUpFor : uint8_t { kNobody, kRealtime, kAnyone };

// What a step computes: entry i is of request i.
struct StepWork {
  std::vector<LiveRequest*> requests;
  std::vector<engine::StepEntry> entries;
  int32_t decode_rows = 0;
  int32_t prompt_rows = 0;
  bool loads_are_urgent = false;
  bool guesses = false;
  std::vector<int32_t> depths;  // by entry: the tokens before its rows
  bool others = false;          // requests that give way to none are at work, here or elsewhere
  bool favoured = false;        // some of them are in this step
  bool realtime = false;        // requests of the realtime class are in it
  bool guests = false;          // requests that give way to others are in it

  // Whether it may be given up for a newcomer and done again: not over and over, and KV on its way
  // is used when it comes.
  // `loading`: weights come while it runs, so that the next one like it has less to wait for.
  bool may_give_up(bool loading) const {
    constexpr int32_t kMostGivenUp = 3;
    return std::all_of(requests.begin(), requests.end(), [loading](const LiveRequest* live) {
      return (loading || live->given_up < kMostGivenUp) && live->early == 0;
    });
  }
  // For whom. Streams are stopped in the middle of a step for realtime requests only.
  GiveUpFor give_up_for(bool loading) const {
    if (guesses || !may_give_up(loading)) return GiveUpFor::kNobody;
    return decode_rows > 0 || loading ? GiveUpFor::kRealtime : GiveUpFor::kAnyone;
  }
  // When the first of its requests gives up that has not computed anything yet; 0: none does.
  int64_t weights_deadline_us() const {
    int64_t first_us = 0;
    for (const LiveRequest* live : requests) {
      const int64_t us = live->weights_deadline_us();
      if (us > 0 && (first_us == 0 || us < first_us)) first_us = us;
    }
    return first_us;
  }
  // A prompt is read in this entry, not just a stream's next token.
  bool is_prompt(size_t i) const {
    return entries[i].tokens.size() > 1 + static_cast<size_t>(entries[i].guessed);
  }
  // Tokens before the prompt rows, on average; -1: of some far more than of others, or no prompts.
  double depth() const {
    if (favoured && guests) return -1;
    double sum = 0;
    for (size_t i = 0; i < entries.size(); ++i) {
      if (is_prompt(i)) sum += static_cast<double>(entries[i].tokens.size()) * depths[i];
    }
    return prompt_rows > 0 ? sum / prompt_rows : -1;
  }
};

// When a model was given the turn, and when the first token of it came, or a request of it ended;
// 0: not yet.
struct Turn {
  int64_t since_us = 0, first_us = 0;
};

// Scheduler::Probe, counted: what was asked for, begun to be answered, and the last answered.
struct Probes {
  uint64_t asked = 0, begun = 0, answered = 0;
};

// Requests that have ended, as a decaying count.
struct EndRate {
  double recent = 0;
  int64_t first_us = 0;
  int64_t last_us = 0;
};

// Tokens served, by tenant, as of requests that have ended; the tenants at work at the last
// decision, and the least that one of those has been served.
struct TenantsServed {
  std::map<std::string, double> tokens;
  std::set<std::string, std::less<>> active;
  double least = 0;
};

// What the arbiter decides on.
struct View {
  std::vector<ArbiterModel> models;
  std::vector<const std::string*> names;  // of `models`
  std::vector<QueuedView> queued;
  std::vector<LiveRequest*> waiting;  // as `queued`
  std::vector<ArbiterTenant> tenants;
  std::map<std::string_view, int32_t> tenant_index;  // of `tenants`; names are the requests'
  int32_t current = -1;
  int64_t deadline_us = 0;  // the first at which a waiting request gives up; 0: none
  int64_t paused_us = -1;   // until the first of the tenants that may compute nothing now; -1: none
  struct Seen {
    int band = kNoBand;      // the best of its requests
    bool paused = false;     // it may compute nothing now
    double promised_us = 0;  // what its prompts will take
  };
  std::vector<Seen> seen;  // of `tenants`

  void NotePause(int64_t us) { paused_us = paused_us < 0 ? us : std::min(paused_us, us); }
  void NoteDeadline(int64_t us) {
    if (us > 0 && (deadline_us == 0 || us < deadline_us)) deadline_us = us;
  }
};

// Whether one of the coming models is waited for by somebody more urgent than those whose streams
// decode, by somebody whose contract ends, or for long enough.
bool LoadsAreUrgent(const ArbiterOptions& options, const View& view,
                    std::span<const int32_t> coming, int64_t now_us);

// The most that a step of which the end was not waited for can have computed of the `took_us` that
// it ran: the rest it waited for weights. By what its rows took lately; what is not known counts in
// full, unless weights were missing.
int64_t ComputedUs(const ModelQueue& queue, const StepWork& work, int64_t took_us);

// Tells the tier manager whether the model has work, and of which band (kNoBand: it has none).
void TellAtWork(ModelQueue* queue, int band, tier::TierManager* manager);

// Tells the tier manager that a step begins.
void AnnounceStep(const ModelQueue& queue, const StepWork& work, tier::TierManager* manager);

}  // namespace terrace::scheduler

#endif  // TERRACE_SCHEDULER_STEP_WORK_H_
