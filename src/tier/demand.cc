// What is known of how models are used: requests, accesses, and how long a pass computes.
#include <algorithm>
#include <utility>

#include "tier/manager_impl.h"

namespace terrace::tier {

void TierManagerImpl::NoteRequest(ModelId id) {
  absl::MutexLock lock(&mutex_);
  Model* model = FindLocked(id);
  if (model != nullptr) model->history.Ask(clock_->NowUs(), clock_->WallUs());
}

void TierManagerImpl::TouchLocked(Model& model, uint32_t segment) {
  const int64_t now = clock_->NowUs();
  model.history.Touch(now, clock_->WallUs());
  model.segments[segment].last_used_us = now;
}

// The time from the first segment to the last while all are there: what the model computes in, and
// so how much loading its head could hide.
void TierManagerImpl::MeasurePassLocked(Model& model, uint32_t segment) {
  const int64_t now = clock_->NowUs();
  if (model.resident_bytes != model.bytes) {
    model.pass_began_us = -1;
  } else if (segment == 0) {
    model.pass_began_us = now;
  } else if (segment + 1 == model.segments.size() && model.pass_began_us >= 0) {
    constexpr double kWeight = 0.2;
    const double took_us = static_cast<double>(now - std::exchange(model.pass_began_us, -1));
    model.pass_us += (model.pass_us == 0 ? 1 : kWeight) * (took_us - model.pass_us);
  }
}

void TierManagerImpl::SetAtWork(ModelId id, bool at_work, LinkClass link_class) {
  absl::MutexLock lock(&mutex_);
  Model* model = FindLocked(id);
  if (model == nullptr) return;
  model->at_work = at_work;
  if (std::exchange(model->link_class, link_class) != link_class) {
    for (const auto& [number, load] : loads_) {
      if (load->model != model) continue;
      for (TransferQueue* queue : {&disk_, &source_, &copy_}) {
        queue->SetLinkClass(number, link_class);
      }
    }
  }
  if (!at_work) model->unreported = absl::OkStatus();
}

AwaitedStore Model::Awaited() const {
  if (loads_under_way == 0) return {};
  const bool any = std::any_of(segments.begin(), segments.end(), [](const Segment& segment) {
    return segment.load != nullptr && segment.load->active > 0;
  });
  return any ? spec.source->Awaited() : AwaitedStore{};
}

AwaitedStore TierManagerImpl::Awaited(ModelId id) const {
  absl::MutexLock lock(&mutex_);
  const Model* model = FindLocked(id);
  return model == nullptr ? AwaitedStore{} : model->Awaited();
}

double TierManagerImpl::UsualPassUsPerByteLocked() const {
  double us = 0, bytes = 0;
  for (const auto& [id, model] : models_) {
    if (model->pass_us == 0) continue;
    us += model->pass_us;
    bytes += static_cast<double>(model->bytes);
  }
  return bytes > 0 ? us / bytes : 0;
}

}  // namespace terrace::tier
