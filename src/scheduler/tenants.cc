// Tenants: who gives way to whom, and what they may hold.
#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "scheduler/scheduler_impl.h"

namespace terrace::scheduler {

void SchedulerImpl::SetTenants(TenantTable tenants) {
  absl::MutexLock lock(&mutex_);
  tier::TierManager& manager = *engine_->manager();
  for (const auto& [name, terms] : terms_) {
    if (terms.memory_bytes > 0) {
      manager.SetTenantQuota(name, std::numeric_limits<uint64_t>::max());
    }
  }
  terms_ = std::move(tenants);
  std::map<std::string, double, std::less<>> weights, limits;
  for (const auto& [name, terms] : terms_) {
    if (terms.memory_bytes > 0) manager.SetTenantQuota(name, terms.memory_bytes);
    weights[name] = terms.share;
    if (terms.compute < 1) limits[name] = terms.compute;
  }
  shares_.SetWeights(std::move(weights));
  shares_.SetLimits(std::move(limits));
  wake_ = true;
}

const TenantTerms& SchedulerImpl::TermsLocked(std::string_view tenant) const {
  static constexpr TenantTerms kDefault;
  const auto found = terms_.find(tenant);
  return found == terms_.end() ? kDefault : found->second;
}

// ---- Computing ----

bool SchedulerImpl::IsGuestLocked(const LiveRequest& live, int64_t now_us) {
  return shares_.IsGuest(live.request->tenant, BandOf(live, now_us), now_us);
}

bool SchedulerImpl::GuestMayRunLocked(const LiveRequest& guest, int64_t now_us) {
  return shares_.GuestsMayRun(realtime_live_ && BandOf(guest, now_us) > 0, now_us);
}

void SchedulerImpl::GiveUpStepLocked(const ModelQueue& queue, const LiveRequest& newcomer,
                                     int64_t now_us) {
  if (in_step_.empty() || give_up_for_ == GiveUpFor::kNobody) return;
  if (give_up_for_ == GiveUpFor::kRealtime) {
    // Nothing is gained if its own weights are still to come.
    if (newcomer.request->sla != SlaClass::kRealtime ||
        engine_->manager()->MissingOf(queue.model->weights().tier_id()).bytes > 0) {
      return;
    }
  }
  shares_.See(newcomer.request->tenant, BandOf(newcomer, now_us), now_us);
  if (IsGuestLocked(newcomer, now_us)) return;
  const bool guests_only = std::all_of(in_step_.begin(), in_step_.end(), [&](LiveRequest* live) {
    mutex_.AssertHeld();
    return IsGuestLocked(*live, now_us);
  });
  if (!guests_only) return;
  give_up_for_ = GiveUpFor::kNobody;
  for (LiveRequest* live : in_step_) ++live->given_up;
  step_cancel_.cancelled = true;
}

void SchedulerImpl::HoldGuestsLocked(View* view, int64_t now_us) {
  favoured_live_ = realtime_live_ = false;
  struct Model {
    bool favoured = false;  // one who gives way to none can step, or waits
    bool stream = false;    // one who gives way needs no more than its next token
    bool equal = false;     // one who gives way is of the best band all the same
  };
  std::vector<Model> models;
  std::map<std::pair<std::string_view, int>, bool> known;
  auto is_guest = [&](const LiveRequest& live) {
    mutex_.AssertHeld();
    const std::pair<std::string_view, int> key(live.request->tenant, BandOf(live, now_us));
    const auto found = known.find(key);
    if (found != known.end()) return found->second;
    return known[key] = shares_.IsGuest(key.first, key.second, now_us);
  };
  for (const auto& [name, queue] : queues_) {
    Model model;
    for (const auto& live : queue->running) {
      if (!live->can_step()) continue;
      if (is_guest(*live)) {
        model.stream |= live->pending() == 1;
        model.equal |= BandOf(*live, now_us) == 0;
      } else {
        favoured_live_ = model.favoured = true;
        realtime_live_ |= live->request->sla == SlaClass::kRealtime;
      }
    }
    if (!model.favoured) {
      model.favoured = std::any_of(queue->waiting.begin(), queue->waiting.end(),
                                   [&](const auto& live) { return !is_guest(*live); });
    }
    models.push_back(model);
  }
  if (!favoured_live_) return;
  const bool pieces = shares_.PiecesMayRun(now_us);
  for (size_t i = 0; i < models.size(); ++i) {
    const bool may_run = shares_.GuestsMayRun(realtime_live_ && !models[i].equal, now_us) &&
                         (pieces || models[i].stream);
    view->models[i].held = !models[i].favoured && !may_run;
  }
}

void SchedulerImpl::ChargeLocked(ModelQueue* queue, const StepWork& work, int64_t busy_us) {
  const auto us = static_cast<double>(busy_us);
  std::vector<double> prompt_us(work.entries.size());  // by entry; 0 of streams
  double prompts_us = 0;
  for (size_t i = 0; i < prompt_us.size(); ++i) {
    if (!work.is_prompt(i)) continue;
    const double row_us = std::max(queue->budget.RowUs(work.depths[i]), 1e-3);
    prompts_us += prompt_us[i] = row_us * static_cast<double>(work.entries[i].tokens.size());
  }
  // Of a step's time the streams take what they take alone, where that is known.
  double all_prompts_us = us;
  if (work.decode_rows > 0) {
    const double alone_us = queue->budget.AloneUs(work.decode_rows);
    all_prompts_us = alone_us > 0 ? std::max(us - alone_us, 0.0) : std::min(us / 2, prompts_us);
    if (work.prompt_rows == 0) all_prompts_us = 0;
  }
  const int64_t now_us = clock_->NowUs();
  if (std::any_of(work.requests.begin(), work.requests.end(), [](const LiveRequest* live) {
        return live->request->sla != SlaClass::kRealtime;
      })) {
    shares_.NoteOthers(now_us);
  }
  double guest_prompts_us = 0, guest_decode_us = 0;
  auto guest_rows = 0;
  for (size_t i = 0; i < work.requests.size(); ++i) {
    const engine::StepEntry& entry = work.entries[i];
    const auto rows = static_cast<int32_t>(entry.tokens.size());
    const bool prompt = work.is_prompt(i);
    const double mine = prompt ? all_prompts_us * prompt_us[i] / prompts_us
                               : (us - all_prompts_us) * rows / std::max(work.decode_rows, 1);
    const std::string& tenant = work.requests[i]->request->tenant;
    metrics_->Count(MetricId::kTenantCompute, {tenant.empty() ? "default" : tenant}, mine * 1e-6);
    shares_.Charge(tenant, mine, now_us);
    if (!work.requests[i]->guest) continue;
    (prompt ? guest_prompts_us : guest_decode_us) += mine;
    guest_rows += prompt ? 0 : rows;
  }
  if (guest_prompts_us > 0) shares_.NoteGuestPiece(now_us);
  if (!work.others) return;
  // Rows that decode beside others often cost little: the weights are read anyway.
  const double with_us = queue->budget.AloneUs(work.decode_rows);
  const double without_us = queue->budget.AloneUs(work.decode_rows - guest_rows);
  if (with_us > 0 && without_us > 0) {
    guest_decode_us = std::min(guest_decode_us, std::max(with_us - without_us, 0.0));
  }
  const double guests_us = work.favoured ? guest_prompts_us + guest_decode_us : us;
  shares_.OnStep(us - guests_us, guests_us);
}

// ---- Memory ----

uint64_t SchedulerImpl::TenantKvLocked(std::string_view tenant, int32_t* running) const {
  uint64_t bytes = 0;
  for (const auto& [name, queue] : queues_) {
    for (const auto& live : queue->running) {
      if (live->request->tenant != tenant) continue;
      ++*running;
      bytes += queue->TakenBytes(*live);
    }
  }
  return bytes;
}

int32_t SchedulerImpl::QuotaTokensLocked(const ModelQueue& queue, const std::string& tenant) const {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  const uint64_t quota = TermsLocked(tenant).memory_bytes;
  if (quota == 0 || queue.model->KvBytes(queue.most_kv_tokens) <= quota) return kMost;
  // Allocations take whole pages.
  const uint64_t block = (queue.model->KvBytes(1) + tier::kBlockAlignment - 1) /
                         tier::kBlockAlignment * tier::kBlockAlignment;
  return static_cast<int32_t>(std::min<uint64_t>(quota / block * kv::kBlockTokens, kMost));
}

bool SchedulerImpl::FitsQuotaLocked(const std::string& tenant, uint64_t more_bytes) const {
  const uint64_t quota = TermsLocked(tenant).memory_bytes;
  if (quota == 0) return true;
  int32_t running = 0;
  const uint64_t held = TenantKvLocked(tenant, &running);
  // Alone, a request that can fit at all is let in and grows as far as it can.
  return running == 0 || held + more_bytes <= quota;
}

void SchedulerImpl::EnforceQuotasLocked() {
  for (const auto& [tenant, terms] : terms_) {
    if (terms.memory_bytes == 0) continue;
    for (;;) {
      int32_t running = 0;
      if (TenantKvLocked(tenant, &running) <= terms.memory_bytes || running < 2) break;
      const auto its = [&](const LiveRequest& live) { return live.request->tenant == tenant; };
      if (SendBackLocked(its) == nullptr) break;
    }
  }
}

ModelQueue* SchedulerImpl::SendBackLocked(absl::FunctionRef<bool(const LiveRequest&)> may) {
  ModelQueue* from = nullptr;
  size_t place = 0;
  int64_t youngest_us = -1;
  for (auto& [name, queue] : queues_) {
    for (size_t i = 0; i < queue->running.size(); ++i) {
      const LiveRequest& live = *queue->running[i];
      if (live.submitted_us < youngest_us || !may(live)) continue;
      youngest_us = live.submitted_us;
      from = queue.get();
      place = i;
    }
  }
  if (from == nullptr) return nullptr;
  std::unique_ptr<LiveRequest> victim = std::move(from->running[place]);
  from->running.erase(from->running.begin() + static_cast<ptrdiff_t>(place));
  ReleaseVictimLocked(from, victim.get());
  from->waiting.push_front(std::move(victim));
  ++waiting_;
  SetQueueGaugesLocked(*from);
  return from;
}

bool SchedulerImpl::QuotaHitLocked(const ModelQueue& queue,
                                   const std::vector<LiveRequest*>& step) const {
  return std::any_of(step.begin(), step.end(), [this, &queue](const LiveRequest* live) {
    mutex_.AssertHeld();
    if (TermsLocked(live->request->tenant).memory_bytes == 0) return false;
    return engine_->manager()->TenantQuotaLeft(live->request->tenant) <
           queue.model->KvBytes(1) + tier::kBlockAlignment;
  });
}

bool SchedulerImpl::MakeRoomInQuotaLocked(const std::vector<LiveRequest*>& step) {
  for (const LiveRequest* live : step) {
    const std::string tenant = live->request->tenant;
    if (TermsLocked(tenant).memory_bytes == 0) continue;
    int32_t running = 0;
    TenantKvLocked(tenant, &running);
    const auto its = [&](const LiveRequest& each) { return each.request->tenant == tenant; };
    if (running > 1) return SendBackLocked(its) != nullptr;
  }
  return false;
}

}  // namespace terrace::scheduler
