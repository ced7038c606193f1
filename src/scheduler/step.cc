// What a step holds, and what its logits become.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "scheduler/scheduler_impl.h"

namespace terrace::scheduler {
namespace {

// Pinning resident segments takes some microseconds; a wait above this is for weights on their way.
constexpr int64_t kSwapFloorUs = 1000;
// Steps of fewer prompt rows than this say little about the prefill rate.
constexpr int32_t kRateRows = 32;
constexpr double kRateWeight = 0.3;
// Rows of streams up to which guesses are added: as long as a step's time is that of reading the
// weights once, more rows are almost free; beyond, wrong guesses cost other streams.
constexpr int32_t kGuessRows = 16;
// Rows that a draft model may catch up on beside one step, so that a long prompt does not stall the
// streams of others.
constexpr int32_t kDraftCatchUpRows = 64;
// What a step is held to that reads prompts, long ones too.
constexpr double kLongestStepUs = 500'000;
// The same when several tenants are there.
constexpr double kLongStepUs = 100'000;
// Prompt rows of those who give way: fewer take hardly less time, as the KV before them is read
// once for all.
constexpr int32_t kLeastGuestRows = 16;
// Of the others: fewer a step would hardly ever end a prompt.
constexpr int32_t kLeastRows = 8;
// Prompt rows of one step whose logits are all computed: bounds the workspace.
constexpr int32_t kScoredRows = 32;
// Tokens without guesses after guesses were wrong again and again.
constexpr int32_t kGuessPause = 16;

int64_t WaitedUs(const engine::StepResult& result) {
  return result.weight_wait_us + result.kv_wait_us;
}

// How long a step waits for its weights.
void Arm(const StepWork& work, tier::CancelFlag* cancel) {
  // They may all have been cancelled since the decision.
  cancel->cancelled = !work.requests.empty() &&
                      std::all_of(work.requests.begin(), work.requests.end(),
                                  [](const LiveRequest* live) { return live->cancelled.load(); });
  cancel->wait_until_us = work.weights_deadline_us();
  cancel->most_silence_us = kMostSilenceUs;
}

// The engine's step, of which the tier manager is told.
absl::StatusOr<engine::StepResult> Compute(const ModelQueue& queue, const StepWork& work,
                                           const tier::CancelFlag* cancel, engine::Engine* engine,
                                           const Clock& clock) {
  const int64_t start_us = clock.NowUs();
  AnnounceStep(queue, work, engine->manager());  // starting reads takes this thread's time, too
  absl::StatusOr<engine::StepResult> result = engine->Step(*queue.model, work.entries, cancel);
  engine->manager()->StepEnds(result.ok() ? clock.NowUs() - start_us - WaitedUs(*result) : 0);
  return result;
}

}  // namespace

int32_t SchedulerImpl::RowsInTimeLocked(const ModelQueue& queue, bool guests, int32_t depth,
                                        const StepWork& work) {
  // Whoever comes next finds no long step under way.
  const int64_t now_us = clock_->NowUs();
  const bool alone = work.entries.empty();
  const StepBudget& budget = queue.budget;
  if (!guests) {
    // Of a large model, that reads its weights for long, steps stay worth that.
    const double short_us = std::max(kLongStepUs, 4 * budget.AloneUs(1));
    const double us = shares_.Shared(now_us) ? std::min(short_us, kLongestStepUs) : kLongestStepUs;
    return budget.RowsWithin(us, depth, alone, kLeastRows, options_.step_tokens);
  }
  if (work.favoured && !shares_.PiecesMayRun(now_us)) return 0;
  return budget.RowsWithin(ComputeShares::kSliceUs, depth, alone, kLeastGuestRows, kLeastGuestRows);
}

void SchedulerImpl::AddRowsLocked(ModelQueue* queue, bool guests, int64_t now_us, StepWork* work) {
  auto add = [&](LiveRequest* live, int32_t count) {
    engine::StepEntry entry;
    entry.kv = &*live->kv;
    entry.tokens =
        std::span<const int32_t>(live->tokens)
            .subspan(static_cast<size_t>(live->kv->length()), static_cast<size_t>(count));
    entry.want_logits = count == live->pending();
    entry.adapter = live->adapter.get();
    entry.uniform = live->request->uniform;
    entry.every = live->scores() &&
                  live->kv->length() + 1 < static_cast<int32_t>(live->request->prompt.size());
    work->entries.push_back(entry);
    work->depths.push_back(live->kv->length());
    work->requests.push_back(live);
    (guests ? work->guests : work->favoured) = true;
    work->realtime |= live->request->sla == SlaClass::kRealtime;
    if (live->started_us != 0) return;
    live->started_us = now_us;
    metrics_->Observe(MetricId::kQueueSeconds, {queue->model->name()},
                      static_cast<double>(now_us - live->submitted_us) * 1e-6);
    metrics_->Count(MetricId::kPromptTokens, {queue->model->name()},
                    static_cast<double>(live->request->prompt.size()));
  };
  if (queue->model->architecture().config().encoder) {
    for (auto& live : queue->running) {  // each text as a whole
      if (live->guest != guests || live->paused) continue;
      if (work->prompt_rows > 0 && work->prompt_rows + live->pending() > options_.step_tokens) {
        continue;
      }
      work->prompt_rows += live->pending();
      add(live.get(), live->pending());
    }
    return;
  }
  // Streams that decode come first, so that a long prompt does not stall them; prompts share what
  // the budget leaves.
  std::vector<LiveRequest*> prompts;
  std::vector<int32_t> pending;
  int32_t to_score = kScoredRows;
  for (auto& live : queue->running) {
    if (!live->can_step() || live->guest != guests || live->pending() < 1) continue;
    if (live->pending() > 1) {
      int32_t wanted = live->pending();
      if (live->scores()) {
        wanted = std::min(wanted, to_score);
        to_score -= wanted;
        if (wanted < 2) continue;  // a later step has room
      }
      prompts.push_back(live.get());
      pending.push_back(wanted);
    } else if (work->decode_rows < options_.step_tokens) {
      add(live.get(), 1);
      ++work->decode_rows;
    }
  }
  if (prompts.empty()) return;
  int32_t room = queue->budget.PromptRows(work->decode_rows) - work->prompt_rows;
  room = std::min(room, RowsWithRoomLocked(*queue) - work->decode_rows - work->prompt_rows);
  int32_t depth = 0;  // the deepest prompt counts for all
  for (const LiveRequest* live : prompts) depth = std::max(depth, live->kv->length());
  room = std::min(room, RowsInTimeLocked(*queue, guests, depth, *work));
  const std::vector<int32_t> rows = SharePromptRows(pending, std::max(room, 0));
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (rows[i] == 0) continue;
    add(prompts[i], rows[i]);
    work->prompt_rows += rows[i];
  }
}

