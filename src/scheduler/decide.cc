// What runs next: the snapshot that the arbiter decides on, and what follows from its decision; who
// has waited longer than its contract allows; what tenants have been served.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/retry_after.h"
#include "base/status.h"
#include "base/units.h"
#include "scheduler/scheduler_impl.h"

namespace terrace::scheduler {
namespace {

// Ends are counted with this half-life (as a time constant), for the rate of the last while.
constexpr double kRateSeconds = 30;
// Told before any request has ended.
constexpr int kUnknownWaitSeconds = 5;
constexpr int kMostWaitSeconds = 600;

// What a request is told that gives up by its contract.
absl::Status Overdue(const ModelQueue& queue, const LiveRequest& live,
                     const tier::TierManager& manager, int expected_s) {
  const double may_wait_s = static_cast<double>(live.request->swap.max_wait_us) * 1e-6;
  const std::string& name = queue.model->name();
  const tier::AwaitedStore awaited = manager.Awaited(queue.model->weights().tier_id());
  std::string why;
  if (!awaited.name.empty()) {
    why = fmt::format(
        "the weights of model '{}' did not come within the {:.1f} s that the request may wait: {} "
        "has given nothing for {:.1f} s",
        name, may_wait_s, awaited.name, static_cast<double>(awaited.still_us) * 1e-6);
  } else {
    why = fmt::format(
        "model '{}' did not get its {} within the {:.1f} s that the request may wait; about {} s "
        "more are expected",
        name, live.started_us > 0 ? "weights" : "turn", may_wait_s, expected_s);
  }
  absl::Status status = absl::UnavailableError(why);
  SetRetryAfter(expected_s, &status);
  return status;
}

}  // namespace

void SchedulerImpl::ViewLocked(View* view) {
  const int64_t now_us = clock_->NowUs();
  std::vector<View::Seen>& seen = view->seen;
  auto tenant_of = [&](const LiveRequest& live) {
    mutex_.AssertHeld();
    const auto [entry, added] = view->tenant_index.emplace(
        live.request->tenant, static_cast<int32_t>(view->tenants.size()));
    if (added) {
      const TenantTerms& terms = TermsLocked(live.request->tenant);
      view->tenants.push_back({.served = served_.tokens[live.request->tenant],
                               .weight = terms.share,
                               .limit = terms.running});
      const int64_t paused_us = shares_.PausedUs(live.request->tenant, now_us);
      if (paused_us > 0) view->NotePause(paused_us);
      seen.push_back({.paused = paused_us > 0});
    }
    int& band = seen[static_cast<size_t>(entry->second)].band;
    if (band > 0) band = std::min(band, BandOf(live, now_us));
    return entry->second;
  };
  for (const auto& [name, queue] : queues_) CollectKvLocked(queue.get());
  LetInEarlyLocked();
  for (const auto& [name, queue] : queues_) {
    ArbiterModel model{.waiting_since_us = queue->waiting_since_us,
                       .weight_bytes = queue->model->weights().total_bytes(),
                       .kv_bytes = queue->booked_kv_bytes(),
                       .return_us = queue->return_us};
    int band = kNoBand;  // the best of its requests
    bool all_paused = queue->has_work();
    const auto index = static_cast<int32_t>(view->models.size());
    for (const auto& live : queue->running) {
      const auto its = static_cast<size_t>(tenant_of(*live));
      live->paused = seen[its].paused;
      seen[its].promised_us += queue->PromptUs(*live);
      ++view->tenants[its].running;
      view->tenants[its].served += static_cast<double>(live->tokens.size());
      view->NoteDeadline(live->weights_deadline_us());
      all_paused &= live->paused;
      band = std::min(band, BandOf(*live, now_us));
      if (!live->can_step()) continue;
      ++model.running;
      model.running_sla = std::min(model.running_sla, live->request->sla);
      for (const int i : {0, 1}) model.worse_than[i] += BandOf(*live, now_us) > i;
    }
    for (const auto& live : queue->waiting) {
      const int32_t tenant = tenant_of(*live);
      live->paused = seen[static_cast<size_t>(tenant)].paused;
      view->NoteDeadline(live->deadline_us());
      band = std::min(band, BandOf(*live, now_us));
      if (live->paused) continue;
      seen[static_cast<size_t>(tenant)].promised_us += queue->PromptUs(*live);
      all_paused = false;
      view->queued.push_back({.model = index,
                              .tenant = tenant,
                              .sla = live->request->sla,
                              .arrived_us = live->submitted_us,
                              .stepped_us = live->stepped_us});
      view->waiting.push_back(live.get());
    }
    // What its tenants may not do it does not wait for.
    if (all_paused) queue->waiting_since_us = model.waiting_since_us = now_us;
    TellAtWork(queue.get(), band, engine_->manager());
    NoteComing(queue.get(), name == current_, now_us, &model);
    if (name == current_) view->current = index;
    view->models.push_back(model);
    view->names.push_back(&name);
  }
  NoteTenantsLocked(view, now_us);
}

void SchedulerImpl::NoteTenantsLocked(View* view, int64_t now_us) {
  for (const auto& [tenant, index] : view->tenant_index) {
    // Who may compute nothing now keeps nobody from computing.
    const View::Seen& seen = view->seen[static_cast<size_t>(index)];
    if (seen.paused) continue;
    shares_.See(tenant, seen.band, now_us);
    shares_.Promise(tenant, seen.promised_us);
  }
  HoldGuestsLocked(view, now_us);
  served_.active.clear();
  served_.least = 0;
  for (const auto& [tenant, index] : view->tenant_index) {
    const double served = view->tenants[static_cast<size_t>(index)].served;
    served_.least = served_.active.empty() ? served : std::min(served_.least, served);
    served_.active.emplace(tenant);
  }
}

ArbiterDecision SchedulerImpl::DecideLocked(ModelQueue** chosen) {
  EnforceQuotasLocked();
  View view;
  ViewLocked(&view);
  const int64_t now_us = clock_->NowUs();
  ArbiterDecision decision = Arbitrate(arbiter_options_, {.now_us = now_us,
                                                          .budget_bytes = Budget(),
                                                          .current = view.current,
                                                          .turn_since_us = turn_.since_us,
                                                          .turn_first_us = turn_.first_us,
                                                          .last_work_us = last_work_us_,
                                                          .models = view.models,
                                                          .queued = view.queued,
                                                          .tenants = view.tenants});
  KeepRealtimeLocked(now_us);
  if (!decision.load.empty()) KeepAtWorkLocked(view, decision.load, now_us);
  loads_are_urgent_ = LoadsAreUrgent(arbiter_options_, view, decision.load, now_us);
  for (const int32_t i : decision.load) {
    const weights::ModelWeights& weights =
        queues_[*view.names[static_cast<size_t>(i)]]->model->weights();
    engine_->manager()->Prefetch(weights.tier_id(), 0,
                                 static_cast<uint32_t>(weights.segments().size()),
                                 tier::Priority::kNextLayer);
  }
  if (decision.model < 0) {
    if (view.deadline_us > 0) {
      const int64_t left_us = std::max<int64_t>(0, view.deadline_us - now_us);
      decision.wait_us = decision.wait_us < 0 ? left_us : std::min(decision.wait_us, left_us);
    }
    if (view.paused_us > 0) {
      decision.wait_us =
          decision.wait_us < 0 ? view.paused_us : std::min(decision.wait_us, view.paused_us);
    }
    return decision;
  }
  const std::string& name = *view.names[static_cast<size_t>(decision.model)];
  *chosen = queues_[name].get();
  if (!decision.aside && name != current_) {
    const bool was_away = std::exchange((*chosen)->was_away, false);
    if (!current_.empty() && was_away) ++totals_.model_switches;
    current_ = name;
    turn_ = {.since_us = now_us};
    StartWeightsLocked(**chosen);
  }
  std::vector<LiveRequest*> first;
  for (const int32_t i : decision.order) first.push_back(view.waiting[static_cast<size_t>(i)]);
  BringForwardLocked(*chosen, first);
  return decision;
}

void SchedulerImpl::NoteComing(ModelQueue* queue, bool has_turn, int64_t now_us,
                               ArbiterModel* model) const {
  // Weights of which nothing has come for so long do not come by themselves.
  constexpr int64_t kStuckUs = 500'000;
  tier::Missing missing;
  if (queue->has_work()) {
    missing = engine_->manager()->MissingOf(queue->model->weights().tier_id());
  }
  model->silent = !missing.failed && missing.store.still_us > kMostSilenceUs;
  if (missing.bytes == 0) {
    queue->missing_bytes = 0;
    queue->stuck = false;
    // What the device cannot hold as a whole comes anew for each step: as long as it took lately.
    if (queue->model->weights().total_bytes() > Budget()) model->load_us = queue->load_us;
    return;
  }
  if (queue->missing_bytes == 0 || missing.bytes < queue->missing_bytes) {
    queue->came_us = now_us;
  }
  queue->missing_bytes = missing.bytes;
  queue->was_away |= !has_turn;
  if (model->silent) queue->came_us = now_us;
  queue->stuck |= missing.failed || now_us - queue->came_us > kStuckUs;
  model->load_us = missing.us;
  model->stuck = queue->stuck;
}

void SchedulerImpl::KeepAtWorkLocked(const View& view, std::span<const int32_t> coming,
                                     int64_t now_us) {
  // Some decisions later it is renewed.
  constexpr int64_t kLeaseUs = 200'000;
  for (size_t i = 0; i < view.names.size(); ++i) {
    const ModelQueue& queue = *queues_[*view.names[i]];
    const bool comes =
        std::find(coming.begin(), coming.end(), static_cast<int32_t>(i)) != coming.end();
    if (queue.has_work() && !comes) {
      engine_->manager()->Lease(queue.model->weights().tier_id(), now_us + kLeaseUs);
    }
  }
}

void SchedulerImpl::KeepRealtimeLocked(int64_t now_us) {
  // After its last request; the next one is often on its way.
  constexpr int64_t kKeptUs = 2'000'000;
  uint64_t most = 0, longest = 0;  // of the others with work: weights, and KV of one sequence
  for (const auto& [name, queue] : queues_) {
    const auto is_realtime = [](const auto& live) {
      return live->request->sla == SlaClass::kRealtime;
    };
    const bool there = std::any_of(queue->running.begin(), queue->running.end(), is_realtime) ||
                       std::any_of(queue->waiting.begin(), queue->waiting.end(), is_realtime);
    if (there) queue->realtime_us = now_us;
    queue->kept = queue->realtime_us > 0 && now_us - queue->realtime_us < kKeptUs;
    if (queue->kept || !queue->has_work()) continue;
    most = std::max(most, queue->model->weights().total_bytes());
    for (const auto& live : queue->running) longest = std::max(longest, queue->TakenBytes(*live));
  }
  // Of several sequences that have no room beside them some give way.
  uint64_t taken = most + longest;
  for (const auto& [name, queue] : queues_) {
    const uint64_t weights = queue->model->weights().total_bytes();
    queue->kept &= taken + weights <= Budget();
    if (!queue->kept) continue;
    taken += weights;
    engine_->manager()->Lease(queue->model->weights().tier_id(), queue->realtime_us + kKeptUs);
  }
}

void SchedulerImpl::StartWeightsLocked(const ModelQueue& queue) {
  // The first of them only: workspace and KV take their room before the rest is asked for.
  constexpr uint64_t kFirstBytes = 64 * kMiB;
  const weights::ModelWeights& weights = queue.model->weights();
  uint32_t count = 0;
  for (uint64_t bytes = 0; count < weights.segments().size() && bytes < kFirstBytes; ++count) {
    bytes += weights.segments()[count].bytes;
  }
  engine_->manager()->Prefetch(weights.tier_id(), 0, count, tier::Priority::kNextLayer);
}

void SchedulerImpl::BringForwardLocked(ModelQueue* queue, std::span<LiveRequest* const> first) {
  // Who comes until the step begins may join, unless tenants are held to a number.
  const bool limited = arbiter_options_.tenant_running > 0 || !terms_.empty();
  queue->admissible =
      limited ? static_cast<int32_t>(first.size()) : std::numeric_limits<int32_t>::max();
  bool in_order = true;
  for (size_t i = 0; i < first.size(); ++i) in_order &= queue->waiting[i].get() == first[i];
  if (in_order) return;
  std::deque<std::unique_ptr<LiveRequest>> reordered(first.size());
  for (auto& live : queue->waiting) {
    const auto place = std::find(first.begin(), first.end(), live.get());
    if (place != first.end()) {
      reordered[static_cast<size_t>(place - first.begin())] = std::move(live);
    } else {
      reordered.push_back(std::move(live));
    }
  }
  queue->waiting = std::move(reordered);
}

void SchedulerImpl::CollectOverdueLocked(Finished* finished) {
  const int64_t now_us = clock_->NowUs();
  for (auto& [name, queue] : queues_) {
    bool changed = false;
    for (auto it = queue->waiting.begin(); it != queue->waiting.end();) {
      const int64_t deadline_us = (*it)->deadline_us();
      if (deadline_us == 0 || deadline_us > now_us) {
        ++it;
        continue;
      }
      absl::Status status = Overdue(*queue, **it, *engine_->manager(), ExpectedWaitSecondsLocked());
      std::unique_ptr<LiveRequest> live = std::move(*it);
      it = queue->waiting.erase(it);
      --waiting_;
      live_.erase(live->request->id);
      ++finishing_;
      FinishInfo info = Info(*live, FinishReason::kError, std::move(status));
      finished->emplace_back(std::move(live), std::move(info));
      changed = true;
    }
    std::vector<const LiveRequest*> late;
    for (const auto& live : queue->running) {
      const int64_t deadline_us = live->weights_deadline_us();
      if (deadline_us > 0 && deadline_us <= now_us) late.push_back(live.get());
    }
    for (const LiveRequest* live : late) {
      FinishInfo info =
          Info(*live, FinishReason::kError,
               Overdue(*queue, *live, *engine_->manager(), ExpectedWaitSecondsLocked()));
      finished->emplace_back(TakeRunningLocked(queue.get(), live), std::move(info));
    }
    if (changed || !late.empty()) SetQueueGaugesLocked(*queue);
  }
}

absl::Status SchedulerImpl::CheckContractLocked(const ModelQueue& queue, const Request& request) {
  if (!request.swap.warm_only) return absl::OkStatus();
  const std::string& name = queue.model->name();
  for (const tier::ModelState& model : engine_->manager()->Snapshot().models) {
    // All but what a long prompt may have pushed out for a moment.
    if (model.name == name && model.resident_bytes >= model.bytes - model.bytes / 20) {
      return absl::OkStatus();
    }
  }
  const auto load_s =
      std::max<int>(1, static_cast<int>(std::ceil(static_cast<double>(queue.load_us) * 1e-6)));
  absl::Status status = absl::UnavailableError(fmt::format(
      "model '{}' is not in device memory, and the request is for a warm model only; loading it "
      "takes about {} s",
      name, load_s));
  SetRetryAfter(load_s, &status);
  return status;
}

void SchedulerImpl::NoteArrivalLocked(const std::string& tenant) {
  // Who was idle does not get to catch up on the time: it begins level with the least served of
  // those at work.
  double& served = served_.tokens[tenant];
  if (!served_.active.contains(tenant)) served = std::max(served, served_.least);
}

void SchedulerImpl::NoteEndLocked(ModelQueue* queue, const LiveRequest& live) {
  served_.tokens[live.request->tenant] += static_cast<double>(live.tokens.size());
  if (live.swap_us > 0) {
    queue->load_us = queue->load_us == 0 ? live.swap_us : (queue->load_us + live.swap_us) / 2;
  }
  const int64_t now_us = clock_->NowUs();
  if (ends_.first_us == 0) ends_.first_us = now_us;
  const double since_s = static_cast<double>(now_us - ends_.last_us) * 1e-6;
  ends_.recent = ends_.recent * std::exp(-since_s / kRateSeconds) + 1;
  ends_.last_us = now_us;
}

int SchedulerImpl::ExpectedWaitSecondsLocked() const {
  if (ends_.recent == 0) return kUnknownWaitSeconds;
  const int64_t now_us = clock_->NowUs();
  const double since_s = static_cast<double>(now_us - ends_.last_us) * 1e-6;
  const double age_s = static_cast<double>(now_us - ends_.first_us) * 1e-6;
  // The weights of a decaying count add up to the time constant once it has run for a while.
  const double span_s = std::max(0.1, kRateSeconds * (1 - std::exp(-age_s / kRateSeconds)));
  const double rate = ends_.recent * std::exp(-since_s / kRateSeconds) / span_s;
  const double wait_s = (waiting_ + 1) / std::max(rate, 1e-3);
  return std::clamp(static_cast<int>(std::ceil(wait_s)), 1, kMostWaitSeconds);
}

}  // namespace terrace::scheduler
