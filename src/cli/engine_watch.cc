#include "cli/engine_watch.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "base/clock.h"
#include "cli/signals.h"
#include "os/thread_usage.h"

namespace terrace::cli {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(250);
// The service manager hears of it at every such look.
constexpr int kNotifyEvery = 4;
// An engine without work is asked for a sign of life at every such look.
constexpr int kProbeEvery = 2;

}  // namespace

EngineWatch::EngineWatch(int64_t timeout_us, EngineWatchDeps deps)
    : timeout_us_(timeout_us), deps_(std::move(deps)) {
  deps_.link->Beat();  // from now on the supervisor need not be patient
  thread_ = std::thread([this] { Watch(); });
}

EngineWatch::~EngineWatch() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

server::Watchdog::Sample EngineWatch::Look(bool probe) const {
  server::Watchdog::Sample sample{.now_us = deps_.clock->NowUs()};
  bool fresh = true;
  const std::shared_ptr<const server::EngineReading> reading = deps_.view->Read(&fresh);
  sample.stale = !fresh;
  const scheduler::SchedulerState& queue = reading->queue;
  sample.last_step_us = std::max(queue.last_step_us, queue.probed_us);
  sample.waits = queue.parked;
  for (const scheduler::ModelQueueState& model : queue.models) {
    sample.has_work |= model.waiting + model.running > 0;
  }
  if (fresh && probe && !sample.has_work && !queue.probed) deps_.scheduler->Probe();
  sample.has_work |= queue.probed;
  const tier::TierSnapshot& tiers = reading->tiers;
  sample.pins = tiers.pins;
  sample.waits |= tiers.waiting > 0;
  sample.waits_for_store = tiers.waits_for_store;
  for (const tier::LinkState& link : tiers.links) sample.moved_bytes += link.bytes;
  const os::ThreadUsage engine = os::ReadThreadUsage("engine");
  sample.cpu_us = engine.cpu_us;
  sample.runnable = engine.runnable + engine.in_disk_sleep > 0;
  return sample;
}

void EngineWatch::Watch() {
  os::NameThisThread("watch");
  server::Watchdog watchdog(timeout_us_);
  for (int look = 0;; ++look) {
    const bool hung =
        watchdog.Look(Look(timeout_us_ > 0 && look % kProbeEvery == 0)) && timeout_us_ > 0;
    if (hung) return deps_.hung();
    deps_.link->Beat();
    if (look % kNotifyEvery == 0) NotifyManager("WATCHDOG=1");
    absl::MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kLook)) return;
  }
}

}  // namespace terrace::cli
