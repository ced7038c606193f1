#include "scheduler/scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/retry_after.h"
#include "base/status.h"
#include "base/units.h"
#include "os/thread_usage.h"
#include "scheduler/scheduler_impl.h"

namespace terrace::scheduler {
namespace {

// How long the loop sleeps when there is work that cannot go on (no memory, KV on its way) and
// nothing tells it that something changed.
constexpr absl::Duration kStallWait = absl::Milliseconds(2);
// Sequences let go of KV in pieces of 64 tokens, and begin and end within blocks.
constexpr int32_t kWindowSlack = 64 + 2 * kv::kBlockTokens;

}  // namespace

SchedulerImpl::SchedulerImpl(const SchedulerOptions& options, engine::Engine* engine,
                             const Clock* clock, Metrics* metrics)
    : options_(options),
      engine_(engine),
      clock_(clock),
      metrics_(metrics),
      device_budget_bytes_(engine->manager()->Snapshot().device_budget_bytes),
      random_(options.seed) {
  arbiter_options_ = {.max_wait_us = options.max_wait_us,
                      .min_residency_us = options.min_residency_us,
                      .aging_us = options.aging_us,
                      .qps_weight = options.qps_weight,
                      .latency_weight = options.latency_weight,
                      .max_batch = options.max_batch,
                      .tenant_running = options.tenant_running};
  SetTenants(options.tenants);
  thread_ = std::thread([this] { Loop(); });
}

SchedulerImpl::~SchedulerImpl() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    draining_ = true;
    CancelAllLocked();
  }
  thread_.join();
  absl::MutexLock lock(&mutex_);
  auto no_restores = [this] {
    mutex_.AssertHeld();
    return restores_ == 0;
  };
  mutex_.Await(absl::Condition(&no_restores));
}

absl::Status SchedulerImpl::AddModel(std::shared_ptr<engine::EngineModel> model) {
  absl::MutexLock lock(&mutex_);
  const std::string name = model->name();
  return AddNameLocked(name, std::move(model), nullptr);
}

absl::Status SchedulerImpl::AddAdapter(std::shared_ptr<engine::EngineModel> base,
                                       std::shared_ptr<const engine::Adapter> adapter) {
  absl::MutexLock lock(&mutex_);
  const std::string name = adapter->name();
  return AddNameLocked(name, std::move(base), std::move(adapter));
}

absl::Status SchedulerImpl::AddNameLocked(const std::string& served,
                                          std::shared_ptr<engine::EngineModel> model,
                                          std::shared_ptr<const engine::Adapter> adapter) {
  const auto known = queues_.find(model->name());
  const bool same = known != queues_.end() && known->second->model == model;
  if (names_.contains(served) || (known != queues_.end() && !same)) {
    return absl::AlreadyExistsError(fmt::format("model '{}' is already registered", served));
  }
  if (same) {
    ++known->second->names;
    names_[served] = {known->second.get(), std::move(adapter)};
    return absl::OkStatus();
  }
  // Only a cache lets go of what is out of the window; a step's rows come on top of that.
  const bool windowed = options_.cache != nullptr && model->kv_window() > 0;
  const int64_t most = windowed ? int64_t{model->kv_window()} + options_.step_tokens + kWindowSlack
                                : std::numeric_limits<int32_t>::max();
  auto queue = std::make_unique<ModelQueue>(
      StepBudget(options_.step_tokens, options_.stretch),
      static_cast<int32_t>(std::min<int64_t>(most, std::numeric_limits<int32_t>::max())));
  queue->names = 1;
  const std::string name = model->name();
  queue->model = std::move(model);
  names_[served] = {queue.get(), std::move(adapter)};
  queues_[name] = std::move(queue);
  return absl::OkStatus();
}

absl::Status SchedulerImpl::RemoveModel(const std::string& name) {
  std::unique_ptr<ModelQueue> queue;  // destroyed after the lock: closing a model may take a while
  absl::MutexLock lock(&mutex_);
  auto it = names_.find(name);
  if (it == names_.end() || it->second.removed) {
    return absl::NotFoundError(fmt::format("model '{}' is not registered", name));
  }
  it->second.removed = true;
  ModelQueue* raw = it->second.queue;
  const std::string key = raw->model->name();
  auto idle = [this, raw, &name, &key] {
    mutex_.AssertHeld();
    return raw->names > 1 ? !raw->has_requests(name) : !raw->has_work() && stepping_ != key;
  };
  mutex_.Await(absl::Condition(&idle));
  names_.erase(name);
  if (--raw->names > 0) return absl::OkStatus();
  queue = std::move(queues_[key]);
  queues_.erase(key);
  if (current_ == key) current_.clear();
  return absl::OkStatus();
}

