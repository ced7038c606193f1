// One answer under way: its requests to the scheduler (one a choice), the sinks that turn tokens
// into text, and the exchange they write to. Owns itself through its sinks until the last of them
// has finished (hence shared_ptr). Thread-safe.
#ifndef TERRACE_SERVER_GENERATION_H_
#define TERRACE_SERVER_GENERATION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "request/request.h"
#include "scheduler/scheduler.h"
#include "server/exchange.h"
#include "server/openai_request.h"
#include "server/openai_response.h"
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
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  // Submits the requests and answers through `exchange`, later. `scheduler` must outlive the last
  // sink and be callable from sinks.
  static void Start(GenerationPlan plan, ResponseWriter writer, scheduler::Scheduler* scheduler,
                    std::shared_ptr<Exchange> exchange);

  Generation(GenerationPlan plan, ResponseWriter writer, scheduler::Scheduler* scheduler,
             std::shared_ptr<Exchange> exchange);

 private:
  class Sink;

  void Submit();
  std::unique_ptr<Request> MakeRequest(size_t choice);
  // From sinks. OnText is false if the answer has ended otherwise.
  bool OnText(size_t choice, std::string text, std::vector<TokenReport> tokens);
  void OnFinish(size_t choice, const FinishInfo& info, std::string text,
                std::vector<TokenReport> tokens);
  // True if the others are to be cancelled.
  bool TakeFinish(size_t choice, const FinishInfo& info, std::string text,
                  std::vector<TokenReport> tokens);
  void CancelAll();

  void AddTextLocked(size_t choice, std::string text, std::vector<TokenReport> tokens)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CompleteLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FailLocked(const ApiError& error) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Hands over what has been written of a stream. False if nobody reads.
  bool FlushLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const GenerationPlan plan_;
  const ResponseWriter writer_;
  scheduler::Scheduler* const scheduler_;
  const std::shared_ptr<Exchange> exchange_;
  const size_t choices_;

  absl::Mutex mutex_;
  std::vector<ChoiceAnswer> answers_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> role_sent_ ABSL_GUARDED_BY(mutex_);
  size_t left_ ABSL_GUARDED_BY(mutex_);  // choices that have not finished
  Usage usage_ ABSL_GUARDED_BY(mutex_);
  std::string unsent_ ABSL_GUARDED_BY(mutex_);      // events of a stream
  bool submitted_ ABSL_GUARDED_BY(mutex_) = false;  // all: only now may a stream begin
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;  // answered, or nobody reads
};

}  // namespace terrace::server

#endif  // TERRACE_SERVER_GENERATION_H_
