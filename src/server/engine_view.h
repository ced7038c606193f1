// What the engine does, seen without waiting for it: its queue and its tiers are read on a thread
// of their own, so that who asks gets an answer in time also when the engine hangs with its locks
// held. Thread-safe.
#ifndef TERRACE_SERVER_ENGINE_VIEW_H_
#define TERRACE_SERVER_ENGINE_VIEW_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "scheduler/scheduler.h"
#include "tier/tier_manager.h"

namespace terrace {
class Clock;
}

namespace terrace::server {

struct EngineReading {
  scheduler::SchedulerState queue;
  tier::TierSnapshot tiers;
  int64_t began_us = 0;  // on the clock; 0: it has never been read
};

struct EngineViewDeps {
  const Clock* clock = nullptr;
  // These may wait for the engine's locks.
  std::function<scheduler::SchedulerState()> queue;
  std::function<tier::TierSnapshot()> tiers;
};

class EngineView {
 public:
  // How long a reader waits; many times what a reading takes.
  static constexpr int64_t kPatienceUs = 200'000;

  explicit EngineView(EngineViewDeps deps);  // the deps must outlive it
  ~EngineView();                             // waits for a reading under way
  EngineView(const EngineView&) = delete;
  EngineView& operator=(const EngineView&) = delete;

  // The state as of this call or later. If the engine lets nobody look for kPatienceUs, the last
  // one there was (`*fresh` false); while it goes on like that, at once.
  std::shared_ptr<const EngineReading> Read(bool* fresh = nullptr);
  scheduler::SchedulerState Queue() { return Read()->queue; }
  tier::TierSnapshot Tiers() { return Read()->tiers; }

  // Since when the last reading there is, is out of date: its age beyond kPatienceUs, else 0.
  int64_t StaleUs() const;

 private:
  void Run();

  const EngineViewDeps deps_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<const EngineReading> latest_ ABSL_GUARDED_BY(mutex_);
  uint64_t asked_ ABSL_GUARDED_BY(mutex_) = 0;  // readings are numbered by who asks first
  uint64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t reading_since_us_ ABSL_GUARDED_BY(mutex_) = 0;  // 0: none is under way
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace terrace::server

#endif  // TERRACE_SERVER_ENGINE_VIEW_H_
