#include "server/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/hash.h"
#include "base/status.h"
#include "server/constraint.h"

namespace terrace::server {

namespace {

std::string_view EchoOf(const GenerationPlan& plan, size_t choice) {
  return plan.echo.empty() ? std::string_view() : plan.echo[choice / plan.per_prompt()];
}

}  // namespace

// Turns one choice's tokens into text, on the scheduler's thread.
class Generation::Sink final : public TokenSink {
 public:
  Sink(std::shared_ptr<Generation> owner, size_t choice)
      : owner_(std::move(owner)),
        choice_(choice),
        plan_(owner_->plan_),
        tokenizer_(plan_.model->tokenizer()),
        logprobs_(plan_.params.sampling.top_logprobs.has_value()),
        detokenizer_(&tokenizer_, {.render_special = plan_.split}),
        prompt_text_(&tokenizer_, {.strip_space_prefix = EchoOf(plan_, choice).empty() ||
                                                         EchoOf(plan_, choice)[0] != ' '}),
        stops_(plan_.params.stop),
        parser_(&plan_.syntax) {
    offset_ = released_ = EchoOf(plan_, choice).size();
    if (!plan_.params.prompt_logprobs) return;
    const int32_t first = plan_.prompts[choice / plan_.per_prompt()][0];
    held_.push_back({.bytes = tokenizer_.TokenBytes(first, true), .first = true});
    prompt_offset_ += prompt_text_.Append(first).size();
  }

  void OnPromptToken(const TokenEvent& event) override {
    held_.push_back(Report(event));
    held_.back().text_offset = std::min(prompt_offset_, offset_);
    prompt_offset_ += prompt_text_.Append(event.token).size();
  }

  bool OnToken(const TokenEvent& event) override {
    if (plan_.scores_only()) return false;
    std::string piece;
    if (!plan_.split || !tokenizer_.IsControl(event.token) ||
        std::binary_search(plan_.markers.begin(), plan_.markers.end(), event.token)) {
      piece = detokenizer_.Append(event.token);
    }
    if (logprobs_) held_.push_back(Report(event));
    logprob_sum_ += event.logprob;
    ++tokens_;
    offset_ += piece.size();
    std::string text = stops_.Append(piece);
    released_ += text.size();
    const bool reads = owner_->OnText(choice_, Split(std::move(text)), TakeReleased());
    return reads && !stops_.stopped();
  }

  void OnFinish(const FinishInfo& info) override {
    Pieces pieces;
    Reports tokens;
    if (!stops_.stopped()) {
      std::string text = stops_.Append(detokenizer_.Finish());
      text += stops_.Finish();
      pieces = Split(std::move(text));
      tokens = std::move(held_);
    }
    if (plan_.split) {
      for (AnswerPiece& piece : parser_.Finish()) pieces.push_back(std::move(piece));
    }
    FinishInfo told = info;
    if (plan_.scores_only()) {
      told.completion_tokens = 0;
      if (info.reason == FinishReason::kStop) told.reason = FinishReason::kLength;
    }
    if (stops_.stopped() && info.reason == FinishReason::kLength) told.reason = FinishReason::kStop;
    owner_->OnFinish(choice_, told, std::move(pieces), std::move(tokens),
                     logprob_sum_ / std::max(tokens_, 1), stops_.matched());
    owner_.reset();
  }

 private:
  Pieces Split(std::string text) {
    if (plan_.split) return parser_.Append(text);
    if (text.empty()) return {};
    Pieces pieces;
    pieces.push_back({AnswerPiece::Kind::kContent, std::move(text)});
    return pieces;
  }

  TokenReport Report(const TokenEvent& event) const {
    TokenReport report{.bytes = tokenizer_.TokenBytes(event.token, true),
                       .logprob = event.logprob,
                       .text_offset = offset_};
    report.top.reserve(event.top.size());
    for (const TokenLogprob& each : event.top) {
      report.top.emplace_back(tokenizer_.TokenBytes(each.token, true), each.logprob);
    }
    return report;
  }

