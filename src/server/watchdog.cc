#include "server/watchdog.h"

namespace terrace::server {
namespace {

// Less than this share of the time on a processor is not computing: the kernel counts in ticks.
constexpr int64_t kIdleShare = 50;

}  // namespace

bool Watchdog::Look(const Sample& sample) {
  const bool progress = !seen_ || !sample.has_work || !before_.has_work ||
                        sample.last_step_us != last_.last_step_us || sample.pins != last_.pins ||
                        sample.moved_bytes != last_.moved_bytes;
  before_ = sample;
  if (progress) {
    seen_ = true;
    last_ = sample;
    return false;
  }
  const int64_t still_us = sample.now_us - last_.now_us;
  const bool computes = sample.runnable || sample.cpu_us - last_.cpu_us > still_us / kIdleShare;
  return still_us >= timeout_us_ * (computes || sample.waits ? kPatience : 1);
}

}  // namespace terrace::server
