// Answers in the shape of /v1/responses: a list of items (reasoning, messages, calls), and events
// that tell how they grow. Not thread-safe.
#ifndef TERRACE_SERVER_RESPONSES_WRITER_H_
#define TERRACE_SERVER_RESPONSES_WRITER_H_

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "server/answer_writer.h"
#include "server/openai_request.h"

namespace terrace::server {

class ResponsesWriter final : public AnswerWriter {
 public:
  // `request`: what is told back in the answer.
  ResponsesWriter(std::string id, int64_t created, std::string_view model,
                  const ChatRequest& request);

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
  HttpResponse Failure(const ApiError& error) override { return ErrorResponse(error); }

 private:
  enum class Item : uint8_t { kNone, kMessage, kReasoning, kCall };

  // The response with what is in items_.
  boost::json::object Response(std::string_view status) const;
  boost::json::object NewItem(Item kind, std::string_view status) const;
  void Event(std::string_view type, boost::json::object data, std::string* out);
  // An event about the open item.
  void ItemEvent(std::string_view type, boost::json::object data, std::string* out);
  void Open(Item kind, std::string* out);  // closes another kind first
  void Close(std::string* out);
  // The open item, whole.
  boost::json::object Closed() const;

  const std::string id_;
  boost::json::object frame_;  // the response's unchanging fields
  boost::json::array items_;   // whole ones
  Item open_ = Item::kNone;
  std::string text_;  // of the open item
  AnswerCall call_;   // if it is a call
  FinishReason reason_ = FinishReason::kStop;
  int64_t sequence_ = 0;
};

}  // namespace terrace::server

#endif  // TERRACE_SERVER_RESPONSES_WRITER_H_
