// Who gets in, with which KV, and who gives way.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/status.h"
#include "scheduler/scheduler_impl.h"

namespace terrace::scheduler {
namespace {

// How much of stored KV a step waits for before it begins (RestoreAsk::first_share), where all of
// it comes in `load_s` and the step computes for `compute_s`; 0: not known.
double FirstShare(double load_s, double compute_s) {
  constexpr double kLeast = 0.15, kMost = 0.5;
  if (load_s <= 0 || compute_s <= 0) return kMost;
  // What computes in the time that the rest takes ends together with it; beside the load it takes
  // somewhat longer than alone.
  constexpr double kBesideLoad = 1.25;
  return std::clamp(1 - kBesideLoad * compute_s / load_s, kLeast, kMost);
}

// Of a step as small as can be, and whether all weights fit beside it.
uint64_t LeastWorkspace(const engine::EngineModel& model) {
  return engine::Engine::WorkspaceBytes(model, kLeastStepRows, kLeastStepRows, 0);
}
bool FitsWhole(const engine::EngineModel& model, uint64_t budget_bytes) {
  return model.weights().total_bytes() + LeastWorkspace(model) <= budget_bytes;
}

// Weights of other models that stay for realtime requests.
uint64_t KeptBeside(const std::map<std::string, std::unique_ptr<ModelQueue>>& queues,
                    const ModelQueue& queue) {
  uint64_t bytes = 0;
  for (const auto& [name, other] : queues) {
    if (other->kept && other.get() != &queue) bytes += other->model->weights().total_bytes();
  }
  return bytes;
}

bool Runs(const ModelQueue& queue, const LiveRequest& live) {
  return std::any_of(queue.running.begin(), queue.running.end(),
                     [&](const auto& each) { return each.get() == &live; });
}

void AddChoice(LiveRequest* live, const std::string& why) {
  if (why.empty()) return;
  if (!live->kv_choice.empty()) live->kv_choice += "; ";
  live->kv_choice += why;
}

// What a step fails with is no fault of its requests, whatever the code says elsewhere: the object
// that is not found is a file of a model that is there.
absl::Status AsServerFault(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return absl::FailedPreconditionError(
          fmt::format("the model's weights cannot be had: {}", Message(status)));
    default:
      return status;
  }
}

}  // namespace

kv::BlockKey SchedulerImpl::RootOf(const ModelQueue& queue, const LiveRequest& live) const {
  const engine::EngineModel& model = *queue.model;
  // What was computed beside others, with kernels for their number, is another thing.
  const std::string form = model.kv_form() + (live.request->uniform ? "+uniform" : "");
  std::string_view adapter;
  if (live.adapter != nullptr) adapter = live.adapter->weights().fingerprint();
  return kv::RootKey({.fingerprint = model.weights().fingerprint(),
                      .adapter = adapter,
                      .kv_dtype = form,
                      .tenant = live.request->tenant});
}

void SchedulerImpl::AdmitLocked(ModelQueue* queue) {
  auto booked = [this] {
    mutex_.AssertHeld();
    std::pair<uint64_t, size_t> sum;  // bytes, requests
    for (const auto& [name, other] : queues_) {
      sum.first += other->booked_kv_bytes();
      sum.second += other->running.size();
    }
    return sum;
  };
  auto [kv_bytes, running] = booked();
  const uint64_t budget = Budget();
  const uint64_t weights =
      std::min(queue->model->weights().total_bytes() + KeptBeside(queues_, *queue), budget);
  const int64_t now_us = clock_->NowUs();
  const int held_band = queue->running.empty() ? kNoBand : held_band_;
  // Its turn has just begun: paused sequences of others, which wait for theirs, give way too.
  const bool turn = queue->running.empty() && queue->model->name() == current_;
  auto has_place = [&](const LiveRequest& live) {
    mutex_.AssertHeld();
    const int band = BandOf(live, now_us);
    const auto taken =
        std::count_if(queue->running.begin(), queue->running.end(),
                      [&](const auto& other) { return BandOf(*other, now_us) <= band; });
    return taken < options_.max_batch;
  };
  for (size_t at = 0; at < queue->waiting.size() && queue->admissible > 0;) {
    std::unique_ptr<LiveRequest>& live = queue->waiting[at];
    if (!has_place(*live)) break;
    if (BandOf(*live, now_us) >= held_band) {
      ++at;
      --queue->admissible;
      continue;
    }
    JoinLocked(*queue, live.get());
    const uint64_t need = queue->BookedBytes(*live) + queue->AdapterBytes(*live);
    // Who finds the tenant's quota taken lets others by.
    if (!FitsQuotaLocked(live->request->tenant, need)) {
      ++at;
      --queue->admissible;
      continue;
    }
    // Alone, a request that can fit at all is let in and grows as far as it can.
    if (running > 0 && weights + kv_bytes + need > budget) {
      // One of a worse class gives way.
      const int band = BandOf(*live, now_us);
      const auto is_worse = [&](const LiveRequest& other) { return BandOf(other, now_us) > band; };
      ModelQueue* from = SendBackLocked(is_worse);
      if (from != nullptr) {
        held_band_ = std::min(held_band_, BandOf(*from->waiting.front(), now_us));
      } else if (turn) {
        from = SendBackLocked([&](const LiveRequest& other) {
          return BandOf(other, now_us) >= band && !Runs(*queue, other);
        });
      }
      if (from == nullptr) break;
      at += from == queue ? 1 : 0;  // it waits before this one
      std::tie(kv_bytes, running) = booked();
      continue;
    }
    kv_bytes += queue->BookedBytes(*live);
    ++running;
    BeginKvLocked(queue, live.get());
    queue->running.push_back(std::move(live));
    queue->waiting.erase(queue->waiting.begin() + static_cast<ptrdiff_t>(at));
    --queue->admissible;
    --waiting_;
  }
}

