#include "scheduler/scheduler.h"

#include <algorithm>
#include <deque>
#include <map>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/status.h"
#include "base/units.h"
#include "engine/engine.h"
#include "kv/cache.h"
#include "obs/metrics.h"
#include "scheduler/live_request.h"
#include "scheduler/plan.h"

namespace terrace::scheduler {
namespace {

// Tokens of growth booked beyond the prompt when a request is admitted; more is taken as it comes,
// and the youngest request gives way if it cannot be had.
constexpr int32_t kBookedGrowth = 256;

// Pinning resident segments takes some microseconds; a wait above this is for weights on their way.
constexpr int64_t kSwapFloorUs = 1000;

// Steps of fewer prompt rows than this say little about the prefill rate.
constexpr size_t kRateRows = 32;
constexpr double kRateWeight = 0.3;
// How long the loop sleeps when there is work that cannot go on (no memory, KV on its way) and
// nothing tells it that something changed.
constexpr absl::Duration kStallWait = absl::Milliseconds(2);

// One model and its requests.
struct ModelQueue {
  std::shared_ptr<engine::EngineModel> model;
  std::deque<std::unique_ptr<LiveRequest>> waiting;
  std::vector<std::unique_ptr<LiveRequest>> running;  // oldest first
  int64_t waiting_since_us = 0;
  bool removed = false;
  kv::BlockKey root;
  double prefill_tokens_per_s = 0;  // moving average; 0: not known yet

  bool has_work() const { return !waiting.empty() || !running.empty(); }
  // What the running sequences may come to before anyone is asked to give way.
  uint64_t booked_kv_bytes() const {
    uint64_t bytes = 0;
    for (const auto& live : running) {
      bytes += std::max(live->kv->blocks().size() * live->kv->block_bytes(), BookedBytes(*live));
    }
    return bytes;
  }
  uint64_t BookedBytes(const LiveRequest& live) const {
    const auto tokens = static_cast<int32_t>(live.tokens.size());
    return model->KvBytes(std::min(live.token_limit, tokens + kBookedGrowth));
  }
};

class SchedulerImpl final : public Scheduler {
 public:
  SchedulerImpl(const SchedulerOptions& options, engine::Engine* engine, const Clock* clock,
                Metrics* metrics)
      : options_(options), engine_(engine), clock_(clock), metrics_(metrics),
        device_budget_bytes_(engine->manager()->Snapshot().device_budget_bytes),
        random_(options.seed) {
    plan_options_.max_wait_us = options.max_wait_us;
    thread_ = std::thread([this] { Loop(); });
  }

