#include "fake_scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"

namespace terrace::server {

FakeScheduler::FakeScheduler(Options options, std::function<Script(const SeenRequest&)> write)
    : options_(options), write_(std::move(write)), thread_([this] { Run(); }) {}

FakeScheduler::~FakeScheduler() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    ++changes_;
  }
  thread_.join();
}

absl::Status FakeScheduler::AddAdapter(std::shared_ptr<engine::EngineModel>,
                                       std::shared_ptr<const engine::Adapter>) {
  return absl::OkStatus();
}

absl::Status FakeScheduler::AddModel(std::shared_ptr<engine::EngineModel>) {
  return absl::OkStatus();
}
absl::Status FakeScheduler::RemoveModel(const std::string&) { return absl::OkStatus(); }

absl::Status FakeScheduler::Submit(std::unique_ptr<Request> request) {
  absl::MutexLock lock(&mutex_);
  if (!fail_next_.ok()) return std::exchange(fail_next_, absl::OkStatus());
  if (draining_ || stopping_) return absl::UnavailableError("draining");
  if (queue_.size() >= options_.max_queue) return absl::ResourceExhaustedError("queue full");
  Active active;
  active.seen = {request->id,
                 request->model,
                 request->prompt,
                 request->sampling,
                 request->max_tokens,
                 request->end_tokens,
                 request->constraint != nullptr,
                 request->prompt_logprobs};
  active.request = std::move(request);
  submitted_.push_back(active.seen);
  queue_.push_back(std::move(active));
  ++changes_;
  return absl::OkStatus();
}

void FakeScheduler::Cancel(const std::string& request_id) {
  absl::MutexLock lock(&mutex_);
  for (Active& active : queue_) {
    if (active.request->id == request_id) active.cancelled = true;
  }
  ++changes_;
}

bool FakeScheduler::Drain(int64_t timeout_us) {
  {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
  }
  if (WaitIdle(timeout_us)) return true;
  absl::MutexLock lock(&mutex_);
  for (Active& active : queue_) active.cancelled = true;
  ++changes_;
  return false;
}

scheduler::SchedulerState FakeScheduler::State() const {
  absl::MutexLock lock(&mutex_);
  scheduler::SchedulerState state;
  state.draining = draining_;
  state.generated_tokens = tokens_;
  return state;
}

void FakeScheduler::set_script(std::function<Script(const SeenRequest&)> write) {
  absl::MutexLock lock(&mutex_);
  write_ = std::move(write);
}

void FakeScheduler::FailNextSubmit(absl::Status status) {
  absl::MutexLock lock(&mutex_);
  fail_next_ = std::move(status);
}

std::vector<SeenRequest> FakeScheduler::submitted() const {
  absl::MutexLock lock(&mutex_);
  return submitted_;
}

std::vector<std::string> FakeScheduler::started() const {
  absl::MutexLock lock(&mutex_);
  return started_;
}

int64_t FakeScheduler::cancelled() const {
  absl::MutexLock lock(&mutex_);
  return cancelled_;
}

uint64_t FakeScheduler::tokens() const {
  absl::MutexLock lock(&mutex_);
  return tokens_;
}

size_t FakeScheduler::active() const {
  absl::MutexLock lock(&mutex_);
  return queue_.size();
}

bool FakeScheduler::WaitIdle(int64_t timeout_us) const {
  auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return queue_.empty(); };
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&idle), absl::Microseconds(timeout_us));
}

void FakeScheduler::Finish(Active* active, FinishReason reason, absl::Status status) {
  FinishInfo info;
  info.reason = reason;
  info.status = std::move(status);
  info.prompt_tokens = static_cast<int32_t>(active->seen.prompt.size());
  info.completion_tokens = active->given;
  info.kv_choice = active->script.kv_choice;
  info.cached_tokens = info.restored_tokens = active->script.cached_tokens;
  active->request->sink->OnFinish(info);
}

int32_t FakeScheduler::Choose(Active* active) {
  constexpr size_t kVocab = 300;
  const Request& request = *active->request;
  std::vector<float> logits(kVocab, 0.0f);
  logits['"'] = 5;
  logits['}'] = 4;
  logits[']'] = 3;
  logits['0'] = 2;
  for (int32_t end : request.end_tokens) logits[static_cast<size_t>(end)] = 8;
  const auto& tokens = active->script.tokens;
  const int32_t wanted = active->next < tokens.size() ? tokens[active->next] : -1;
  if (wanted >= 0) logits[static_cast<size_t>(wanted)] = 10;
  request.constraint->Mask(logits);
  const auto best = std::max_element(logits.begin(), logits.end());
  if (*best == -std::numeric_limits<float>::infinity()) return -1;
  const auto token = static_cast<int32_t>(best - logits.begin());
  if (token == wanted) ++active->next;
  request.constraint->Accept(token);
  return token;
}