void SchedulerImpl::BuildStepLocked(ModelQueue* queue, int64_t now_us, StepWork* work) {
  work->others = favoured_live_;
  bool guests = false;  // that may run beside others
  work->loads_are_urgent = loads_are_urgent_;
  for (auto& live : queue->running) {
    live->guest = IsGuestLocked(*live, now_us);
    work->others |= live->can_step() && !live->guest;
    guests |= live->guest && GuestMayRunLocked(*live, now_us);
  }
  AddRowsLocked(queue, /*guests=*/false, now_us, work);
  // Those who give way run too if there is nothing else to do.
  if (work->entries.empty() || guests) {
    AddRowsLocked(queue, /*guests=*/true, now_us, work);
  }
}

void SchedulerImpl::GuessAhead(ModelQueue* queue, StepWork* work) {
  const engine::SpeculationOptions& how = queue->model->speculation();
  using Kind = engine::SpeculationOptions::Kind;
  if (how.kind == Kind::kNone) return;
  int32_t left = std::min(kGuessRows, options_.step_tokens) - work->decode_rows;
  std::vector<engine::DraftAsk> asks;
  std::vector<size_t> owners;  // entries of `asks`
  for (size_t i = 0; i < work->entries.size() && left > 0; ++i) {
    LiveRequest* live = work->requests[i];
    if (live->pending() != 1 || live->request->embed) continue;
    if (live->guess_pause > 0) {
      --live->guess_pause;
      continue;
    }
    const auto length = static_cast<int32_t>(live->tokens.size());
    engine::DraftAsk ask;
    ask.tokens = live->tokens;
    // The token after the last guess that is right must still be within the limit.
    ask.count = std::min({live->guess_length, left, live->token_limit - length - 1});
    if (ask.count <= 0) continue;
    if (how.kind == Kind::kNgram) {
      ask.guesses = live->ngrams.Guess(live->tokens, ask.count);
    } else {
      if (live->draft == nullptr) {
        live->draft = std::make_unique<engine::DraftSequence>(engine_->manager(), *how.draft,
                                                              live->request->tenant);
      }
      ask.sequence = live->draft.get();
    }
    left -= ask.count;
    asks.push_back(std::move(ask));
    owners.push_back(i);
  }
  if (how.kind == Kind::kDraft && !asks.empty()) {
    // Without guesses (no memory for the draft, a cancelled step) the step is an ordinary one.
    engine::Draft(*engine_, *how.draft, asks, kDraftCatchUpRows, &step_cancel_).IgnoreError();
  }
  for (size_t i = 0; i < asks.size(); ++i) {
    if (asks[i].guesses.empty()) continue;
    engine::StepEntry& entry = work->entries[owners[i]];
    LiveRequest* live = work->requests[owners[i]];
    live->step_tokens.assign(1, live->tokens.back());
    live->step_tokens.insert(live->step_tokens.end(), asks[i].guesses.begin(),
                             asks[i].guesses.end());
    entry.tokens = live->step_tokens;
    entry.guessed = static_cast<int32_t>(asks[i].guesses.size());
    work->guesses = true;
    work->decode_rows += entry.guessed;
  }
}

