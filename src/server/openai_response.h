// The bodies of OpenAI-style answers: whole ones and the events of a stream. Written as text, since
// a stream makes one for each token. Not thread-safe.
#ifndef TERRACE_SERVER_OPENAI_RESPONSE_H_
#define TERRACE_SERVER_OPENAI_RESPONSE_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "server/answer_writer.h"

namespace terrace::server {

enum class Api : uint8_t { kChat, kCompletion, kResponses, kMessages, kEmbedding };

class ResponseWriter final : public AnswerWriter {
 public:
  // `logprobs`: answers carry TokenReports. `usage_in_stream`: stream_options.include_usage.
  ResponseWriter(Api api, std::string id, int64_t created, std::string_view model, bool logprobs,
                 bool usage_in_stream);

  const std::string& id() const override { return id_; }
  std::string Whole(std::span<const ChoiceAnswer> choices, const Usage& usage) override;

  // The role goes in an event of its own, the first of its choice (chat only).
  void Begin(int32_t index, std::string* out) override;
  void Content(int32_t index, std::string_view text, std::span<const TokenReport> tokens,
               std::string* out) override;
  void Reasoning(int32_t index, std::string_view text, std::string* out) override;
  void Call(int32_t index, size_t call, const AnswerCall& begun, std::string* out) override;
  void Arguments(int32_t index, size_t call, std::string_view text, std::string* out) override;
  void Finish(int32_t index, const ChoiceAnswer& answer, std::string* out) override;
  void End(const Usage& usage, std::string* out) override;
  void Error(const ApiError& error, std::string* out) override;
  HttpResponse Failure(const ApiError& error) override { return ErrorResponse(error); }

 private:
  // Opens an event of a choice's delta: up to the delta's first field.
  void OpenDelta(int32_t index, std::string* out) const;
  void AppendLogprobs(std::span<const TokenReport> tokens, std::string* out) const;
  void AppendChatLogprobs(std::span<const TokenReport> tokens, std::string* out) const;
  void AppendCompletionLogprobs(std::span<const TokenReport> tokens, std::string* out) const;

  const Api api_;
  const std::string id_;
  const bool logprobs_;
  const bool usage_in_stream_;
  std::string whole_head_;  // {"id":...,"model":"...","choices":[
  std::string chunk_head_;  // data: {"id":...,"choices":[
  std::string chunk_tail_;  // ]}, or ],"usage":null}, and the event's end
};

}  // namespace terrace::server

#endif  // TERRACE_SERVER_OPENAI_RESPONSE_H_