bool FakeScheduler::Step(Active* active) {
  const Script& script = active->script;
  const Request& request = *active->request;
  if (request.embed) {  // a vector that tells prompts apart
    const std::vector<float> state = {static_cast<float>(request.prompt.size()),
                                      static_cast<float>(request.prompt.back()), 1.0f, 0.0f};
    request.sink->OnEmbedding(state);
    Finish(active, FinishReason::kStop, absl::OkStatus());
    return true;
  }
  // Prompt token i has the logprob -i / 4, and as alternatives those after it.
  for (size_t i = 1; request.prompt_logprobs && !active->scored && i < request.prompt.size(); ++i) {
    TokenEvent event{.token = request.prompt[i], .logprob = -0.25f * static_cast<float>(i)};
    for (int32_t j = 0; j < *request.sampling.top_logprobs; ++j) {
      event.top.push_back({event.token + j, event.logprob - static_cast<float>(j)});
    }
    request.sink->OnPromptToken(event);
  }
  active->scored = true;
  const bool constrained = request.constraint != nullptr;
  if (active->next == script.tokens.size() && script.repeat) active->next = 0;
  if (active->next == script.tokens.size() && !constrained) {
    Finish(active, script.fail.ok() ? FinishReason::kStop : FinishReason::kError, script.fail);
    return true;
  }
  TokenEvent event{.token = constrained ? Choose(active) : script.tokens[active->next++]};
  if (event.token < 0) {
    Finish(active, FinishReason::kError, absl::InvalidArgumentError("no token can follow"));
    return true;
  }
  const auto& ends = request.end_tokens;
  if (!script.pass_end_tokens && std::find(ends.begin(), ends.end(), event.token) != ends.end()) {
    Finish(active, FinishReason::kStop, absl::OkStatus());
    return true;
  }
  if (request.sampling.top_logprobs) {
    event.logprob = -0.5f;
    for (int32_t i = 0; i < *request.sampling.top_logprobs; ++i) {
      event.top.push_back({event.token + i, -0.5f - static_cast<float>(i)});
    }
    // What a forbidden token has.
    if (!event.top.empty()) event.top.back().logprob = -std::numeric_limits<float>::infinity();
  }
  ++active->given;
  if (!request.sink->OnToken(event)) {
    Finish(active, FinishReason::kStop, absl::OkStatus());
    return true;
  }
  if (constrained && request.constraint->Finished()) {
    Finish(active, FinishReason::kStop, absl::OkStatus());
    return true;
  }
  if (active->given >= request.max_tokens) {
    Finish(active, FinishReason::kLength, absl::OkStatus());
    return true;
  }
  return false;
}

void FakeScheduler::Run() {
  RealClock clock;
  uint64_t seen_changes = 0;
  for (;;) {
    std::list<Active> ended;
    std::vector<Active*> due;
    int64_t next_us = std::numeric_limits<int64_t>::max();
    {
      absl::MutexLock lock(&mutex_);
      const int64_t now = clock.NowUs();
      size_t running = 0;
      for (auto it = queue_.begin(); it != queue_.end();) {
        auto each = it++;
        if (each->cancelled || stopping_) {
          ++cancelled_;
          ended.splice(ended.end(), queue_, each);
          continue;
        }
        if (++running > options_.max_running) continue;
        if (!each->started) {
          each->started = true;
          started_.push_back(each->seen.id);
          each->script = write_(each->seen);
          each->next_us = now + each->script.step_us;
        }
        if (each->next_us <= now) {
          due.push_back(&*each);
        } else {
          next_us = std::min(next_us, each->next_us);
        }
      }
      if (stopping_ && queue_.empty() && ended.empty()) return;
    }
    for (Active& active : ended) Finish(&active, FinishReason::kCancelled, absl::OkStatus());
    ended.clear();
    std::vector<Active*> finished;
    for (Active* active : due) {
      if (Step(active)) finished.push_back(active);
      active->next_us += active->script.step_us;
    }
    absl::MutexLock lock(&mutex_);
    tokens_ += due.size() - std::min(due.size(), finished.size());
    for (Active* active : finished) {
      queue_.remove_if([active](const Active& each) { return &each == active; });
    }
    if (!due.empty()) continue;
    auto changed = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return changes_ != seen_changes; };
    const int64_t wait = next_us == std::numeric_limits<int64_t>::max()
                             ? int64_t{3600} * 1'000'000
                             : std::max<int64_t>(next_us - clock.NowUs(), 0);
    mutex_.AwaitWithTimeout(absl::Condition(&changed), absl::Microseconds(wait));
    seen_changes = changes_;
  }
}

}  // namespace terrace::server