void SchedulerImpl::JoinLocked(const ModelQueue& queue, LiveRequest* live) {
  live->leader.clear();
  live->alike = 0;
  if (!UsesCache(queue) || live->scores()) return;
  const std::span<const int32_t> tokens = std::span<const int32_t>(live->tokens);
  for (const auto& other : queue.running) {
    if (other->request->tenant != live->request->tenant) continue;
    if (other->adapter != live->adapter) continue;
    if (other->request->uniform != live->request->uniform) continue;
    // The last token of either is always computed: its logits are wanted.
    const size_t most = std::min(tokens.size(), other->tokens.size()) - 1;
    const auto differ = std::mismatch(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(most),
                                      other->tokens.begin());
    const auto alike =
        static_cast<int32_t>(differ.first - tokens.begin()) / kv::kBlockTokens * kv::kBlockTokens;
    if (alike <= live->alike) continue;
    live->alike = alike;
    live->leader = other->kv->ready() < alike ? other->request->id : "";
  }
}

void SchedulerImpl::BeginKvLocked(ModelQueue* queue, LiveRequest* live) {
  const tier::Owner owner{queue->model->name(), live->request->tenant, tier::Kind::kKv};
  live->kv.emplace(engine_->manager(), options_.cache, RootOf(*queue, *live), owner,
                   queue->model->kv_geometry().block_bytes());
  if (!UsesCache(*queue)) return;
  live->kv->set_window(queue->model->kv_window());
  if (live->scores()) return;
  FindKvLocked(queue, live, live->leader.empty(), false);
}

void SchedulerImpl::FindKvLocked(ModelQueue* queue, LiveRequest* live, bool load, bool again) {
  const std::string& model = queue->model->name();
  kv::Cache::Found found = options_.cache->Find(
      live->kv->root(), std::span<const int32_t>(live->tokens).first(live->tokens.size() - 1),
      again);
  const auto held = static_cast<size_t>(live->kv->length() / kv::kBlockTokens);
  if (found.device.size() > held) {
    found.device.erase(found.device.begin(), found.device.begin() + static_cast<ptrdiff_t>(held));
    const auto tokens = static_cast<int32_t>(found.device.size()) * kv::kBlockTokens;
    if (live->first_token_us == 0) {
      live->cached += tokens;
      metrics_->Count(MetricId::kKvTokens, {model, "device"}, tokens);
    }
    live->kv->Adopt(std::move(found.device));
  }
  if (live->alike > 0 && live->kv->length() >= live->alike) live->leader.clear();
  if (load) StartLoadLocked(queue, live, std::move(found));
}