  ~SchedulerImpl() override {
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

  absl::Status AddModel(std::shared_ptr<engine::EngineModel> model) override;
  absl::Status RemoveModel(const std::string& name) override;
  absl::Status Submit(std::unique_ptr<Request> request) override;
  void Cancel(const std::string& request_id) override;
  bool Drain(int64_t timeout_us) override;
  SchedulerState State() const override;

 private:
  using Finished = std::vector<std::pair<std::unique_ptr<LiveRequest>, FinishInfo>>;

  void Loop();
  // Runs one step of `queue`; false if none of its requests could go on.
  bool RunStep(ModelQueue* queue, bool admit) ABSL_LOCKS_EXCLUDED(mutex_);
  // Gives a request its KV: empty, or begun with what the cache holds.
  void BeginKvLocked(ModelQueue* queue, LiveRequest* live) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether `blocks` stored blocks are had sooner by loading than by computing; says why.
  bool WorthLoadingLocked(const ModelQueue& queue, const LiveRequest& live, size_t blocks,
                          std::string* why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnRestored(const std::string& id, std::vector<kv::BlockRef> blocks)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void BuildStepLocked(ModelQueue* queue, int64_t now_us, std::vector<LiveRequest*>* step,
                       std::vector<engine::StepEntry>* entries)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AdmitLocked(ModelQueue* queue) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes cancelled requests out of every queue.
  void CollectCancelledLocked(Finished* finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CancelAllLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::unique_ptr<LiveRequest> TakeRunningLocked(ModelQueue* queue, const LiveRequest* live)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  PlanDecision DecideLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What weights and KV may take: the device budget less the engine's workspace.
  uint64_t Budget() const {
    return device_budget_bytes_ - std::min(device_budget_bytes_, engine_->workspace_bytes());
  }
  // After a step that failed for want of memory: sends the youngest sequence back to wait. False if
  // there was only one in the whole scheduler.
  bool PreemptLocked(ModelQueue* preferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Fails what the step ran, or makes room for it.
  void HandleStepError(ModelQueue* queue, const std::vector<LiveRequest*>& step,
                       const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  // Samples for one entry; true if the request has ended, with `info` filled.
  bool Advance(LiveRequest* live, std::span<float> logits, FinishInfo* info);
  FinishInfo Info(const LiveRequest& live, FinishReason reason, absl::Status status) const;
  void Finish(Finished finished) ABSL_LOCKS_EXCLUDED(mutex_);
  void SetQueueGaugesLocked(const ModelQueue& queue) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const SchedulerOptions options_;
  PlanOptions plan_options_;
  engine::Engine* const engine_;
  const Clock* const clock_;
  Metrics* const metrics_;
  const uint64_t device_budget_bytes_;

  mutable absl::Mutex mutex_;
  std::map<std::string, std::unique_ptr<ModelQueue>> queues_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, LiveRequest*> live_ ABSL_GUARDED_BY(mutex_);
  std::vector<LiveRequest*> in_step_ ABSL_GUARDED_BY(mutex_);
  std::string current_ ABSL_GUARDED_BY(mutex_);  // model that has the turn
  std::string stepping_ ABSL_GUARDED_BY(mutex_);  // model whose step runs now, else empty
  int64_t last_work_us_ ABSL_GUARDED_BY(mutex_) = 0;
  int32_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  int32_t restores_ ABSL_GUARDED_BY(mutex_) = 0;  // loads of KV under way
  int32_t finishing_ ABSL_GUARDED_BY(mutex_) = 0;  // ended, but their sinks not yet told
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool wake_ ABSL_GUARDED_BY(mutex_) = false;
  // Set when a sequence had to give way for memory, until another ends: letting it in at once would
  // only repeat that.
  bool hold_admission_ ABSL_GUARDED_BY(mutex_) = false;
  SchedulerState totals_ ABSL_GUARDED_BY(mutex_);

  // Set while a step runs whose every request has been cancelled.
  tier::CancelFlag step_cancel_;
  Random random_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

absl::Status SchedulerImpl::AddModel(std::shared_ptr<engine::EngineModel> model) {
  absl::MutexLock lock(&mutex_);
  auto queue = std::make_unique<ModelQueue>();
  const std::string name = model->name();
  queue->root = kv::RootKey({.fingerprint = model->weights().fingerprint(),
                             .adapter = "",
                             .kv_dtype = "f16",
                             .tenant = ""});
  queue->model = std::move(model);
  if (!queues_.emplace(name, std::move(queue)).second) {
    return absl::AlreadyExistsError(fmt::format("model '{}' is already registered", name));
  }
  return absl::OkStatus();
}

absl::Status SchedulerImpl::RemoveModel(const std::string& name) {
  std::unique_ptr<ModelQueue> queue;  // destroyed after the lock: closing a model may take a while
  absl::MutexLock lock(&mutex_);
  auto it = queues_.find(name);
  if (it == queues_.end() || it->second->removed) {
    return absl::NotFoundError(fmt::format("model '{}' is not registered", name));
  }
  it->second->removed = true;
  ModelQueue* raw = it->second.get();
  auto idle = [this, raw, &name] {
    mutex_.AssertHeld();
    return !raw->has_work() && stepping_ != name;
  };
  mutex_.Await(absl::Condition(&idle));
  queue = std::move(queues_[name]);
  queues_.erase(name);
  if (current_ == name) current_.clear();
  return absl::OkStatus();
}

absl::Status SchedulerImpl::Submit(std::unique_ptr<Request> request) {
  absl::MutexLock lock(&mutex_);
  if (draining_) return absl::UnavailableError("the server is shutting down");
  auto it = queues_.find(request->model);
  if (it == queues_.end() || it->second->removed) {
    return absl::NotFoundError(fmt::format("model '{}' is not registered", request->model));
  }
  ModelQueue* queue = it->second.get();
  const engine::EngineModel& model = *queue->model;
  const auto prompt = static_cast<int32_t>(request->prompt.size());
  if (prompt < 1 || request->max_tokens < 1) {
    return absl::InvalidArgumentError("a request needs a prompt token and room for one more");
  }
  if (prompt >= model.max_context()) {
    return absl::InvalidArgumentError(
        fmt::format("the prompt has {} tokens, but the context of model '{}' is {} tokens", prompt,
                    model.name(), model.max_context()));
  }
  for (int32_t token : request->prompt) {
    if (token < 0 || token >= model.vocab_size()) {
      return absl::InvalidArgumentError(fmt::format("prompt token {} is outside the vocabulary of "
                                                    "{} tokens", token, model.vocab_size()));
    }
  }
  const uint64_t budget = Budget();
  const uint64_t need = model.KvBytes(prompt + 1);
  const uint64_t weights = std::min(model.weights().total_bytes(), budget);
  if (need > budget || (model.weights().total_bytes() <= budget && weights + need > budget)) {
    return absl::ResourceExhaustedError(fmt::format(
        "model '{}' needs {} of weights and {} of KV for {} prompt tokens, more than the device "
        "budget of {}",
        model.name(), FormatBytes(model.weights().total_bytes()), FormatBytes(need), prompt,
        FormatBytes(budget)));
  }
  if (waiting_ >= options_.max_queue) {
    return absl::ResourceExhaustedError(
        fmt::format("the queue is full ({} requests are waiting)", waiting_));
  }
  if (live_.contains(request->id)) {
    return absl::AlreadyExistsError(fmt::format("request id '{}' is in use", request->id));
  }
  auto live = std::make_unique<LiveRequest>();
  live->submitted_us = clock_->NowUs();
  live->tokens = request->prompt;
  live->token_limit = static_cast<int32_t>(
      std::min<int64_t>(model.max_context(), int64_t{prompt} + request->max_tokens));
  const uint64_t seed = request->sampling.seed.value_or(random_.Next());
  live->request = std::move(request);
  live->sampler = std::make_unique<engine::Sampler>(&live->request->sampling,
                                                    live->request->prompt, seed);
  if (!queue->has_work()) queue->waiting_since_us = live->submitted_us;
  live_[live->request->id] = live.get();
  queue->waiting.push_back(std::move(live));
  ++waiting_;
  SetQueueGaugesLocked(*queue);
  wake_ = true;
  return absl::OkStatus();
}

void SchedulerImpl::Cancel(const std::string& request_id) {
  absl::MutexLock lock(&mutex_);
  auto it = live_.find(request_id);
  if (it == live_.end()) return;
  it->second->cancelled = true;
  wake_ = true;
  const bool whole_step = !in_step_.empty() &&
                          std::all_of(in_step_.begin(), in_step_.end(),
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
  for (const auto& [name, queue] : queues_) {
    state.models.push_back({name, static_cast<int32_t>(queue->waiting.size()),
                            static_cast<int32_t>(queue->running.size())});
  }
  return state;
}

void SchedulerImpl::SetQueueGaugesLocked(const ModelQueue& queue) {
  const std::string& name = queue.model->name();
  metrics_->Set(MetricId::kQueueLength, {name}, static_cast<double>(queue.waiting.size()));
  metrics_->Set(MetricId::kRunningRequests, {name}, static_cast<double>(queue.running.size()));
}

PlanDecision SchedulerImpl::DecideLocked() {
  PlanInput input;
  std::vector<ModelView> views;
  std::vector<const std::string*> names;
  for (const auto& [name, queue] : queues_) {
    ModelView view;
    view.waiting = static_cast<int32_t>(queue->waiting.size());
    view.running = static_cast<int32_t>(
        std::count_if(queue->running.begin(), queue->running.end(),
                      [](const auto& live) { return !live->restoring; }));
    view.waiting_since_us = queue->waiting_since_us;
    view.weight_bytes = queue->model->weights().total_bytes();
    view.kv_bytes = queue->booked_kv_bytes();
    if (name == current_) input.current = static_cast<int32_t>(views.size());
    views.push_back(view);
    names.push_back(&name);
  }
  input.now_us = clock_->NowUs();
  input.budget_bytes = Budget();
  input.last_work_us = last_work_us_;
  input.models = views;
  PlanDecision decision = Plan(plan_options_, input);
  if (decision.model >= 0) {
    const std::string& chosen = *names[static_cast<size_t>(decision.model)];
    if (chosen != current_) {
      if (!current_.empty()) ++totals_.model_switches;
      current_ = chosen;
    }
  }
  return decision;
}

void SchedulerImpl::CollectCancelledLocked(Finished* finished) {
  const absl::Status status = absl::CancelledError("the client gave up");
  auto take = [&](std::unique_ptr<LiveRequest> live) {
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
      hold_admission_ = false;
      changed = true;
    }
    if (changed) SetQueueGaugesLocked(*queue);
  }
}

void SchedulerImpl::AdmitLocked(ModelQueue* queue) {
  uint64_t kv_bytes = 0;
  size_t running = 0;
  for (const auto& [name, other] : queues_) {
    kv_bytes += other->booked_kv_bytes();
    running += other->running.size();
  }
  const uint64_t budget = Budget();
  const uint64_t weights = std::min(queue->model->weights().total_bytes(), budget);
  while (!queue->waiting.empty() &&
         queue->running.size() < static_cast<size_t>(options_.max_batch)) {
    std::unique_ptr<LiveRequest>& live = queue->waiting.front();
    const uint64_t need = queue->BookedBytes(*live);
    // Alone, a request that can fit at all is let in and grows as far as it can.
    if (running > 0 && weights + kv_bytes + need > budget) break;
    kv_bytes += need;
    ++running;
    BeginKvLocked(queue, live.get());
    queue->running.push_back(std::move(live));
    queue->waiting.pop_front();
    --waiting_;
  }
}

void SchedulerImpl::Loop() {
  for (;;) {
    Finished finished;
    ModelQueue* queue = nullptr;
    bool admit = true;
    {
      absl::MutexLock lock(&mutex_);
      CollectCancelledLocked(&finished);
      PlanDecision decision;
      if (!stopping_) decision = DecideLocked();
      if (decision.model >= 0) {
        queue = queues_[current_].get();
        admit = decision.admit;
        stepping_ = current_;
      } else if (finished.empty()) {
        if (stopping_) return;
        const absl::Duration wait =
            decision.wait_us >= 0 ? absl::Microseconds(decision.wait_us) : absl::InfiniteDuration();
        mutex_.AwaitWithTimeout(absl::Condition(&wake_), wait);
        wake_ = false;
      }
    }
    Finish(std::move(finished));
    if (queue == nullptr || RunStep(queue, admit)) continue;
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&wake_), kStallWait);
    wake_ = false;
  }
}

bool SchedulerImpl::WorthLoadingLocked(const ModelQueue& queue, const LiveRequest& live,
                                       size_t blocks, std::string* why) {
  const double disk_rate = options_.cache->store()->State().read_bytes_per_s;
  if (disk_rate <= 0 || queue.prefill_tokens_per_s <= 0) {
    *why = "loaded: no rates measured yet";
    return true;
  }
  const double bytes = static_cast<double>(blocks * live.kv->block_bytes());
  const double queued = static_cast<double>(restores_);
  const double load_s = bytes / disk_rate * (1 + queued);
  const double compute_s =
      static_cast<double>(blocks) * kv::kBlockTokens / queue.prefill_tokens_per_s;
  const bool load = load_s < compute_s;
  *why = fmt::format("{}: load {:.1f} ms, compute {:.1f} ms", load ? "loaded" : "recomputed",
                     load_s * 1e3, compute_s * 1e3);
  return load;
}

void SchedulerImpl::BeginKvLocked(ModelQueue* queue, LiveRequest* live) {
  const tier::Owner owner{queue->model->name(), live->request->tenant, tier::Kind::kKv};
  const kv::BlockKey root = live->request->tenant.empty()
                                ? queue->root
                                : kv::RootKey({queue->model->weights().fingerprint(), "", "f16",
                                               live->request->tenant});
  live->kv.emplace(engine_->manager(), options_.cache, root, owner,
                   queue->model->kv_geometry().block_bytes());
  if (options_.cache == nullptr) return;
  // The last token is always computed: its logits are wanted.
  kv::Cache::Found found = options_.cache->Find(
      root, std::span<const int32_t>(live->tokens).first(live->tokens.size() - 1));
  const auto device_tokens = static_cast<int32_t>(found.device.size()) * kv::kBlockTokens;
  if (live->first_token_us == 0) live->cached = device_tokens;
  live->kv->Adopt(std::move(found.device));
  if (found.stored.empty()) return;
  if (!WorthLoadingLocked(*queue, *live, found.stored.size(), &live->kv_choice)) return;
  live->restoring = true;
  ++restores_;
  options_.cache->Load(std::move(found.stored), owner, live->kv->block_bytes(),
                       [this, id = live->request->id](std::vector<kv::BlockRef> blocks) {
                         OnRestored(id, std::move(blocks));
                       });
}

void SchedulerImpl::OnRestored(const std::string& id, std::vector<kv::BlockRef> blocks) {
  absl::MutexLock lock(&mutex_);
  --restores_;
  wake_ = true;
  auto it = live_.find(id);
  if (it == live_.end() || !it->second->restoring) return;
  it->second->arrived = std::move(blocks);
  it->second->restoring = false;
}

void SchedulerImpl::BuildStepLocked(ModelQueue* queue, int64_t now_us,
                                    std::vector<LiveRequest*>* step,
                                    std::vector<engine::StepEntry>* entries) {
  int32_t rows_left = options_.step_tokens;
  auto add = [&](LiveRequest* live, int32_t count) {
    engine::StepEntry entry;
    entry.kv = &*live->kv;
    entry.tokens = std::span<const int32_t>(live->tokens)
                       .subspan(static_cast<size_t>(live->kv->length()),
                                static_cast<size_t>(count));
    entry.want_logits = count == live->pending();
    entries->push_back(entry);
    step->push_back(live);
    rows_left -= count;
    if (live->started_us != 0) return;
    live->started_us = now_us;
    metrics_->Observe(MetricId::kQueueSeconds, {queue->model->name()},
                      static_cast<double>(now_us - live->submitted_us) * 1e-6);
    metrics_->Count(MetricId::kPromptTokens, {queue->model->name()},
                    static_cast<double>(live->request->prompt.size()));
  };
  for (auto& live : queue->running) {
    if (live->restoring || live->arrived.empty()) continue;
    live->restored = static_cast<int32_t>(live->arrived.size()) * kv::kBlockTokens;
    live->cached += live->restored;
    live->kv->Adopt(std::move(live->arrived));
    live->arrived.clear();
  }
  // Streams that decode come first, so that a long prompt does not stall them; prompts share what
  // is left of the step.
  for (auto& live : queue->running) {
    if (!live->restoring && live->pending() == 1 && rows_left > 0) add(live.get(), 1);
  }
  for (auto& live : queue->running) {
    if (!live->restoring && live->pending() > 1 && rows_left > 0) {
      add(live.get(), std::min(live->pending(), rows_left));
    }
  }
}

bool SchedulerImpl::RunStep(ModelQueue* queue, bool admit) {
  std::vector<LiveRequest*> step;
  std::vector<engine::StepEntry> entries;
  const int64_t start_us = clock_->NowUs();
  {
    absl::MutexLock lock(&mutex_);
    if (admit && (!hold_admission_ || queue->running.empty())) AdmitLocked(queue);
    BuildStepLocked(queue, start_us, &step, &entries);
    in_step_ = step;
    step_cancel_.cancelled = false;
    SetQueueGaugesLocked(*queue);
    if (entries.empty()) {
      stepping_.clear();
      return false;
    }
  }
  absl::StatusOr<engine::StepResult> result =
      engine_->Step(*queue->model, entries, &step_cancel_);
  if (!result.ok()) {
    HandleStepError(queue, step, result.status());
    return true;
  }
  std::vector<std::pair<LiveRequest*, FinishInfo>> ended;
  uint64_t prompt_rows = 0, generated = 0;
  for (size_t i = 0; i < step.size(); ++i) {
    LiveRequest* live = step[i];
    if (live->first_token_us == 0) live->swap_us += result->weight_wait_us;
    if (entries[i].tokens.size() > 1 || live->first_token_us == 0) {
      prompt_rows += entries[i].tokens.size();
    }
    engine::EntryResult& entry = result->entries[i];
    if (!entry.status.ok()) {
      ended.emplace_back(live, Info(*live, FinishReason::kError, entry.status));
      continue;
    }
    if (entry.logits.empty() || live->cancelled) continue;
    FinishInfo info;
    const int32_t before = live->generated;
    if (Advance(live, entry.logits, &info)) ended.emplace_back(live, std::move(info));
    generated += static_cast<uint64_t>(live->generated - before);
  }
  Finished finished;
  {
    absl::MutexLock lock(&mutex_);
    for (auto& [live, info] : ended) {
      finished.emplace_back(TakeRunningLocked(queue, live), std::move(info));
    }
    in_step_.clear();
    stepping_.clear();
    last_work_us_ = clock_->NowUs();
    queue->waiting_since_us = last_work_us_;
    totals_.last_step_us = last_work_us_;
    totals_.prompt_tokens += prompt_rows;
    totals_.generated_tokens += generated;
    const int64_t busy_us = last_work_us_ - start_us - result->weight_wait_us;
    if (prompt_rows >= kRateRows && busy_us > 0) {
      const double rate = static_cast<double>(prompt_rows) * 1e6 / static_cast<double>(busy_us);
      double& average = queue->prefill_tokens_per_s;
      average = average == 0 ? rate : average * (1 - kRateWeight) + rate * kRateWeight;
    }
    SetQueueGaugesLocked(*queue);
  }
  Finish(std::move(finished));
  return true;
}

std::unique_ptr<LiveRequest> SchedulerImpl::TakeRunningLocked(ModelQueue* queue,
                                                              const LiveRequest* live) {
  auto it = std::find_if(queue->running.begin(), queue->running.end(),
                         [live](const auto& owned) { return owned.get() == live; });
  std::unique_ptr<LiveRequest> out = std::move(*it);
  queue->running.erase(it);
  hold_admission_ = false;
  out->kv.reset();
  live_.erase(out->request->id);
  ++finishing_;
  return out;
}

bool SchedulerImpl::PreemptLocked(ModelQueue* preferred) {
  // Paused sequences of other models give way first; then the youngest of this one.
  ModelQueue* victim_queue = nullptr;
  size_t total = 0;
  for (auto& [name, queue] : queues_) {
    total += queue->running.size();
    if (queue.get() != preferred && !queue->running.empty()) victim_queue = queue.get();
  }
  if (total < 2) return false;
  if (victim_queue == nullptr) victim_queue = preferred;
  std::unique_ptr<LiveRequest> victim = std::move(victim_queue->running.back());
  victim_queue->running.pop_back();
  victim->kv.reset();
  victim->restoring = false;
  victim->arrived.clear();
  victim_queue->waiting.push_front(std::move(victim));
  ++waiting_;
  hold_admission_ = true;
  return true;
}

void SchedulerImpl::HandleStepError(ModelQueue* queue, const std::vector<LiveRequest*>& step,
                                    const absl::Status& status) {
  Finished finished;
  {
    absl::MutexLock lock(&mutex_);
    in_step_.clear();
    stepping_.clear();
    last_work_us_ = clock_->NowUs();
    queue->waiting_since_us = last_work_us_;
    const bool cancelled = absl::IsCancelled(status);
    const bool made_room = absl::IsResourceExhausted(status) && PreemptLocked(queue);
    if (!cancelled && !made_room) {
      for (LiveRequest* live : step) {
        finished.emplace_back(TakeRunningLocked(queue, live),
                              Info(*live, FinishReason::kError, status));
      }
    }
    SetQueueGaugesLocked(*queue);
  }
  Finish(std::move(finished));
}

bool SchedulerImpl::Advance(LiveRequest* live, std::span<float> logits, FinishInfo* info) {
  const Request& request = *live->request;
  const TokenEvent event = live->sampler->Sample(logits, request.constraint.get());
  const int64_t now_us = clock_->NowUs();
  if (live->first_token_us == 0) {
    live->first_token_us = now_us;
    metrics_->Observe(MetricId::kTimeToFirstTokenSeconds, {request.model},
                      static_cast<double>(now_us - live->submitted_us) * 1e-6);
    if (live->swap_us > kSwapFloorUs) {
      metrics_->Count(MetricId::kSwaps, {request.model});
      metrics_->Observe(MetricId::kSwapSeconds, {request.model},
                        static_cast<double>(live->swap_us) * 1e-6);
    }
  } else {
    metrics_->Observe(MetricId::kInterTokenSeconds, {request.model},
                      static_cast<double>(now_us - live->last_token_us) * 1e-6);
  }
  live->last_token_us = now_us;
  const std::vector<int32_t>& ends = request.end_tokens;
  if (std::find(ends.begin(), ends.end(), event.token) != ends.end()) {
    *info = Info(*live, FinishReason::kStop, absl::OkStatus());
    return true;
  }
  live->tokens.push_back(event.token);
  ++live->generated;
  metrics_->Count(MetricId::kGeneratedTokens, {request.model});
  if (!request.sink->OnToken(event)) {
    *info = Info(*live, FinishReason::kStop, absl::OkStatus());
    return true;
  }
  if (static_cast<int32_t>(live->tokens.size()) >= live->token_limit) {
    *info = Info(*live, FinishReason::kLength, absl::OkStatus());
    return true;
  }
  return false;
}

FinishInfo SchedulerImpl::Info(const LiveRequest& live, FinishReason reason,
                               absl::Status status) const {
  FinishInfo info;
  info.reason = reason;
  info.status = std::move(status);
  info.cached_tokens = live.cached;
  info.restored_tokens = live.restored;
  info.kv_choice = live.kv_choice;
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
    live->request->sink->OnFinish(info);
  }
  if (finished.empty()) return;
  absl::MutexLock lock(&mutex_);
  finishing_ -= static_cast<int32_t>(finished.size());
}

}  // namespace

std::unique_ptr<Scheduler> Scheduler::Create(const SchedulerOptions& options,
                                             engine::Engine* engine, const Clock* clock,
                                             Metrics* metrics) {
  return std::make_unique<SchedulerImpl>(options, engine, clock, metrics);
}

}  // namespace terrace::scheduler
