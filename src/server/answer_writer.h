// How an answer is written down: the bodies and events of one API. Generation calls it as the
// answer comes; implementations know the API's names. Used by one thread at a time.
#ifndef TERRACE_SERVER_ANSWER_WRITER_H_
#define TERRACE_SERVER_ANSWER_WRITER_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "request/request.h"
#include "server/api_error.h"

namespace terrace::server {

// One generated token with its bytes, which may be a part of a character.
struct TokenReport {
  std::string bytes;
  float logprob = 0;
  std::vector<std::pair<std::string, float>> top;  // bytes and logprob, best first
  uint64_t text_offset = 0;                        // in the choice's text, in bytes
  bool first = false;  // of a prompt: nothing stands before it, so it has no logprob
};

struct Usage {
  int32_t prompt_tokens = 0;
  int32_t completion_tokens = 0;
  int32_t cached_tokens = 0;
  uint64_t moved_bytes = 0;  // of weights brought in for it; shown if there were any
};

struct AnswerCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON
};

struct ChoiceAnswer {
  std::string text;
  std::string reasoning;
  std::vector<AnswerCall> calls;
  std::vector<TokenReport> tokens;  // if logprobs were asked for
  FinishReason reason = FinishReason::kStop;
  std::string stop_text;  // the stop string that ended it; empty: none
};

class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  // Names the answer, and the requests to the scheduler that make it.
  virtual const std::string& id() const = 0;
  virtual std::string Whole(std::span<const ChoiceAnswer> choices, const Usage& usage) = 0;

  // Events of a stream, appended to `*out`. Begin comes first for each choice, Finish last; End
  // comes when all have finished.
  virtual void Begin(int32_t index, std::string* out) = 0;
  virtual void Content(int32_t index, std::string_view text, std::span<const TokenReport> tokens,
                       std::string* out) = 0;
  virtual void Reasoning(int32_t index, std::string_view text, std::string* out) = 0;
  // The call number `call` of a choice begins, with its id and name.
  virtual void Call(int32_t index, size_t call, const AnswerCall& begun, std::string* out) = 0;
  virtual void Arguments(int32_t index, size_t call, std::string_view text, std::string* out) = 0;
  // `answer` has all but the tokens.
  virtual void Finish(int32_t index, const ChoiceAnswer& answer, std::string* out) = 0;
  virtual void End(const Usage& usage, std::string* out) = 0;
  virtual void Error(const ApiError& error, std::string* out) = 0;

  // The answer to a request that fails before a stream begins.
  virtual HttpResponse Failure(const ApiError& error) = 0;
};

}  // namespace terrace::server

#endif  // TERRACE_SERVER_ANSWER_WRITER_H_