void SchedulerImpl::ScorePrompt(LiveRequest* live, std::span<const std::span<float>> each) {
  const std::vector<int32_t>& prompt = live->request->prompt;
  // The rows are those of the tokens that the sequence's KV has just grown by.
  int32_t next = live->kv->length() - static_cast<int32_t>(each.size()) + 1;
  for (const std::span<float> logits : each) {
    if (next >= live->scored && next < static_cast<int32_t>(prompt.size())) {
      const int32_t token = prompt[static_cast<size_t>(next)];
      live->request->sink->OnPromptToken(live->sampler->Score(logits, token));
      live->scored = next + 1;
    }
    ++next;
  }
}

bool SchedulerImpl::TakeLogits(LiveRequest* live, const engine::StepEntry& step_entry,
                               engine::EntryResult* entry, FinishInfo* info) {
  if (live->request->embed) {
    live->first_token_us = live->last_token_us = clock_->NowUs();
    live->request->sink->OnEmbedding(entry->state);
    *info = Info(*live, FinishReason::kStop, absl::OkStatus());
    return true;
  }
  bool ended = Advance(live, entry->logits, info);
  if (step_entry.guessed == 0) return ended;
  // Each token is sampled as if no guess had been made; a guess that equals it only means that the
  // logits after it are there already. So the distribution, and with a seed the text, is the same.
  const std::span<const int32_t> guesses =
      step_entry.tokens.last(static_cast<size_t>(step_entry.guessed));
  size_t right = 0;
  while (!ended && right < guesses.size() && live->tokens.back() == guesses[right]) {
    ended = Advance(live, entry->after_guess[right++], info);
  }
  live->kv->Commit(guesses.first(right));
  live->kv->TrimReserve();
  const auto accepted = static_cast<int32_t>(right);
  live->guessed += step_entry.guessed;
  live->accepted += accepted;
  if (accepted == step_entry.guessed) {
    live->guess_length = std::min(live->guess_length + 1, live->most_guesses);
  } else if (accepted == 0) {
    live->guess_length /= 2;
    if (live->guess_length == 0) {
      live->guess_length = 1;
      live->guess_pause = kGuessPause;
    }
  }
  const std::string& model = live->request->model;
  metrics_->Count(MetricId::kGuessedTokens, {model}, step_entry.guessed);
  metrics_->Count(MetricId::kAcceptedTokens, {model}, accepted);
  if (ended) {
    info->guessed_tokens = live->guessed;
    info->accepted_tokens = live->accepted;
  }
  return ended;
}

void SchedulerImpl::MeasureLocked(ModelQueue* queue, const StepWork& work, int64_t busy_us) {
  if (busy_us <= 0) return;
  queue->budget.OnStep(work.decode_rows, work.prompt_rows, busy_us, work.depth());
  ChargeLocked(queue, work, busy_us);
  double& average = queue->prefill_tokens_per_s;
  // Beside streams, prompts are read in small pieces and seem slow; better than knowing nothing.
  if (work.prompt_rows < kRateRows || (work.decode_rows > 0 && average > 0)) return;
  const double rate = static_cast<double>(work.prompt_rows) * 1e6 / static_cast<double>(busy_us);
  average = average == 0 ? rate : average * (1 - kRateWeight) + rate * kRateWeight;
}

