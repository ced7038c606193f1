#include "scheduler/late_cancels.h"

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace terrace::scheduler {

bool LateCancels::LockSoon(absl::Mutex* mutex) const {
  constexpr absl::Duration kPause = absl::Microseconds(200);
  constexpr int kTries = 250;
  for (int tries = some_.load() ? 1 : kTries; tries > 0; --tries) {
    if (mutex->TryLock()) return true;
    if (tries > 1) absl::SleepFor(kPause);
  }
  return false;
}

void LateCancels::Add(const std::string& id) {
  absl::MutexLock lock(&mutex_);
  ids_.push_back(id);
  some_.store(true);
}

std::vector<std::string> LateCancels::Take() {
  if (!some_.load()) return {};
  absl::MutexLock lock(&mutex_);
  some_.store(false);
  return std::exchange(ids_, {});
}

}  // namespace terrace::scheduler
