#include "server/watchdog.h"

#include <algorithm>

namespace terrace::server {
namespace {

// Less than this share of the time on a processor is not computing: the kernel counts in ticks.
constexpr int64_t kIdleShare = 50;

}  // namespace

bool Watchdog::Look(const Sample& sample) {
  const bool had_work = before_.has_work || before_.stale;
  const bool has_work = sample.has_work || sample.stale;
  still_us_ += std::min(sample.now_us - before_.now_us, kMostGapUs);
  const bool progress = !seen_ || !has_work || !had_work ||
                        sample.last_step_us != last_.last_step_us || sample.pins != last_.pins ||
                        sample.moved_bytes != last_.moved_bytes ||
                        (sample.waits_for_store && !sample.stale);
  before_ = sample;
  if (progress) {
    seen_ = true;
    last_ = sample;
    still_us_ = 0;
    return false;
  }
  const bool computes = sample.runnable || sample.cpu_us - last_.cpu_us > still_us_ / kIdleShare;
  const bool waits = sample.waits && !sample.stale;
  return still_us_ >= timeout_us_ * (computes || waits ? kPatience : 1);
}

}  // namespace terrace::server
