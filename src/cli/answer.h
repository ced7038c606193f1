// One answer under way for a command that waits for it: the scheduler's thread puts text in, the
// command's thread takes it out as it comes.
#ifndef TERRACE_CLI_ANSWER_H_
#define TERRACE_CLI_ANSWER_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "request/request.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"
#include "text/tokenizer.h"

namespace terrace::cli {

// Thread-safe. Outlives its sink, which the request owns.
class Answer {
 public:
  // The tokenizer must outlive the answer.
  Answer(const Tokenizer* tokenizer, std::vector<std::string> stops);

  // The sink to put into the request; made once.
  std::unique_ptr<TokenSink> MakeSink();

  // Waits for more text and returns it; empty at the end. Whole characters only.
  std::string Next();
  // How it ended. REQUIRES: Next() has returned "".
  FinishInfo finish() const;

 private:
  class Sink;
  bool Ready() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !text_.empty() || finish_.has_value();
  }

  // Used by the scheduler's thread alone.
  Detokenizer detokenizer_;
  StopMatcher stops_;

  mutable absl::Mutex mutex_;
  std::string text_ ABSL_GUARDED_BY(mutex_);
  std::optional<FinishInfo> finish_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace::cli

#endif  // TERRACE_CLI_ANSWER_H_
