// The arbiter's decision: which model runs next, and which waiting requests it takes in, in which
// order. A pure function of a snapshot, so that the simulator and a replay of a trace can run the
// very decision that the server makes. O(requests + models), with no allocation but the result's.
//
// The rules, in order:
// - SLA classes are strict bands: a waiting realtime request comes before any standard one. Each
//   `aging_us` of waiting lifts a request by one band, so that nothing starves.
// - Models whose weights and KV fit the budget together take turns by step. One whose weights are
//   still on their way has its turn once they are near, so that nobody waits for another's load
//   (ArbiterDecision::load). Else one model has the
//   turn and keeps it while it has work, at least `min_residency_us`, until another's best request
//   is in a better band, or one has waited `max_wait_us`; so each load serves as many requests as
//   it can, and A-B-A-C thrash is bounded.
// - Beside the model that has the turn another one whose weights are there steps for requests of a
//   better class, realtime ones in any case, if both fit; the turn is not lost by that, so that it
//   brings no load with it (ArbiterDecision::aside). A third one that has waited for twice
//   `max_wait_us` takes the turn all the same.
// - A realtime request that waits is taken in before anyone else steps, unless somebody who does
//   not give way has had no step for `aside_most_us`.
// - Among the others the next is the one of the best band; within a band, the highest of
//   qps_weight x (waiting requests per second of loading) + latency_weight x (longest wait), each
//   as a share of the largest among the candidates.
// - A model whose requests all give way (ArbiterModel::held) has no turn among models that fit.
// - A model takes in requests by band, then the tenant that has been served least for its weight,
//   then arrival. Tenants at their limit of running requests wait.
#ifndef TERRACE_SCHEDULER_ARBITER_H_
#define TERRACE_SCHEDULER_ARBITER_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "request/request.h"

namespace terrace::scheduler {

struct ArbiterOptions {
  int64_t max_wait_us = 2'000'000;
  // A model that just ran out of work keeps the turn this long, unless its requests usually come
  // later: its client's next one is often on its way, and a switch costs more.
  int64_t linger_us = 20'000;
  int64_t min_residency_us = 0;
  // Of models that fit together, one steps once the weights that it misses come within this time:
  // while others have work, and while none has. The rest of the load then hides behind the step's
  // computing, and whoever comes meanwhile waits no longer than this.
  int64_t load_beside_us = 20'000;
  int64_t load_alone_us = 1'000'000;
  // Who has the turn steps at least this often while others step beside it for better classes.
  int64_t aside_most_us = 500'000;
  int64_t aging_us = 30'000'000;  // 0: never
  double qps_weight = 0.7;
  double latency_weight = 0.3;
  int32_t max_batch = 16;      // running requests of one model, of a class and those better
  int32_t tenant_running = 0;  // running requests of one tenant; 0: no limit
};

// A waiting request.
struct QueuedView {
  int32_t model = 0;   // index
  int32_t tenant = 0;  // index
  SlaClass sla = SlaClass::kStandard;
  int64_t arrived_us = 0;
  int64_t stepped_us = 0;  // the end of its last step, of one that gave way; aging begins anew then
  int64_t waiting_since_us() const { return std::max(arrived_us, stepped_us); }
};

struct ArbiterModel {
  int32_t running = 0;
  SlaClass running_sla = SlaClass::kBatch;  // the best of what runs
  int64_t waiting_since_us = 0;             // since when it has had work without a step
  uint64_t weight_bytes = 0;
  uint64_t kv_bytes = 0;  // of its running requests
  int64_t load_us = 0;    // to bring the weights that are missing
  // They do not come by themselves: there is no room, or nothing has come for a while. A step asks
  // for each of them in earnest.
  bool stuck = false;
  // They come from a store that is silent: no turn until it gives something or fails, as all would
  // wait with it.
  bool silent = false;
  // From its running out of work to its next request, usually; 0: not known yet.
  double return_us = 0;
  // All of its requests give way now (see shares.h): no turn while another has work.
  bool held = false;
  // Of `running`: those of a worse class than realtime, and than standard. They take no places from
  // better ones.
  std::array<int32_t, 2> worse_than = {};
};

struct ArbiterTenant {
  double served = 0;  // tokens
  double weight = 1;  // > 0: its share
  int32_t running = 0;
  int32_t limit = 0;  // of `running`; 0: ArbiterOptions::tenant_running
};

struct ArbiterInput {
  int64_t now_us = 0;
  uint64_t budget_bytes = 0;  // for weights and KV
  int32_t current = -1;       // index of the model that has the turn; -1: none
  int64_t turn_since_us = 0;  // since when
  int64_t turn_first_us = 0;  // when its first token of this turn came; 0: not yet
  int64_t last_work_us = 0;   // when it last did a step
  std::span<const ArbiterModel> models;
  std::span<const QueuedView> queued;
  std::span<const ArbiterTenant> tenants;
};

struct ArbiterDecision {
  int32_t model = -1;          // to run a step of; -1: nothing to do now
  bool aside = false;          // it steps beside the model that has the turn, which keeps it
  bool admit = true;           // whether it may take in waiting requests
  int64_t wait_us = -1;        // with model -1: look again after this long; -1: on a change
  std::vector<int32_t> load;   // models with work whose weights are to come meanwhile
  std::vector<int32_t> order;  // indices of `queued` to take in, as many as the batch has room for
};

ArbiterDecision Arbitrate(const ArbiterOptions& options, const ArbiterInput& input);

// Behind all bands.
inline constexpr int kNoBand = 3;

// 0 (realtime) to 2 (batch) after aging.
int Band(const ArbiterOptions& options, SlaClass sla, int64_t waited_us);

}  // namespace terrace::scheduler

#endif  // TERRACE_SCHEDULER_ARBITER_H_
