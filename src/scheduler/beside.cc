// Weights that are loaded while streams of another model decode: who of the two is more urgent.
#include <algorithm>
#include <limits>

#include "base/clock.h"
#include "scheduler/scheduler_impl.h"

namespace terrace::scheduler {

bool SchedulerImpl::LoadsAreUrgentLocked(const View& view, std::span<const int32_t> coming,
                                         int64_t now_us) const {
  auto comes = [&](size_t i) {
    return std::find(coming.begin(), coming.end(), static_cast<int32_t>(i)) != coming.end();
  };
  int decoding = std::numeric_limits<int>::max();  // the best band of those at work
  for (size_t i = 0; i < view.names.size(); ++i) {
    if (comes(i)) continue;
    for (const auto& live : queues_.at(*view.names[i])->running) {
      if (live->can_step()) decoding = std::min(decoding, BandOf(*live, now_us));
    }
  }
  for (size_t i = 0; i < view.names.size(); ++i) {
    if (!comes(i)) continue;
    if (now_us - view.models[i].waiting_since_us >= options_.max_wait_us) return true;
    for (const auto& live : queues_.at(*view.names[i])->running) {
      if (BandOf(*live, now_us) < decoding) return true;
    }
  }
  for (size_t i = 0; i < view.queued.size(); ++i) {
    const auto model = static_cast<size_t>(view.queued[i].model);
    const LiveRequest& live = *view.waiting[i];
    if (!comes(model)) continue;
    if (BandOf(live, now_us) < decoding) return true;
    // Its contract ends about when the load would, even at full speed.
    const int64_t deadline_us = DeadlineUs(live);
    if (deadline_us > 0 && deadline_us - now_us < 2 * view.models[model].load_us) return true;
  }
  return false;
}

void SchedulerImpl::AnnounceStep(const ModelQueue& queue, const StepWork& work) {
  if (work.decode_rows == 0) {
    engine_->manager()->StepsPause();
    return;
  }
  const bool plain = work.prompt_rows == 0 && !work.guesses;
  engine_->manager()->StepBegins({.model = queue.model->weights().tier_id(),
                                  .rows = plain ? work.decode_rows : 0,
                                  .gives_way = work.loads_are_urgent});
}

}  // namespace terrace::scheduler
