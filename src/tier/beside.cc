// Loads while streams of other models decode: which transfers have to wait, and for how long they
// did.
#include <algorithm>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "tier/manager_impl.h"

namespace terrace::tier {
std::optional<Transfer> TierManagerImpl::StartLocked(TransferQueue& queue) {
  const bool hold = &queue != &source_ && brake_.Holds(clock_->NowUs());
  if (hold && queue.bulk_waiting() > 0) brake_.Held();
  if (&queue == &disk_) disk_.Expect(static_cast<size_t>(coming_.bytes() / kMaxBlockBytes));
  std::optional<Transfer> transfer = queue.Start(hold);
  if (transfer.has_value() && (&queue == &disk_ || transfer->bulk)) {
    brake_.Started(transfer->bytes, transfer->bulk && transfer->priority != Priority::kDemand);
  }
  return transfer;
}

void TierManagerImpl::EndedLocked(TransferQueue& queue, const Transfer& transfer, bool moved) {
  queue.Finish(transfer, moved);
  if (&queue == &disk_ || transfer.bulk) brake_.Ended(transfer.bytes, moved);
}

void TierManagerImpl::StepBegins(const ComputeStep& step) {
  {
    absl::MutexLock lock(&mutex_);
    brake_.Begin(step, clock_->NowUs());
    const Model* model = FindLocked(step.model);
    // Its own weights still come, over the same link: nothing is gained by holding others back.
    if (model == nullptr || model->resident_bytes != model->bytes) brake_.Lift();
  }
  Pump();
}

void TierManagerImpl::StepEnds(int64_t busy_us) {
  absl::MutexLock lock(&mutex_);
  const int64_t now = clock_->NowUs();
  brake_.End(busy_us, now);
  if (brake_.held()) NoteHeldLocked(now);
}

void TierManagerImpl::StepsPause() {
  {
    absl::MutexLock lock(&mutex_);
    if (brake_.paused()) return;
    brake_.Pause();
  }
  Pump();
}

bool TierManagerImpl::CancelHeldLocked() {
  if (!brake_.held()) return false;
  std::vector<std::shared_ptr<Load>> held;
  for (const auto& [id, load] : loads_) {
    if (load->waiters == 0 && load->active == 0 && load->fills_host) held.push_back(load);
  }
  for (const auto& load : held) CancelLoadLocked(*load);
  return !held.empty();
}

void TierManagerImpl::NoteHeldLocked(int64_t now_us) {
  const Model* by = FindLocked(brake_.step().model);
  if (by == nullptr) return;
  std::set<const Model*> held;
  for (const auto& [id, load] : loads_) {
    if (load->waiters == 0 && load->model != by && !load->cancel.cancelled) {
      held.insert(load->model);
    }
  }
  for (const Model* model : held) {
    held_us_[{model->spec.name, by->spec.name}] += now_us - brake_.began_us();
  }
}

void TierManagerImpl::TellHeldLocked(TierSnapshot* snapshot) const {
  for (const auto& [names, us] : held_us_) {
    snapshot->held_loads.push_back({names.first, names.second, us});
  }
  snapshot->load_limit_bytes_per_s = brake_.bytes_per_s(clock_->NowUs());
}

}  // namespace terrace::tier
