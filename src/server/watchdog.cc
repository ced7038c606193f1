#include "server/watchdog.h"

namespace terrace::server {

bool Watchdog::Look(const Sample& sample) {
  const bool progress = !seen_ || !sample.has_work || !before_.has_work ||
                        sample.last_step_us != last_.last_step_us ||
                        sample.moved_bytes != last_.moved_bytes;
  before_ = sample;
  if (progress) {
    seen_ = true;
    last_ = sample;
    return false;
  }
  const int64_t still_us = sample.now_us - last_.now_us;
  const bool computes = sample.cpu_us - last_.cpu_us >= still_us / 2;
  return still_us >= timeout_us_ * (computes ? kComputePatience : 1);
}

}  // namespace terrace::server
