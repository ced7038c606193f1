// The arbiter's loop: queues requests by model, decides what runs next (`Plan`, a pure function),
// and carries that out on the engine, one step at a time, on a thread of its own.
//
// Thread-safe. Sinks are called on the scheduler's thread, without any of its locks held: they may
// call Submit, Cancel and State.
#ifndef TERRACE_SCHEDULER_SCHEDULER_H_
#define TERRACE_SCHEDULER_SCHEDULER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "request/request.h"

namespace terrace {
class Clock;
class Metrics;
}  // namespace terrace
namespace terrace::engine {
class Adapter;
class Engine;
class EngineModel;
}  // namespace terrace::engine

namespace terrace::kv {
class Cache;
}

namespace terrace::scheduler {

// What a tenant may have.
struct TenantTerms {
  double share = 1;           // of computing when several want it; above 0
  uint64_t memory_bytes = 0;  // of device memory for its KV; 0: no quota
  int32_t running = 0;        // requests at once; 0: SchedulerOptions::tenant_running
  double compute = 1;         // of the engine's time at most, 0 to 1; 1: no limit
};
// By name; those that are not named have the defaults.
using TenantTable = std::map<std::string, TenantTerms, std::less<>>;

struct SchedulerOptions {
  int32_t max_queue = 1024;   // requests waiting; one more is refused
  int32_t max_batch = 16;     // sequences of one model in a step
  int32_t step_tokens = 512;  // rows of one step; longer prompts are prefilled in chunks
  // How much longer than its decoding streams alone a step with prompt rows may take, which bounds
  // the gaps between their tokens; 0: prompts always fill the step.
  double stretch = 1.7;
  int64_t max_wait_us = 2'000'000;  // a waiting model gets its turn after this long
  int64_t min_residency_us = 0;     // and the five below: see ArbiterOptions
  int64_t aging_us = 30'000'000;
  double qps_weight = 0.7;
  double latency_weight = 0.3;
  int32_t tenant_running = 0;
  TenantTable tenants;
  uint64_t seed = 0;  // of the seeds drawn for requests that bring none
  // Shares KV between requests and keeps it afterwards; null: each request computes all of its own.
  // Must outlive the scheduler.
  kv::Cache* cache = nullptr;
};

struct ModelQueueState {
  std::string model;
  int32_t waiting = 0;
  int32_t running = 0;
};

struct TenantQueueState {
  std::string tenant;
  int32_t waiting = 0;
  int32_t running = 0;
  double computed_us = 0;  // lately: decays with ComputeShares::kMemoryUs
};

struct SchedulerState {
  bool draining = false;
  bool parked = false;  // its thread sleeps until something changes, and nothing has
  std::vector<ModelQueueState> models;
  std::vector<TenantQueueState> tenants;  // those with requests now
  int64_t oldest_wait_us = 0;             // of a waiting request; 0: none waits
  uint64_t prompt_tokens = 0;             // prefilled since start
  uint64_t generated_tokens = 0;          // since start
  uint64_t model_switches = 0;  // turns that went to a model of whose weights some had to come
  int64_t last_step_us = 0;     // clock time of the last finished step
  bool probed = false;          // Probe() waits for its answer
  int64_t probed_us = 0;        // clock time of its last one
};

class Scheduler {
 public:
  // `engine`, `clock` and `metrics` must outlive the scheduler.
  static std::unique_ptr<Scheduler> Create(const SchedulerOptions& options, engine::Engine* engine,
                                           const Clock* clock, Metrics* metrics);
  virtual ~Scheduler() = default;  // cancels everything and joins

  // Models may be added and removed while requests run; removal waits for the model's own requests
  // to end (cancel them first to be quick). An adapter is a model by its own name to requests; they
  // run in batches with those of its base and its other adapters, whose weights are the same
  // (`base` itself need not have been added). AlreadyExists for a name in use.
  virtual absl::Status AddModel(std::shared_ptr<engine::EngineModel> model) = 0;
  virtual absl::Status AddAdapter(std::shared_ptr<engine::EngineModel> base,
                                  std::shared_ptr<const engine::Adapter> adapter) = 0;
  virtual absl::Status RemoveModel(const std::string& name) = 0;

  // Takes over the request; its sink hears the rest. NotFound for an unknown model,
  // InvalidArgument for a prompt that does not fit the context, ResourceExhausted when the queue is
  // full or the memory budget could never hold it, Unavailable while draining: then the sink is not
  // called.
  virtual absl::Status Submit(std::unique_ptr<Request> request) = 0;

  // Ends a request within one step; its sink gets kCancelled. Unknown ids are ignored.
  virtual void Cancel(const std::string& request_id) = 0;

  // Refuses new requests and returns when those taken have ended, or after `timeout_us` (then
  // cancels the rest). True if all ended by themselves.
  virtual bool Drain(int64_t timeout_us) = 0;

  // Takes effect at the next decision; what tenants hold beyond a lower quota goes first.
  virtual void SetTenants(TenantTable tenants) = 0;

  virtual SchedulerState State() const = 0;

  // Asks for a sign of life: with nothing else to do, the engine's thread has all that compute do a
  // small piece of work, which State() tells. Returns at once, also when the engine hangs.
  virtual void Probe() = 0;
};

}  // namespace terrace::scheduler

#endif  // TERRACE_SCHEDULER_SCHEDULER_H_
