// Weights that are loaded while streams of another model decode: who of the two is more urgent.
#include <algorithm>
#include <limits>
#include <utility>

#include "scheduler/model_queue.h"
#include "scheduler/step_work.h"

namespace terrace::scheduler {

bool LoadsAreUrgent(const ArbiterOptions& options, const View& view,
                    std::span<const int32_t> coming, int64_t now_us) {
  auto comes = [&](size_t i) {
    return std::find(coming.begin(), coming.end(), static_cast<int32_t>(i)) != coming.end();
  };
  int decoding = std::numeric_limits<int>::max();  // the best class of those at work
  for (size_t i = 0; i < view.models.size(); ++i) {
    if (comes(i) || view.models[i].running == 0) continue;
    decoding = std::min(decoding, static_cast<int>(view.models[i].running_sla));
  }
  for (const int32_t i : coming) {
    const ArbiterModel& model = view.models[static_cast<size_t>(i)];
    if (now_us - model.waiting_since_us >= options.max_wait_us) return true;
    if (model.running > 0 && static_cast<int>(model.running_sla) < decoding) return true;
  }
  for (size_t i = 0; i < view.queued.size(); ++i) {
    const auto model = static_cast<size_t>(view.queued[i].model);
    if (!comes(model)) continue;
    const int64_t waited_us = now_us - view.queued[i].waiting_since_us();
    if (Band(options, view.queued[i].sla, waited_us) < decoding) return true;
    // Its contract ends about when the load would, even at full speed.
    const int64_t deadline_us = view.waiting[i]->deadline_us();
    if (deadline_us > 0 && deadline_us - now_us < 2 * view.models[model].load_us) return true;
  }
  return false;
}

int64_t ComputedUs(const ModelQueue& queue, const StepWork& work, int64_t took_us) {
  double us = queue.budget.AloneUs(work.decode_rows);
  bool known = work.decode_rows == 0 || us > 0;
  for (size_t i = 0; i < work.entries.size(); ++i) {
    if (!work.is_prompt(i)) continue;
    const double row_us = queue.budget.RowUs(work.depths[i]);
    known &= row_us > 0;
    us += row_us * static_cast<double>(work.entries[i].tokens.size());
  }
  if (known) return std::min(took_us, static_cast<int64_t>(us));
  return queue.missing_bytes > 0 ? 0 : took_us;
}

void TellAtWork(ModelQueue* queue, int band, tier::TierManager* manager) {
  if (std::exchange(queue->told_band, band) == band) return;
  const bool at_work = band < kNoBand;
  manager->SetAtWork(queue->model->weights().tier_id(), at_work,
                     at_work ? static_cast<tier::LinkClass>(band) : tier::LinkClass::kStandard);
}

void AnnounceStep(const ModelQueue& queue, const StepWork& work, tier::TierManager* manager) {
  if (work.decode_rows == 0 && !work.realtime) {
    manager->StepsPause();
    return;
  }
  const bool plain = work.prompt_rows == 0 && !work.guesses;
  manager->StepBegins({.model = queue.model->weights().tier_id(),
                       .rows = plain ? work.decode_rows : 0,
                       .gives_way = work.loads_are_urgent,
                       .hurries = work.realtime});
}

}  // namespace terrace::scheduler