absl::Status SchedulerImpl::CheckRequestLocked(const ModelQueue& queue, const Request& request) {
  const engine::EngineModel& model = *queue.model;
  const auto prompt = static_cast<int32_t>(request.prompt.size());
  if (prompt < 1 || request.max_tokens < 1) {
    return absl::InvalidArgumentError("a request needs a prompt token and room for one more");
  }
  const bool encoder = model.architecture().config().encoder;
  if (encoder && !request.embed) {
    return absl::InvalidArgumentError(fmt::format(
        "model '{}' is an encoder: it gives vectors of texts (/v1/embeddings), no tokens",
        model.name()));
  }
  if (prompt >= model.max_context() + (encoder ? 1 : 0)) {
    return absl::InvalidArgumentError(
        fmt::format("the prompt has {} tokens, but the context of model '{}' is {} tokens", prompt,
                    model.name(), model.max_context()));
  }
  for (int32_t token : request.prompt) {
    if (token < 0 || token >= model.vocab_size()) {
      return absl::InvalidArgumentError(
          fmt::format("prompt token {} is outside the vocabulary of "
                      "{} tokens",
                      token, model.vocab_size()));
    }
  }
  return absl::OkStatus();
}

absl::Status SchedulerImpl::Submit(std::unique_ptr<Request> request) {
  absl::MutexLock lock(&mutex_);
  if (draining_) return absl::UnavailableError("the server is shutting down");
  auto it = names_.find(request->model);
  if (it == names_.end() || it->second.removed) {
    return absl::NotFoundError(fmt::format("model '{}' is not registered", request->model));
  }
  ModelQueue* queue = it->second.queue;
  const engine::EngineModel& model = *queue->model;
  const auto prompt = static_cast<int32_t>(request->prompt.size());
  RETURN_IF_ERROR(CheckRequestLocked(*queue, *request));
  const uint64_t budget = MostBudget(model);
  const uint64_t need = model.KvBytes(std::min(prompt + 1, queue->most_kv_tokens));
  const uint64_t weights = std::min(model.weights().total_bytes(), budget);
  if (need > budget || (model.weights().total_bytes() <= budget && weights + need > budget)) {
    return absl::ResourceExhaustedError(fmt::format(
        "model '{}' needs {} of weights and {} of KV for {} prompt tokens, more than the device "
        "budget of {}",
        model.name(), FormatBytes(model.weights().total_bytes()), FormatBytes(need), prompt,
        FormatBytes(budget)));
  }
  const int32_t quota_tokens = QuotaTokensLocked(*queue, request->tenant);
  if (prompt >= quota_tokens) return OverQuotaLocked(*request, quota_tokens);
  if (waiting_ >= options_.max_queue) {
    const int wait_s = ExpectedWaitSecondsLocked();
    absl::Status full = absl::ResourceExhaustedError(
        fmt::format("the queue is full ({} requests are waiting); at the present rate it has moved "
                    "on in about {} s",
                    waiting_, wait_s));
    SetRetryAfter(wait_s, &full);
    return full;
  }
  RETURN_IF_ERROR(CheckContractLocked(*queue, *request));
  if (live_.contains(request->id)) {
    return absl::AlreadyExistsError(fmt::format("request id '{}' is in use", request->id));
  }
  auto live = std::make_unique<LiveRequest>();
  live->submitted_us = clock_->NowUs();
  live->tokens = request->prompt;
  live->adapter = it->second.adapter;
  live->token_limit = static_cast<int32_t>(std::min<int64_t>(
      {model.max_context(), int64_t{prompt} + request->max_tokens, quota_tokens}));
  const uint64_t seed = request->sampling.seed.value_or(random_.Next());
  NoteArrivalLocked(request->tenant);
  engine_->manager()->NoteRequest(model.weights().tier_id());
  live->request = std::move(request);
  live->sampler =
      std::make_unique<engine::Sampler>(&live->request->sampling, live->request->prompt, seed);
  live->most_guesses = live->guess_length = model.speculation().tokens;
  if (!queue->has_work()) queue->NoteReturn(live->submitted_us);
  if (live->request->sla == SlaClass::kRealtime) queue->realtime_us = live->submitted_us;
  GiveUpStepLocked(*queue, *live, live->submitted_us);
  live_[live->request->id] = live.get();
  queue->waiting.push_back(std::move(live));
  ++waiting_;
  SetQueueGaugesLocked(*queue);
  wake_ = true;
  return absl::OkStatus();
}

