// One answer under way: its requests to the scheduler (one a choice), the sinks that turn tokens
// into text, and the exchange they write to. Owns itself through its sinks until the last of them
// has finished (hence shared_ptr). Thread-safe.
#ifndef TERRACE_SERVER_GENERATION_H_
#define TERRACE_SERVER_GENERATION_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "request/request.h"
#include "scheduler/scheduler.h"
#include "server/answer_parser.h"
#include "server/answer_writer.h"
#include "server/exchange.h"
#include "server/openai_request.h"
#include "server/served_model.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"

namespace terrace::server {

struct GenerationPlan {
  std::shared_ptr<const ServedModel> model;
  GenerationParams params;
  // By prompt; each gives params.n choices, in order.
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::string> echo;  // by prompt: text put before the answer; empty: none at all
  std::vector<std::string> tail;  // by prompt: text put behind it; empty: none at all
  // What the answers must follow; null: any text will do.
  std::shared_ptr<const grammar::CompiledGrammar> grammar;
  // Answers are split by `syntax`; otherwise all of them is content.
  bool split = false;
  AnswerSyntax syntax;
  // Control tokens that `syntax` speaks of, ascending: only these are part of the text.
  std::vector<int32_t> markers;

  // The prompts are to be scored, and nothing to be said.
  bool scores_only() const { return params.max_tokens == 0; }
  size_t per_prompt() const { return static_cast<size_t>(std::max(params.n, params.best_of)); }
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  // Submits the requests and answers through `exchange`, later. `scheduler` must outlive the last
  // sink and be callable from sinks.
  static void Start(GenerationPlan plan, std::unique_ptr<AnswerWriter> writer,
                    scheduler::Scheduler* scheduler, std::shared_ptr<Exchange> exchange);

  Generation(GenerationPlan plan, std::unique_ptr<AnswerWriter> writer,
             scheduler::Scheduler* scheduler, std::shared_ptr<Exchange> exchange);

 private:
  class Sink;
  using Pieces = std::vector<AnswerPiece>;
  using Reports = std::vector<TokenReport>;

  void Submit();
  std::string RequestId(size_t choice) const;
  std::unique_ptr<Request> MakeRequest(size_t choice);
  // From sinks. OnText is false if the answer has ended otherwise.
  bool OnText(size_t choice, Pieces pieces, Reports tokens);
  void OnFinish(size_t choice, const FinishInfo& info, Pieces pieces, Reports tokens,
                double logprob, int stop);
  // True if the others are to be cancelled.
  bool TakeFinish(size_t choice, const FinishInfo& info, Pieces pieces, Reports tokens);
  void CancelAll();

  void AddLocked(size_t choice, Pieces pieces, Reports tokens)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddPieceLocked(size_t choice, const AnswerPiece& piece, Reports tokens)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of each prompt the n answers of params that are likeliest, best first.
  std::vector<ChoiceAnswer> BestLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CompleteLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FailLocked(const ApiError& error) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Hands over what has been written of a stream. False if nobody reads.
  bool FlushLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const GenerationPlan plan_;
  const std::unique_ptr<AnswerWriter> writer_;  // its events under mutex_
  const std::string id_;
  scheduler::Scheduler* const scheduler_;
  const std::shared_ptr<Exchange> exchange_;
  const size_t choices_;

  absl::Mutex mutex_;
  std::vector<ChoiceAnswer> answers_ ABSL_GUARDED_BY(mutex_);
  std::vector<double> logprobs_ ABSL_GUARDED_BY(mutex_);  // mean of a choice's tokens
  std::vector<bool> begun_choices_ ABSL_GUARDED_BY(mutex_);
  size_t left_ ABSL_GUARDED_BY(mutex_);  // choices that have not finished
  Usage usage_ ABSL_GUARDED_BY(mutex_);
  std::string unsent_ ABSL_GUARDED_BY(mutex_);      // events of a stream
  bool submitted_ ABSL_GUARDED_BY(mutex_) = false;  // all: only now may a stream begin
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;  // answered, or nobody reads
};

}  // namespace terrace::server

#endif  // TERRACE_SERVER_GENERATION_H_