void SchedulerImpl::StartLoadLocked(ModelQueue* queue, LiveRequest* live, kv::Cache::Found found) {
  // The other members of a group could not load their parts of it.
  if (queue->model->group() != nullptr) return;
  const bool host = !found.host.empty();
  const bool disk = !host && !found.stored.empty();
  if (!host && !disk && found.beyond.empty()) return;
  const double compute_s = queue->BlockSeconds();
  kv::RestoreAsk ask;
  ask.block_bytes = live->kv->block_bytes();
  ask.layer_bytes = queue->model->kv_geometry().layer_bytes();
  ask.owner = live->kv->owner();
  if (host || disk) {
    const kv::LoadChoice choice =
        host ? options_.cache->WeighHost(found.host.size(), ask.block_bytes, compute_s)
             : options_.cache->Weigh(found.stored.size(), ask.block_bytes, compute_s);
    AddChoice(live, choice.why);
    if (!choice.load) return;
  }
  if (disk && options_.cache->disk_rate() > 0) {
    const auto bytes = static_cast<double>(found.stored.size() * ask.block_bytes);
    const auto known = static_cast<int32_t>(found.stored.size()) * kv::kBlockTokens;
    const int32_t rest = live->pending() - known;
    // A step of one row looks back as far as this one will.
    const double step_s = (queue->budget.AloneUs(1) +
                           rest * queue->budget.RowUs(static_cast<double>(live->tokens.size()))) *
                          1e-6;
    ask.first_share = FirstShare(bytes / options_.cache->disk_rate(), step_s);
  }
  // What lies further down is looked for once this has come.
  live->more_beyond = (host && !found.stored.empty()) || ((host || disk) && !found.beyond.empty());
  ask.keys = std::move(host ? found.host : disk ? found.stored : found.beyond);
  // What the step will need beside this KV comes meanwhile.
  const auto& weights = queue->model->weights();
  engine_->manager()->Prefetch(weights.tier_id(), 0,
                               static_cast<uint32_t>(weights.segments().size()),
                               tier::Priority::kPredicted);
  live->restore = ++last_restore_;
  live->restore_us = clock_->NowUs();
  ++restores_;
  auto done = [this, id = live->request->id, number = live->restore](kv::Cache::Loaded loaded) {
    OnRestored(id, number, std::move(loaded));
  };
  if (host) {
    options_.cache->LoadHost(std::move(ask), std::move(done));
    return;
  }
  if (!disk) {
    options_.cache->LoadRemote(std::move(ask), compute_s, std::move(done));
    return;
  }
  options_.cache->LoadStored(
      std::move(ask),
      [this, id = live->request->id, number = live->restore](std::shared_ptr<kv::Restore> restore) {
        OnLoadBegun(id, number, std::move(restore));
      },
      std::move(done));
}

void SchedulerImpl::OnLoadBegun(const std::string& id, uint64_t number,
                                std::shared_ptr<kv::Restore> restore) {
  absl::MutexLock lock(&mutex_);
  auto it = live_.find(id);
  if (it == live_.end() || it->second->restore != number) return;
  it->second->arriving = std::move(restore);
  wake_ = true;
}

void SchedulerImpl::OnRestored(const std::string& id, uint64_t number, kv::Cache::Loaded loaded) {
  absl::MutexLock lock(&mutex_);
  --restores_;
  wake_ = true;
  // Its request may be gone, or have given way and begun anew: what came then just stays cached.
  auto it = live_.find(id);
  if (it == live_.end() || it->second->restore != number) return;
  it->second->restore = 0;
  it->second->arriving.reset();
  it->second->arrived = std::move(loaded);
}

void SchedulerImpl::LetInEarlyLocked() {
  LiveRequest* first = nullptr;
  for (const auto& [name, queue] : queues_) {
    if (!queue->waiting.empty()) return;
    for (const auto& live : queue->running) {
      if (live->can_step()) return;
      const bool fit = live->arriving != nullptr && live->leader.empty() && !live->more_beyond;
      if (fit && first == nullptr) first = live.get();
    }
  }
  if (first == nullptr) return;
  first->early = first->arriving->size();
  first->kv->AdoptArriving(std::move(first->arriving));
}

bool SchedulerImpl::SettleEarlyLocked(const std::vector<LiveRequest*>& step, bool good,
                                      int64_t kv_wait_us) {
  bool some = false;
  for (LiveRequest* live : step) {
    if (live->early == 0) continue;
    some = true;
    if (good) {
      CountRestoredLocked(live, live->early, "disk");
      AddChoice(live, fmt::format("{} tokens came while the step computed, done in {:.1f} ms, of "
                                  "that {:.1f} ms waiting",
                                  live->early * static_cast<size_t>(kv::kBlockTokens),
                                  static_cast<double>(clock_->NowUs() - live->restore_us) * 1e-3,
                                  static_cast<double>(kv_wait_us) * 1e-3));
      live->ForgetRestore();
    } else {
      AddChoice(live, "some of it was damaged or gone");
      live->kv->DropArriving();
      live->early = 0;
    }
  }
  return some;
}

