// Cancellations that could not be carried out at once, because the scheduler's lock was not to be
// had: the engine hangs with it, or does not look like going on. Thread-safe.
#ifndef TERRACE_SCHEDULER_LATE_CANCELS_H_
#define TERRACE_SCHEDULER_LATE_CANCELS_H_

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace terrace::scheduler {

class LateCancels {
 public:
  // Locks `mutex` within some 50 ms, many times what anyone should hold it; at once or not at all
  // while earlier ones wait here.
  bool LockSoon(absl::Mutex* mutex) const ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true, mutex);
  void Add(const std::string& id);
  // Takes what there is.
  std::vector<std::string> Take();

 private:
  std::atomic<bool> some_{false};
  absl::Mutex mutex_;
  std::vector<std::string> ids_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace::scheduler

#endif  // TERRACE_SCHEDULER_LATE_CANCELS_H_