absl::Status SchedulerImpl::OverQuotaLocked(const Request& request, int32_t quota_tokens) const {
  // From the ledger: what running requests have come to is the loop's to read.
  const uint64_t quota = TermsLocked(request.tenant).memory_bytes;
  const uint64_t held =
      quota - std::min(quota, engine_->manager()->TenantQuotaLeft(request.tenant));
  size_t running = 0;
  for (const auto& [name, queue] : queues_) {
    running += static_cast<size_t>(
        std::count_if(queue->running.begin(), queue->running.end(),
                      [&](const auto& live) { return live->request->tenant == request.tenant; }));
  }
  return absl::ResourceExhaustedError(fmt::format(
      "the prompt has {} tokens, but the memory quota of tenant '{}' ({}, of which {} running "
      "requests and its cache hold {}) has room for {} of model '{}'",
      request.prompt.size(), request.tenant, FormatBytes(quota), running, FormatBytes(held),
      quota_tokens, request.model));
}

void SchedulerImpl::Cancel(const std::string& request_id) {
  // Called where many connections are served: it does not wait for an engine that hangs.
  if (!late_.LockSoon(&mutex_)) {
    late_.Add(request_id);
    // Whoever has the lock now gives it back after this, and then the loop looks.
    if (!mutex_.TryLock()) return;
    for (const std::string& id : late_.Take()) CancelLocked(id);
  }
  CancelLocked(request_id);
  mutex_.Unlock();
}

void SchedulerImpl::CancelLocked(const std::string& request_id) {
  auto it = live_.find(request_id);
  if (it == live_.end()) return;
  it->second->cancelled = true;
  wake_ = true;
  const bool whole_step =
      !in_step_.empty() && std::all_of(in_step_.begin(), in_step_.end(),
                                       [](LiveRequest* live) { return live->cancelled.load(); });
  if (whole_step) step_cancel_.cancelled = true;
}

void SchedulerImpl::CancelAllLocked() {
  for (auto& [id, live] : live_) live->cancelled = true;
  step_cancel_.cancelled = true;
  wake_ = true;
}

bool SchedulerImpl::Drain(int64_t timeout_us) {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
  auto idle = [this] {
    mutex_.AssertHeld();
    return live_.empty() && finishing_ == 0;
  };
  if (mutex_.AwaitWithTimeout(absl::Condition(&idle), absl::Microseconds(timeout_us))) return true;
  CancelAllLocked();
  mutex_.Await(absl::Condition(&idle));
  return false;
}

SchedulerState SchedulerImpl::State() const {
  absl::MutexLock lock(&mutex_);
  SchedulerState state = totals_;
  state.draining = draining_;
  state.parked = parked_ && !wake_;
  state.probed = probes_.answered != probes_.asked;
  const int64_t now_us = clock_->NowUs();
  std::map<std::string_view, TenantQueueState> tenants;
  auto tenant_of = [&](const LiveRequest& live) -> TenantQueueState& {
    mutex_.AssertHeld();
    const auto [entry, added] = tenants.try_emplace(live.request->tenant);
    if (added) {
      entry->second.tenant = live.request->tenant;
      entry->second.computed_us = shares_.Used(live.request->tenant, now_us);
    }
    return entry->second;
  };
  for (const auto& [name, queue] : queues_) {
    state.models.push_back({name, static_cast<int32_t>(queue->waiting.size()),
                            static_cast<int32_t>(queue->running.size())});
    for (const auto& live : queue->running) ++tenant_of(*live).running;
    for (const auto& live : queue->waiting) {
      ++tenant_of(*live).waiting;
      state.oldest_wait_us = std::max(state.oldest_wait_us, now_us - live->submitted_us);
    }
  }
  for (auto& [name, tenant] : tenants) state.tenants.push_back(std::move(tenant));
  return state;
}

void SchedulerImpl::SetQueueGaugesLocked(const ModelQueue& queue) {
  const std::string& name = queue.model->name();
  metrics_->Set(MetricId::kQueueLength, {name}, static_cast<double>(queue.waiting.size()));
  metrics_->Set(MetricId::kRunningRequests, {name}, static_cast<double>(queue.running.size()));
}

void SchedulerImpl::CollectCancelledLocked(Finished* finished) {
  const absl::Status status = absl::CancelledError("the client gave up");
  auto take = [&](std::unique_ptr<LiveRequest> live) {
    mutex_.AssertHeld();
    FinishInfo info = Info(*live, FinishReason::kCancelled, status);
    live_.erase(live->request->id);
    ++finishing_;
    finished->emplace_back(std::move(live), std::move(info));
  };
  for (auto& [name, queue] : queues_) {
    bool changed = false;
    for (auto it = queue->waiting.begin(); it != queue->waiting.end();) {
      if (!(*it)->cancelled) {
        ++it;
        continue;
      }
      take(std::move(*it));
      it = queue->waiting.erase(it);
      --waiting_;
      changed = true;
    }
    for (auto it = queue->running.begin(); it != queue->running.end();) {
      if (!(*it)->cancelled) {
        ++it;
        continue;
      }
      take(std::move(*it));
      it = queue->running.erase(it);
      held_band_ = kNoBand;
      changed = true;
    }
    if (changed) SetQueueGaugesLocked(*queue);
  }
}

