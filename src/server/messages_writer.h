// Answers in the shape of /v1/messages: a list of content blocks, and events that tell how they
// grow. Not thread-safe.
#ifndef TERRACE_SERVER_MESSAGES_WRITER_H_
#define TERRACE_SERVER_MESSAGES_WRITER_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "server/answer_writer.h"

namespace terrace::server {

class MessagesWriter final : public AnswerWriter {
 public:
  MessagesWriter(std::string id, std::string_view model, int32_t prompt_tokens)
      : id_(std::move(id)), model_(model), prompt_tokens_(prompt_tokens) {}

  const std::string& id() const override { return id_; }
  std::string Whole(std::span<const ChoiceAnswer> choices, const Usage& usage) override;
  void Begin(int32_t index, std::string* out) override;
  void Content(int32_t index, std::string_view text, std::span<const TokenReport> tokens,
               std::string* out) override;
  void Reasoning(int32_t index, std::string_view text, std::string* out) override;
  void Call(int32_t index, size_t call, const AnswerCall& begun, std::string* out) override;
  void Arguments(int32_t index, size_t call, std::string_view text, std::string* out) override;
  void Finish(int32_t index, const ChoiceAnswer& answer, std::string* out) override;
  void End(const Usage& usage, std::string* out) override;
  void Error(const ApiError& error, std::string* out) override;
  HttpResponse Failure(const ApiError& error) override;

 private:
  enum class Block : uint8_t { kNone, kText, kThinking, kTool };
  void Open(Block kind, std::string_view block, std::string* out);
  void Close(std::string* out);
  void Delta(std::string_view type, std::string_view field, std::string_view text,
             std::string* out);

  const std::string id_;
  const std::string model_;
  const int32_t prompt_tokens_;
  Block open_ = Block::kNone;
  int32_t blocks_ = 0;
  std::string stop_;  // {"stop_reason":...,"stop_sequence":...
};

// {"type":"error","error":{...}}, as this API has errors.
HttpResponse MessagesError(const ApiError& error);

}  // namespace terrace::server

#endif  // TERRACE_SERVER_MESSAGES_WRITER_H_
