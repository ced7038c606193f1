#include "server/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace terrace::server {

// Turns one choice's tokens into text, on the scheduler's thread.
class Generation::Sink final : public TokenSink {
 public:
  Sink(std::shared_ptr<Generation> owner, size_t choice)
      : owner_(std::move(owner)),
        choice_(choice),
        tokenizer_(owner_->plan_.model->tokenizer()),
        logprobs_(owner_->plan_.params.sampling.top_logprobs.has_value()),
        detokenizer_(&tokenizer_),
        stops_(owner_->plan_.params.stop) {
    const auto& echo = owner_->plan_.echo;
    if (!echo.empty()) {
      offset_ = released_ = echo[choice / static_cast<size_t>(owner_->plan_.params.n)].size();
    }
  }

  bool OnToken(const TokenEvent& event) override {
    const std::string piece = detokenizer_.Append(event.token);
    if (logprobs_) held_.push_back(Report(event));
    offset_ += piece.size();
    std::string text = stops_.Append(piece);
    released_ += text.size();
    const bool reads = owner_->OnText(choice_, std::move(text), TakeReleased());
    return reads && !stops_.stopped();
  }

  void OnFinish(const FinishInfo& info) override {
    std::string text;
    std::vector<TokenReport> tokens;
    if (!stops_.stopped()) {
      text = stops_.Append(detokenizer_.Finish());
      text += stops_.Finish();
      tokens = std::move(held_);
    }
    FinishInfo told = info;
    if (stops_.stopped() && info.reason == FinishReason::kLength) told.reason = FinishReason::kStop;
    owner_->OnFinish(choice_, told, std::move(text), std::move(tokens));
    owner_.reset();
  }

 private:
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
  std::vector<TokenReport> TakeReleased() {
    const auto end = std::find_if(held_.begin(), held_.end(), [this](const TokenReport& each) {
      return each.text_offset >= released_;
    });
    std::vector<TokenReport> out(std::make_move_iterator(held_.begin()),
                                 std::make_move_iterator(end));
    held_.erase(held_.begin(), end);
    return out;
  }

  std::shared_ptr<Generation> owner_;
  const size_t choice_;
  const Tokenizer& tokenizer_;
  const bool logprobs_;
  Detokenizer detokenizer_;
  StopMatcher stops_;
  uint64_t offset_ = 0;    // of the next token's text
  uint64_t released_ = 0;  // bytes of text given out
  std::vector<TokenReport> held_;
};

Generation::Generation(GenerationPlan plan, ResponseWriter writer, scheduler::Scheduler* scheduler,
                       std::shared_ptr<Exchange> exchange)
    : plan_(std::move(plan)),
      writer_(std::move(writer)),
      scheduler_(scheduler),
      exchange_(std::move(exchange)),
      choices_(plan_.prompts.size() * static_cast<size_t>(plan_.params.n)),
      answers_(choices_),
      role_sent_(choices_, false),
      left_(choices_) {
  for (const auto& prompt : plan_.prompts) {
    usage_.prompt_tokens += static_cast<int32_t>(prompt.size());
  }
}

void Generation::Start(GenerationPlan plan, ResponseWriter writer, scheduler::Scheduler* scheduler,
                       std::shared_ptr<Exchange> exchange) {
  auto generation = std::make_shared<Generation>(std::move(plan), std::move(writer), scheduler,
                                                 std::move(exchange));
  generation->Submit();
}

std::unique_ptr<Request> Generation::MakeRequest(size_t choice) {
  const GenerationParams& params = plan_.params;
  auto request = std::make_unique<Request>();
  request->id = choices_ == 1 ? writer_.id() : fmt::format("{}-{}", writer_.id(), choice);
  request->model = plan_.model->name();
  request->prompt = plan_.prompts[choice / static_cast<size_t>(params.n)];
  request->tenant = exchange_->request().caller.tenant;
  request->sla = exchange_->request().caller.sla;
  request->swap = exchange_->request().caller.swap;
  request->sampling = params.sampling;
  // Choices of one prompt differ, and do so in the same way each time.
  if (request->sampling.seed) *request->sampling.seed += choice;
  const int32_t room = plan_.model->max_context() - static_cast<int32_t>(request->prompt.size());
  request->max_tokens = std::min(params.max_tokens.value_or(room), room);
  request->end_tokens = plan_.model->end_tokens();
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
    scheduler_->Cancel(choices_ == 1 ? writer_.id() : fmt::format("{}-{}", writer_.id(), choice));
  }
}

bool Generation::OnText(size_t choice, std::string text, std::vector<TokenReport> tokens) {
  absl::MutexLock lock(&mutex_);
  if (closed_) return false;
  AddTextLocked(choice, std::move(text), std::move(tokens));
  if (FlushLocked()) return true;
  closed_ = true;
  return false;
}

void Generation::AddTextLocked(size_t choice, std::string text, std::vector<TokenReport> tokens) {
  const bool first = !role_sent_[choice];
  if (!plan_.params.stream) {
    ChoiceAnswer& answer = answers_[choice];
    if (first && !plan_.echo.empty()) {
      answer.text = plan_.echo[choice / static_cast<size_t>(plan_.params.n)];
    }
    role_sent_[choice] = true;
    answer.text += text;
    std::move(tokens.begin(), tokens.end(), std::back_inserter(answer.tokens));
    return;
  }
  const auto index = static_cast<int32_t>(choice);
  if (first) {
    role_sent_[choice] = true;
    writer_.Role(index, &unsent_);
    if (!plan_.echo.empty()) {
      writer_.Delta(index, plan_.echo[choice / static_cast<size_t>(plan_.params.n)], {}, &unsent_);
    }
  }
  if (!text.empty() || !tokens.empty()) writer_.Delta(index, text, tokens, &unsent_);
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

void Generation::OnFinish(size_t choice, const FinishInfo& info, std::string text,
                          std::vector<TokenReport> tokens) {
  if (TakeFinish(choice, info, std::move(text), std::move(tokens))) CancelAll();
}

bool Generation::TakeFinish(size_t choice, const FinishInfo& info, std::string text,
                            std::vector<TokenReport> tokens) {
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
  if (choice % static_cast<size_t>(plan_.params.n) == 0) {
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
  AddTextLocked(choice, std::move(text), std::move(tokens));
  answers_[choice].reason = info.reason;
  if (plan_.params.stream) {
    writer_.Finish(static_cast<int32_t>(choice), info.reason, &unsent_);
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
    HttpResponse response{.body = writer_.Whole(answers_, usage_)};
    if (!record.kv.empty()) response.headers.emplace_back("x-terrace-kv", record.kv);
    exchange_->Respond(std::move(response));
    return;
  }
  if (plan_.params.include_usage) writer_.UsageEvent(usage_, &unsent_);
  ResponseWriter::Done(&unsent_);
  FlushLocked();
  exchange_->EndStream(false);
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
    exchange_->Respond(ErrorResponse(error));
    return;
  }
  ResponseWriter::Error(error, &unsent_);
  FlushLocked();
  exchange_->EndStream(true);
}

}  // namespace terrace::server
