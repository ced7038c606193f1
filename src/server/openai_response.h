// The bodies of OpenAI-style answers: whole ones and the events of a stream. Written as text, since
// a stream makes one for each token. Not thread-safe.
#ifndef TERRACE_SERVER_OPENAI_RESPONSE_H_
#define TERRACE_SERVER_OPENAI_RESPONSE_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "request/request.h"
#include "server/api_error.h"

namespace terrace::server {

enum class Api : uint8_t { kChat, kCompletion };

// One generated token with its bytes, which may be a part of a character.
struct TokenReport {
  std::string bytes;
  float logprob = 0;
  std::vector<std::pair<std::string, float>> top;  // bytes and logprob, best first
  uint64_t text_offset = 0;                        // in the choice's text, in bytes
};

struct Usage {
  int32_t prompt_tokens = 0;
  int32_t completion_tokens = 0;
  int32_t cached_tokens = 0;
  uint64_t moved_bytes = 0;  // of weights brought in for it; shown if there were any
};

struct ChoiceAnswer {
  std::string text;
  std::vector<TokenReport> tokens;  // if logprobs were asked for
  FinishReason reason = FinishReason::kStop;
};

class ResponseWriter {
 public:
  // `logprobs`: answers carry TokenReports. `usage_in_stream`: stream_options.include_usage.
  ResponseWriter(Api api, std::string id, int64_t created, std::string_view model, bool logprobs,
                 bool usage_in_stream);

  const std::string& id() const { return id_; }

  std::string Whole(std::span<const ChoiceAnswer> choices, const Usage& usage) const;

  // Events ("data: ...\n\n"), appended to `*out`. The role goes in an event of its own, the first
  // of its choice (chat only).
  void Role(int32_t index, std::string* out) const;
  void Delta(int32_t index, std::string_view text, std::span<const TokenReport> tokens,
             std::string* out) const;
  void Finish(int32_t index, FinishReason reason, std::string* out) const;
  void UsageEvent(const Usage& usage, std::string* out) const;
  static void Error(const ApiError& error, std::string* out);
  static void Done(std::string* out);

 private:
  void AppendLogprobs(std::span<const TokenReport> tokens, std::string* out) const;
  void AppendChatLogprobs(std::span<const TokenReport> tokens, std::string* out) const;
  void AppendCompletionLogprobs(std::span<const TokenReport> tokens, std::string* out) const;

  const Api api_;
  const std::string id_;
  const bool logprobs_;
  std::string whole_head_;  // {"id":...,"model":"...","choices":[
  std::string chunk_head_;  // data: {"id":...,"choices":[
  std::string chunk_tail_;  // ]}, or ],"usage":null}, and the event's end
};

}  // namespace terrace::server

#endif  // TERRACE_SERVER_OPENAI_RESPONSE_H_