void SchedulerImpl::CountRestoredLocked(LiveRequest* live, size_t blocks, std::string_view tier) {
  if (live->first_token_us != 0) return;
  const auto tokens = static_cast<int32_t>(blocks) * kv::kBlockTokens;
  live->restored += tokens;
  live->cached += tokens;
  metrics_->Count(MetricId::kKvTokens, {live->request->model, std::string(tier)}, tokens);
}

void SchedulerImpl::CollectKvLocked(ModelQueue* queue) {
  for (auto& live : queue->running) {
    kv::Cache::Loaded arrived = std::exchange(live->arrived, {});
    AddChoice(live.get(), arrived.why);
    if (!arrived.blocks.empty()) {
      // Let in early, but all of it is there before its step.
      live->kv->DropArriving();
      live->early = 0;
      CountRestoredLocked(live.get(), arrived.blocks.size(), arrived.tier);
      live->kv->Adopt(std::move(arrived.blocks));
    }
    if (live->more_beyond && live->restore == 0) {
      live->more_beyond = false;
      FindKvLocked(queue, live.get(), true, true);
    }
    if (live->leader.empty()) continue;
    auto leader =
        std::find_if(queue->running.begin(), queue->running.end(),
                     [&](const auto& other) { return other->request->id == live->leader; });
    const bool gone = leader == queue->running.end();
    if (!gone && (*leader)->kv->ready() < live->alike) continue;
    live->leader.clear();
    FindKvLocked(queue, live.get(), true, true);
  }
}

bool SchedulerImpl::DropDraftsLocked() {
  bool dropped = false;
  for (auto& [name, queue] : queues_) {
    for (auto& live : queue->running) {
      dropped |= live->draft != nullptr && live->draft->kv.own_bytes() > 0;
      live->draft.reset();
    }
  }
  return dropped;
}

void SchedulerImpl::ReleaseVictimLocked(ModelQueue* queue, LiveRequest* victim) {
  std::string how = "dropped";
  const storage::BlockStore* store = options_.cache != nullptr ? options_.cache->store() : nullptr;
  const size_t blocks = victim->kv->shared_blocks().size();
  if (store != nullptr && blocks > 0) {
    const storage::BlockStoreState disk = store->State();
    const double compute_s = static_cast<double>(blocks) * queue->BlockSeconds();
    const auto bytes = static_cast<double>(blocks * victim->kv->block_bytes());
    const double read_rate = options_.cache->disk_rate();
    const double move_s = disk.write_bytes_per_s > 0 && read_rate > 0
                              ? bytes / disk.write_bytes_per_s + bytes / read_rate
                              : 0;  // not known yet: then moving is how to learn it
    if (!disk.read_only && (compute_s == 0 || move_s < compute_s)) {
      options_.cache->MoveDown(victim->kv->shared_blocks());
      moving_bytes_ += blocks * victim->kv->block_bytes();
      how = "moved";
    }
    AddChoice(victim, fmt::format("gave way, {}: moving takes {:.1f} ms, computing {:.1f} ms", how,
                                  move_s * 1e3, compute_s * 1e3));
  }
  metrics_->Count(MetricId::kKvPreemptions, {queue->model->name(), how});
  victim->kv.reset();
  victim->draft.reset();
  victim->ForgetRestore();
  victim->leader.clear();
  victim->alike = 0;
}

uint64_t SchedulerImpl::Budget() const {
  return device_budget_bytes_ - std::min(device_budget_bytes_, engine_->workspace_bytes());
}

uint64_t SchedulerImpl::MostBudget(const engine::EngineModel& model) const {
  return device_budget_bytes_ -
         std::min({device_budget_bytes_, engine_->workspace_bytes(), LeastWorkspace(model)});
}

uint64_t SchedulerImpl::TakenKvLocked() const {
  uint64_t bytes = 0;
  for (const auto& [name, queue] : queues_) {
    for (const auto& live : queue->running) bytes += queue->TakenBytes(*live);
  }
  return bytes;
}