bool SchedulerImpl::BeginStepLocked(ModelQueue* queue, bool admit, int64_t now_us, StepWork* work) {
  if (admit) AdmitLocked(queue);
  if (MakeRoomBesideWeightsLocked(queue)) BuildStepLocked(queue, now_us, work);
  in_step_ = work->requests;
  Arm(*work, &step_cancel_);
  give_up_for_ = GiveUpFor::kNobody;  // tokens are still to be guessed
  SetQueueGaugesLocked(*queue);
  if (work->entries.empty()) stepping_.clear();
  return !work->entries.empty();
}

bool SchedulerImpl::RunStep(ModelQueue* queue, bool admit) {
  StepWork work;
  int64_t start_us = clock_->NowUs();
  {
    absl::MutexLock lock(&mutex_);
    if (!BeginStepLocked(queue, admit, start_us, &work)) return false;
  }
  GuessAhead(queue, &work);
  {
    absl::MutexLock lock(&mutex_);
    give_up_for_ = work.give_up_for(/*loading=*/queue->missing_bytes > 0);
  }
  start_us = clock_->NowUs();
  absl::StatusOr<engine::StepResult> result =
      Compute(*queue, work, &step_cancel_, engine_, *clock_);
  if (!result.ok()) return HandleStepError(queue, work, start_us, result.status());
  {
    absl::MutexLock lock(&mutex_);
    SettleEarlyLocked(work.requests, true, result->kv_wait_us);
  }
  std::vector<std::pair<LiveRequest*, FinishInfo>> ended;
  uint64_t prompt_tokens = 0, generated = 0;
  for (size_t i = 0; i < work.requests.size(); ++i) {
    LiveRequest* live = work.requests[i];
    live->moved_bytes += result->moved_bytes / work.requests.size();
    if (live->first_token_us == 0) {
      live->swap_us += result->weight_wait_us;
      prompt_tokens += work.entries[i].tokens.size();
    }
    engine::EntryResult& entry = result->entries[i];
    if (!entry.status.ok()) {
      ended.emplace_back(live, Info(*live, FinishReason::kError, entry.status));
      continue;
    }
    if (!live->cancelled) ScorePrompt(live, entry.each);
    if (entry.logits.empty() || live->cancelled) {
      live->kv->TrimReserve();
      continue;
    }
    FinishInfo info;
    const int32_t before = live->generated;
    if (TakeLogits(live, work.entries[i], &entry, &info)) ended.emplace_back(live, std::move(info));
    generated += static_cast<uint64_t>(live->generated - before);
  }
  Finished finished;
  {
    absl::MutexLock lock(&mutex_);
    for (LiveRequest* live : work.requests) live->NoteStep(clock_->NowUs());
    for (auto& [live, info] : ended) {
      finished.emplace_back(TakeRunningLocked(queue, live), std::move(info));
    }
    in_step_.clear();
    stepping_.clear();
    last_work_us_ = clock_->NowUs();
    queue->waiting_since_us = last_work_us_;
    totals_.last_step_us = last_work_us_;
    const bool some = generated > 0 || !finished.empty();
    if (some && turn_.first_us == 0 && queue->model->name() == current_) {
      turn_.first_us = last_work_us_;
    }
    totals_.prompt_tokens += prompt_tokens;
    totals_.generated_tokens += generated;
    MeasureLocked(queue, work, last_work_us_ - start_us - WaitedUs(*result));
    SetQueueGaugesLocked(*queue);
  }
  Finish(std::move(finished));
  return true;
}

bool SchedulerImpl::Advance(LiveRequest* live, std::span<float> logits, FinishInfo* info) {
  const Request& request = *live->request;
  const TokenEvent event = live->sampler->Sample(logits, request.constraint.get());
  if (event.token < 0) {
    *info = Info(*live, FinishReason::kError,
                 absl::InvalidArgumentError(
                     "No token can follow under this request's constraint: the vocabulary cannot "
                     "write what it asks for, or it is too ambiguous to be followed."));
    return true;
  }
  const int64_t now_us = clock_->NowUs();
  if (live->first_token_us == 0) {
    live->first_token_us = now_us;
    metrics_->Count(MetricId::kKvTokens, {request.model, "computed"},
                    std::max(static_cast<int32_t>(request.prompt.size()) - live->cached, 0));
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
  if (request.constraint != nullptr && request.constraint->Finished()) {
    *info = Info(*live, FinishReason::kStop, absl::OkStatus());
    return true;
  }
  if (static_cast<int32_t>(live->tokens.size()) >= live->token_limit) {
    *info = Info(*live, FinishReason::kLength, absl::OkStatus());
    return true;
  }
  return false;
}

}  // namespace terrace::scheduler