  // The reports of tokens whose text has been given out, at least in part: those of a stop string
  // never are.
  Reports TakeReleased() {
    const auto end = std::find_if(held_.begin(), held_.end(), [this](const TokenReport& each) {
      return each.text_offset >= released_;
    });
    Reports out(std::make_move_iterator(held_.begin()), std::make_move_iterator(end));
    held_.erase(held_.begin(), end);
    return out;
  }

  std::shared_ptr<Generation> owner_;
  const size_t choice_;
  const GenerationPlan& plan_;  // of owner_
  const Tokenizer& tokenizer_;
  const bool logprobs_;
  Detokenizer detokenizer_;
  Detokenizer prompt_text_;
  StopMatcher stops_;
  AnswerParser parser_;
  uint64_t prompt_offset_ = 0;  // of the next prompt token's text
  uint64_t offset_ = 0;         // of the next token's text
  uint64_t released_ = 0;       // bytes of text given out
  Reports held_;
  double logprob_sum_ = 0;
  int32_t tokens_ = 0;
};

Generation::Generation(GenerationPlan plan, std::unique_ptr<AnswerWriter> writer,
                       scheduler::Scheduler* scheduler, std::shared_ptr<Exchange> exchange)
    : plan_(std::move(plan)),
      writer_(std::move(writer)),
      id_(writer_->id()),
      scheduler_(scheduler),
      exchange_(std::move(exchange)),
      choices_(plan_.prompts.size() * plan_.per_prompt()),
      answers_(choices_),
      logprobs_(choices_, 0.0),
      begun_choices_(choices_, false),
      left_(choices_) {
  for (const auto& prompt : plan_.prompts) {
    usage_.prompt_tokens += static_cast<int32_t>(prompt.size());
  }
}

void Generation::Start(GenerationPlan plan, std::unique_ptr<AnswerWriter> writer,
                       scheduler::Scheduler* scheduler, std::shared_ptr<Exchange> exchange) {
  auto generation = std::make_shared<Generation>(std::move(plan), std::move(writer), scheduler,
                                                 std::move(exchange));
  generation->Submit();
}

std::string Generation::RequestId(size_t choice) const {
  return choices_ == 1 ? id_ : fmt::format("{}-{}", id_, choice);
}

std::unique_ptr<Request> Generation::MakeRequest(size_t choice) {
  const GenerationParams& params = plan_.params;
  auto request = std::make_unique<Request>();
  request->id = RequestId(choice);
  request->model = plan_.model->name();
  request->prompt = plan_.prompts[choice / plan_.per_prompt()];
  request->tenant = exchange_->request().caller.tenant;
  request->sla = exchange_->request().caller.sla;
  request->swap = exchange_->request().caller.swap;
  request->sampling = params.sampling;
  // Choices of one prompt differ, and do so in the same way each time.
  if (request->sampling.seed) *request->sampling.seed += choice;
  // Answers are compared by their logprobs.
  if (params.best_of > params.n && !request->sampling.top_logprobs) {
    request->sampling.top_logprobs = 0;
  }
  const int32_t room = plan_.model->max_context() - static_cast<int32_t>(request->prompt.size());
  request->max_tokens = std::clamp(params.max_tokens.value_or(room), 1, room);
  request->prompt_logprobs = params.prompt_logprobs;
  request->end_tokens = plan_.model->end_tokens();
  if (plan_.grammar != nullptr) {
    request->constraint = MakeConstraint(plan_.grammar, plan_.model->end_tokens());
  }
  request->sink = std::make_unique<Sink>(shared_from_this(), choice);
  return request;
}

void Generation::Submit() {
  for (size_t choice = 0; choice < choices_; ++choice) {
    if (exchange_->gone()) {
      CancelAll();
      absl::MutexLock lock(&mutex_);
      closed_ = true;
      return;
    }
    absl::Status status = scheduler_->Submit(MakeRequest(choice));
    if (!status.ok()) {
      CancelAll();
      absl::MutexLock lock(&mutex_);
      FailLocked(FromStatus(status));
      return;
    }
  }
  bool complete = false;
  {
    absl::MutexLock lock(&mutex_);
    submitted_ = true;
    complete = left_ == 0;
    if (!closed_) {
      if (complete) {
        CompleteLocked();
      } else {
        FlushLocked();
      }
    }
  }
  if (complete) return;
  exchange_->OnGone([weak = weak_from_this()] {
    if (auto generation = weak.lock()) generation->CancelAll();
  });
}

void Generation::CancelAll() {
  for (size_t choice = 0; choice < choices_; ++choice) {
    scheduler_->Cancel(RequestId(choice));
  }
}

bool Generation::OnText(size_t choice, Pieces pieces, Reports tokens) {
  absl::MutexLock lock(&mutex_);
  if (closed_) return false;
  AddLocked(choice, std::move(pieces), std::move(tokens));
  if (FlushLocked()) return true;
  closed_ = true;
  return false;
}

void Generation::AddLocked(size_t choice, Pieces pieces, Reports tokens) {
  if (!begun_choices_[choice]) {
    begun_choices_[choice] = true;
    if (plan_.params.stream) writer_->Begin(static_cast<int32_t>(choice), &unsent_);
    if (!plan_.echo.empty()) {
      const std::string_view echo = EchoOf(plan_, choice);
      const auto end = std::find_if(tokens.begin(), tokens.end(), [&](const TokenReport& each) {
        return each.text_offset >= echo.size();
      });
      Reports of_prompt(std::make_move_iterator(tokens.begin()), std::make_move_iterator(end));
      tokens.erase(tokens.begin(), end);
      AddPieceLocked(choice, {AnswerPiece::Kind::kContent, std::string(echo)},
                     std::move(of_prompt));
    }
  }
  for (const AnswerPiece& piece : pieces) {
    // Reports go with the first content; without any, alone.
    const bool content = piece.kind == AnswerPiece::Kind::kContent;
    AddPieceLocked(choice, piece, content ? std::exchange(tokens, {}) : Reports());
  }
  if (!tokens.empty()) {
    AddPieceLocked(choice, {AnswerPiece::Kind::kContent, ""}, std::move(tokens));
  }
}

void Generation::AddPieceLocked(size_t choice, const AnswerPiece& piece, Reports tokens) {
  ChoiceAnswer& answer = answers_[choice];
  const auto index = static_cast<int32_t>(choice);
  const bool stream = plan_.params.stream;
  switch (piece.kind) {
    case AnswerPiece::Kind::kContent:
      if (stream) writer_->Content(index, piece.text, tokens, &unsent_);
      answer.text += piece.text;
      if (!stream) std::move(tokens.begin(), tokens.end(), std::back_inserter(answer.tokens));
      break;
    case AnswerPiece::Kind::kReasoning:
      if (plan_.params.reasoning == ReasoningOutput::kHide) break;
      if (stream) writer_->Reasoning(index, piece.text, &unsent_);
      answer.reasoning += piece.text;
      break;
    case AnswerPiece::Kind::kCallName: {
      // Nine letters and digits: some templates take no other ids back.
      const uint64_t hash = Hash64(fmt::format("{} {} {}", id_, choice, answer.calls.size()));
      std::string call_id;
      for (uint64_t rest = hash; call_id.size() < 9; rest /= 36) {
        call_id += "0123456789abcdefghijklmnopqrstuvwxyz"[rest % 36];
      }
      answer.calls.push_back({std::move(call_id), piece.text, ""});
      if (stream) writer_->Call(index, answer.calls.size() - 1, answer.calls.back(), &unsent_);
      break;
    }
    case AnswerPiece::Kind::kCallArguments:
      if (answer.calls.empty()) break;
      if (stream) writer_->Arguments(index, answer.calls.size() - 1, piece.text, &unsent_);
      answer.calls.back().arguments += piece.text;
      break;
  }
}

bool Generation::FlushLocked() {
  if (!plan_.params.stream || !submitted_ || unsent_.empty()) return true;
  if (!begun_) {
    begun_ = true;
    exchange_->BeginStream("text/event-stream; charset=utf-8");
  }
  const bool reads = exchange_->Write(unsent_);
  unsent_.clear();
  return reads;
}

void Generation::OnFinish(size_t choice, const FinishInfo& info, Pieces pieces, Reports tokens,
                          double logprob, int stop) {
  {
    absl::MutexLock lock(&mutex_);
    logprobs_[choice] = logprob;
    if (stop >= 0) answers_[choice].stop_text = plan_.params.stop[static_cast<size_t>(stop)];
  }
  if (TakeFinish(choice, info, std::move(pieces), std::move(tokens))) CancelAll();
}

bool Generation::TakeFinish(size_t choice, const FinishInfo& info, Pieces pieces, Reports tokens) {
  absl::MutexLock lock(&mutex_);
  --left_;
  if (closed_) return false;
  AccessRecord& record = exchange_->access();
  record.queue_us = std::max(record.queue_us, info.timings.queue_us);
  record.swap_us = std::max(record.swap_us, info.timings.swap_us);
  record.prefill_us = std::max(record.prefill_us, info.timings.prefill_us);
  record.decode_us = std::max(record.decode_us, info.timings.decode_us);
  usage_.completion_tokens += info.completion_tokens;
  usage_.moved_bytes += info.moved_bytes;
  // Prompts count once, however many choices there are of them.
  if (choice % plan_.per_prompt() == 0) {
    usage_.cached_tokens += info.cached_tokens;
    record.restored_tokens += info.restored_tokens;
    if (record.kv.empty()) record.kv = info.kv_choice;
  }
  if (info.reason == FinishReason::kError || info.reason == FinishReason::kCancelled) {
    absl::Status status = info.status;
    if (status.ok()) {
      status = info.reason == FinishReason::kCancelled
                   ? absl::CancelledError("The request was cancelled by the server.")
                   : absl::InternalError("The request failed.");
    }
    FailLocked(FromStatus(status));
    return left_ > 0;
  }
  AddLocked(choice, std::move(pieces), std::move(tokens));
  if (!plan_.tail.empty()) {
    AddPieceLocked(choice, {AnswerPiece::Kind::kContent, plan_.tail[choice / plan_.per_prompt()]},
                   {});
  }
  answers_[choice].reason = info.reason;
  if (plan_.params.stream) {
    writer_->Finish(static_cast<int32_t>(choice), answers_[choice], &unsent_);
  }
  if (left_ == 0 && submitted_) {
    CompleteLocked();
  } else if (!FlushLocked()) {
    closed_ = true;
  }
  return false;
}

void Generation::CompleteLocked() {
  closed_ = true;
  AccessRecord& record = exchange_->access();
  record.prompt_tokens = usage_.prompt_tokens;
  record.completion_tokens = usage_.completion_tokens;
  record.cached_tokens = usage_.cached_tokens;
  record.moved_bytes = usage_.moved_bytes;
  if (!plan_.params.stream) {
    HttpResponse response{.body = writer_->Whole(BestLocked(), usage_)};
    if (!record.kv.empty()) response.headers.emplace_back("x-terrace-kv", record.kv);
    exchange_->Respond(std::move(response));
    return;
  }
  writer_->End(usage_, &unsent_);
  FlushLocked();
  exchange_->EndStream(false);
}

std::vector<ChoiceAnswer> Generation::BestLocked() {
  const auto wanted = static_cast<size_t>(plan_.params.n);
  if (wanted == plan_.per_prompt()) return std::move(answers_);
  std::vector<ChoiceAnswer> best;
  for (size_t first = 0; first < choices_; first += plan_.per_prompt()) {
    std::vector<size_t> order(plan_.per_prompt());
    std::iota(order.begin(), order.end(), first);
    std::stable_sort(order.begin(), order.end(), [this](size_t a, size_t b) {
      mutex_.AssertHeld();
      return logprobs_[a] > logprobs_[b];
    });
    for (size_t i = 0; i < wanted; ++i) best.push_back(std::move(answers_[order[i]]));
  }
  return best;
}

void Generation::FailLocked(const ApiError& error) {
  if (closed_) return;
  closed_ = true;
  AccessRecord& record = exchange_->access();
  record.error_code = error.code;
  record.prompt_tokens = usage_.prompt_tokens;
  record.completion_tokens = usage_.completion_tokens;
  record.moved_bytes = usage_.moved_bytes;
  if (!begun_) {
    exchange_->Respond(writer_->Failure(error));
    return;
  }
  writer_->Error(error, &unsent_);
  FlushLocked();
  exchange_->EndStream(true);
}

}  // namespace terrace::server