int32_t SchedulerImpl::RowsWithRoomLocked(const ModelQueue& queue) const {
  if (!FitsWhole(*queue.model, device_budget_bytes_)) return options_.step_tokens;
  const uint64_t taken =
      queue.model->weights().total_bytes() + KeptBeside(queues_, queue) + TakenKvLocked();
  int32_t rank = 0;
  for (const auto& live : queue.running) {
    if (live->adapter != nullptr) rank = std::max(rank, live->adapter->weights().max_rank());
  }
  int32_t rows = options_.step_tokens;
  for (; rows > kLeastStepRows; rows = std::max(rows / 2, kLeastStepRows)) {
    const uint64_t workspace = engine::Engine::WorkspaceBytes(
        *queue.model, rows, std::min(rows, options_.max_batch), rank);
    if (taken + std::max(workspace, engine_->workspace_bytes()) <= device_budget_bytes_) break;
  }
  return rows;
}

bool SchedulerImpl::MakeRoomBesideWeightsLocked(ModelQueue* queue) {
  // Else its weights come and go in any case.
  if (!FitsWhole(*queue->model, device_budget_bytes_)) return true;
  if (moving_bytes_ > 0 && !options_.cache->moving()) moving_bytes_ = 0;
  const uint64_t weights = queue->model->weights().total_bytes() + KeptBeside(queues_, *queue);
  const uint64_t least = LeastWorkspace(*queue->model);
  const auto over = [&] {
    mutex_.AssertHeld();
    const uint64_t workspace = std::max(engine_->workspace_bytes(), least);
    return weights + TakenKvLocked() + workspace + moving_bytes_ > device_budget_bytes_;
  };
  while (over()) {
    if (moving_bytes_ > 0) return false;
    // A long prompt's step may have left a workspace that is larger than what these need.
    if (engine_->workspace_bytes() > least) {
      engine_->ShrinkWorkspace(least);
    } else if (!PreemptLocked(queue)) {
      return true;
    }
  }
  return true;
}

bool SchedulerImpl::PreemptLocked(ModelQueue* preferred) {
  const int64_t now_us = clock_->NowUs();
  // The worst class first; of one class paused sequences of other models, then the youngest.
  using Rank = std::tuple<int, bool, int64_t>;
  ModelQueue* from = nullptr;
  size_t place = 0, total = 0;
  Rank worst = {};
  for (auto& [name, queue] : queues_) {
    total += queue->running.size();
    for (size_t i = 0; i < queue->running.size(); ++i) {
      const LiveRequest& live = *queue->running[i];
      const Rank rank = {BandOf(live, now_us), queue.get() != preferred, live.submitted_us};
      if (from != nullptr && rank < worst) continue;
      from = queue.get();
      place = i;
      worst = rank;
    }
  }
  if (total < 2) return false;
  std::unique_ptr<LiveRequest> victim = std::move(from->running[place]);
  from->running.erase(from->running.begin() + static_cast<ptrdiff_t>(place));
  held_band_ = std::min(held_band_, std::get<0>(worst));
  ReleaseVictimLocked(from, victim.get());
  from->waiting.push_front(std::move(victim));
  ++waiting_;
  return true;
}

bool SchedulerImpl::HandleStepError(ModelQueue* queue, const StepWork& work, int64_t start_us,
                                    const absl::Status& status) {
  const std::vector<LiveRequest*>& step = work.requests;
  Finished finished;
  {
    absl::MutexLock lock(&mutex_);
    in_step_.clear();
    stepping_.clear();
    last_work_us_ = clock_->NowUs();
    queue->waiting_since_us = last_work_us_;
    if (absl::IsUnavailable(status) && SettleEarlyLocked(step, false, 0)) return true;
    const bool cancelled = absl::IsCancelled(status);
    if (cancelled) ChargeLocked(queue, work, ComputedUs(*queue, work, last_work_us_ - start_us));
    const bool no_memory = absl::IsResourceExhausted(status);
    const bool over_quota = no_memory && QuotaHitLocked(*queue, step);
    // Blocks that are being written down are free in a moment.
    if (no_memory && options_.cache != nullptr && options_.cache->moving()) return false;
    bool made_room = no_memory && DropDraftsLocked();
    if (no_memory && !made_room) {
      made_room = over_quota ? MakeRoomInQuotaLocked(step) : PreemptLocked(queue);
    }
    if (!cancelled && !made_room) {
      for (LiveRequest* live : step) {
        FinishInfo info = Info(*live, FinishReason::kError, AsServerFault(status));
        finished.emplace_back(TakeRunningLocked(queue, live), std::move(info));
      }
    }
    SetQueueGaugesLocked(*queue);
  }
  Finish(std::move(finished));
  return true;
}

}  // namespace terrace::scheduler