void SchedulerImpl::ParkLocked(absl::Duration most) {
  engine_->manager()->StepsPause();
  parked_ = true;
  mutex_.AwaitWithTimeout(absl::Condition(&wake_), most);
  parked_ = false;
  wake_ = false;
}

void SchedulerImpl::Probe() {
  // Whoever holds the lock for long is seen to: State() does not return.
  if (!mutex_.TryLock()) return;
  ++probes_.asked;
  wake_ = true;
  mutex_.Unlock();
}

void SchedulerImpl::Loop() {
  os::NameThisThread("engine");
  for (;;) {
    Finished finished;
    ModelQueue* queue = nullptr;
    bool admit = true;
    uint64_t probe = 0;
    {
      absl::MutexLock lock(&mutex_);
      for (const std::string& id : late_.Take()) CancelLocked(id);
      CollectCancelledLocked(&finished);
      CollectOverdueLocked(&finished);
      ArbiterDecision decision;
      if (!stopping_) decision = DecideLocked(&queue);
      if (queue != nullptr) {
        admit = decision.admit;
        stepping_ = queue->model->name();
      } else if (finished.empty()) {
        if (stopping_) {
          engine_->manager()->StepsPause();
          return;
        }
        if (probes_.begun != probes_.asked) {
          probe = probes_.begun = probes_.asked;
        } else {
          ParkLocked(decision.wait_us >= 0 ? absl::Microseconds(decision.wait_us)
                                           : absl::InfiniteDuration());
        }
      }
    }
    Finish(std::move(finished));
    if (probe != 0 && engine_->Probe().ok()) {  // what fails is no answer
      absl::MutexLock lock(&mutex_);
      probes_.answered = probe;
      totals_.probed_us = clock_->NowUs();
    }
    if (queue == nullptr || RunStep(queue, admit)) continue;
    absl::MutexLock lock(&mutex_);
    ParkLocked(kStallWait);
  }
}

std::unique_ptr<LiveRequest> SchedulerImpl::TakeRunningLocked(ModelQueue* queue,
                                                              const LiveRequest* live) {
  auto it = std::find_if(queue->running.begin(), queue->running.end(),
                         [live](const auto& owned) { return owned.get() == live; });
  std::unique_ptr<LiveRequest> out = std::move(*it);
  queue->running.erase(it);
  NoteEndLocked(queue, *out);
  held_band_ = kNoBand;
  if (options_.cache != nullptr && out->kv) options_.cache->Touch(out->kv->shared_blocks());
  out->kv.reset();
  out->draft.reset();
  live_.erase(out->request->id);
  ++finishing_;
  return out;
}

FinishInfo SchedulerImpl::Info(const LiveRequest& live, FinishReason reason,
                               absl::Status status) const {
  FinishInfo info;
  info.reason = reason;
  info.status = std::move(status);
  info.cached_tokens = live.cached;
  info.restored_tokens = live.restored;
  info.kv_choice = live.kv_choice;
  info.guessed_tokens = live.guessed;
  info.moved_bytes = live.moved_bytes;
  info.accepted_tokens = live.accepted;
  info.prompt_tokens = static_cast<int32_t>(live.request->prompt.size());
  info.completion_tokens = live.generated;
  const int64_t started = live.started_us > 0 ? live.started_us : clock_->NowUs();
  info.timings.queue_us = started - live.submitted_us;
  info.timings.swap_us = live.swap_us;
  if (live.first_token_us > 0) {
    info.timings.prefill_us = live.first_token_us - started;
    info.timings.decode_us = live.last_token_us - live.first_token_us;
  }
  return info;
}

void SchedulerImpl::Finish(Finished finished) {
  for (auto& [live, info] : finished) {
    live->kv.reset();
    live->draft.reset();
    live->request->sink->OnFinish(info);
  }
  if (finished.empty()) return;
  absl::MutexLock lock(&mutex_);
  finishing_ -= static_cast<int32_t>(finished.size());
}

std::unique_ptr<Scheduler> Scheduler::Create(const SchedulerOptions& options,
                                             engine::Engine* engine, const Clock* clock,
                                             Metrics* metrics) {
  return std::make_unique<SchedulerImpl>(options, engine, clock, metrics);
}

}  // namespace terrace::scheduler
