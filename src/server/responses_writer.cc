#include "server/responses_writer.h"

#include <fmt/format.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <utility>

namespace terrace::server {
namespace {

namespace json = boost::json;

json::string Word(std::string_view text) { return json::string(text.data(), text.size()); }

json::object UsageObject(const Usage& usage) {
  return {{"input_tokens", usage.prompt_tokens},
          {"input_tokens_details", json::object{{"cached_tokens", usage.cached_tokens}}},
          {"output_tokens", usage.completion_tokens},
          {"output_tokens_details", json::object{{"reasoning_tokens", 0}}},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

json::object TextPart(std::string_view text) {
  return {{"type", "output_text"},
          {"text", Word(text)},
          {"annotations", json::array()},
          {"logprobs", json::array()}};
}
json::object ReasoningPart(std::string_view text) {
  return {{"type", "reasoning_text"}, {"text", Word(text)}};
}

// The tools as this API has them: the function's fields at the top.
json::array FlatTools(const std::string& text) {
  json::array out;
  json::error_code ec;
  const json::value tools = json::parse(json::string_view(text), ec);
  if (ec || !tools.is_array()) return out;
  for (const json::value& tool : tools.get_array()) {
    json::object flat = tool.as_object().at("function").as_object();
    flat["type"] = "function";
    if (!flat.contains("strict")) flat["strict"] = false;
    if (!flat.contains("parameters")) flat["parameters"] = nullptr;
    out.push_back(std::move(flat));
  }
  return out;
}

json::value ToolChoiceValue(const ToolRequest& tools) {
  switch (tools.choice) {
    case ToolChoice::kNamed:
      return json::object{{"type", "function"}, {"name", Word(tools.named)}};
    case ToolChoice::kRequired:
      return "required";
    case ToolChoice::kNone:
      return tools.tools.empty() ? "auto" : "none";
    case ToolChoice::kAuto:
      return "auto";
  }
  return "auto";
}

}  // namespace

ResponsesWriter::ResponsesWriter(std::string id, int64_t created, std::string_view model,
                                 const ChatRequest& request)
    : id_(std::move(id)) {
  frame_ = {{"id", Word(id_)},
            {"object", "response"},
            {"created_at", created},
            {"status", "in_progress"},
            {"error", nullptr},
            {"incomplete_details", nullptr},
            {"instructions", nullptr},
            {"metadata", json::object()},
            {"model", Word(model)},
            {"output", json::array()},
            {"parallel_tool_calls", request.tools.parallel},
            {"previous_response_id", nullptr},
            {"store", false},
            {"temperature", request.params.sampling.temperature},
            {"tool_choice", ToolChoiceValue(request.tools)},
            {"tools", FlatTools(request.tools.json)},
            {"top_p", request.params.sampling.top_p},
            {"truncation", "disabled"},
            {"usage", nullptr}};
  if (request.params.max_tokens) frame_["max_output_tokens"] = *request.params.max_tokens;
}

json::object ResponsesWriter::Response(std::string_view status) const {
  json::object response = frame_;
  response["status"] = Word(status);
  response["output"] = items_;
  if (status == "incomplete") {
    response["incomplete_details"] = json::object{{"reason", "max_output_tokens"}};
  }
  return response;
}

json::object ResponsesWriter::NewItem(Item kind, std::string_view status) const {
  const std::string number = fmt::format("{}_{}", id_.substr(id_.find('_') + 1), items_.size());
  if (kind == Item::kReasoning) {
    return {{"id", Word("rs_" + number)},
            {"type", "reasoning"},
            {"summary", json::array()},
            {"content", json::array()},
            {"status", Word(status)}};
  }
  if (kind == Item::kCall) {
    return {{"id", Word("fc_" + number)}, {"type", "function_call"}, {"call_id", Word(call_.id)},
            {"name", Word(call_.name)},   {"arguments", ""},         {"status", Word(status)}};
  }
  return {{"id", Word("msg_" + number)},
          {"type", "message"},
          {"role", "assistant"},
          {"content", json::array()},
          {"status", Word(status)}};
}

json::object ResponsesWriter::Closed() const {
  const bool cut = reason_ == FinishReason::kLength;
  json::object item = NewItem(open_, cut ? "incomplete" : "completed");
  if (open_ == Item::kCall) {
    item["arguments"] = Word(text_);
  } else if (open_ == Item::kReasoning) {
    item["content"] = json::array{ReasoningPart(text_)};
  } else {
    item["content"] = json::array{TextPart(text_)};
  }
  return item;
}

std::string ResponsesWriter::Whole(std::span<const ChoiceAnswer> choices, const Usage& usage) {
  std::string unused;
  const ChoiceAnswer& answer = choices[0];
  if (!answer.reasoning.empty()) Reasoning(0, answer.reasoning, &unused);
  if (!answer.text.empty()) Content(0, answer.text, {}, &unused);
  for (const AnswerCall& call : answer.calls) {
    Call(0, 0, {call.id, call.name, ""}, &unused);
    Arguments(0, 0, call.arguments, &unused);
  }
  Finish(0, answer, &unused);
  json::object response = Response(reason_ == FinishReason::kLength ? "incomplete" : "completed");
  response["usage"] = UsageObject(usage);
  return json::serialize(response);
}

void ResponsesWriter::Event(std::string_view type, json::object data, std::string* out) {
  data["type"] = Word(type);
  data["sequence_number"] = sequence_++;
  fmt::format_to(std::back_inserter(*out), "event: {}\ndata: {}\n\n", type, json::serialize(data));
}

void ResponsesWriter::ItemEvent(std::string_view type, json::object data, std::string* out) {
  data["output_index"] = items_.size();
  data["item_id"] = NewItem(open_, "").at("id");
  if (open_ != Item::kCall) data["content_index"] = 0;
  Event(type, std::move(data), out);
}

void ResponsesWriter::Begin(int32_t index, std::string* out) {
  if (index != 0) return;
  Event("response.created", {{"response", Response("in_progress")}}, out);
  Event("response.in_progress", {{"response", Response("in_progress")}}, out);
}

void ResponsesWriter::Open(Item kind, std::string* out) {
  if (open_ == kind && kind != Item::kCall) return;
  Close(out);
  open_ = kind;
  text_.clear();
  Event("response.output_item.added",
        {{"output_index", items_.size()}, {"item", NewItem(kind, "in_progress")}}, out);
  if (kind == Item::kMessage) {
    ItemEvent("response.content_part.added", {{"part", TextPart("")}}, out);
  } else if (kind == Item::kReasoning) {
    ItemEvent("response.content_part.added", {{"part", ReasoningPart("")}}, out);
  }
}

void ResponsesWriter::Close(std::string* out) {
  if (open_ == Item::kNone) return;
  if (open_ == Item::kCall) {
    ItemEvent("response.function_call_arguments.done",
              {{"arguments", Word(text_)}, {"name", Word(call_.name)}}, out);
  } else if (open_ == Item::kReasoning) {
    ItemEvent("response.reasoning_text.done", {{"text", Word(text_)}}, out);
    ItemEvent("response.content_part.done", {{"part", ReasoningPart(text_)}}, out);
  } else {
    ItemEvent("response.output_text.done", {{"text", Word(text_)}, {"logprobs", json::array()}},
              out);
    ItemEvent("response.content_part.done", {{"part", TextPart(text_)}}, out);
  }
  json::object item = Closed();
  Event("response.output_item.done", {{"output_index", items_.size()}, {"item", item}}, out);
  items_.push_back(std::move(item));
  open_ = Item::kNone;
}

void ResponsesWriter::Content(int32_t index, std::string_view text, std::span<const TokenReport>,
                              std::string* out) {
  if (index != 0 || text.empty()) return;
  Open(Item::kMessage, out);
  text_ += text;
  ItemEvent("response.output_text.delta", {{"delta", Word(text)}, {"logprobs", json::array()}},
            out);
}

void ResponsesWriter::Reasoning(int32_t index, std::string_view text, std::string* out) {
  if (index != 0) return;
  Open(Item::kReasoning, out);
  text_ += text;
  ItemEvent("response.reasoning_text.delta", {{"delta", Word(text)}}, out);
}

void ResponsesWriter::Call(int32_t index, size_t, const AnswerCall& begun, std::string* out) {
  if (index != 0) return;
  Close(out);
  call_ = begun;
  Open(Item::kCall, out);
}

void ResponsesWriter::Arguments(int32_t index, size_t, std::string_view text, std::string* out) {
  if (index != 0) return;
  text_ += text;
  ItemEvent("response.function_call_arguments.delta", {{"delta", Word(text)}}, out);
}

void ResponsesWriter::Finish(int32_t index, const ChoiceAnswer& answer, std::string* out) {
  if (index != 0) return;
  reason_ = answer.reason;
  if (open_ == Item::kNone && items_.empty()) Open(Item::kMessage, out);
  Close(out);
}

void ResponsesWriter::End(const Usage& usage, std::string* out) {
  const bool cut = reason_ == FinishReason::kLength;
  json::object response = Response(cut ? "incomplete" : "completed");
  response["usage"] = UsageObject(usage);
  Event(cut ? "response.incomplete" : "response.completed", {{"response", std::move(response)}},
        out);
}

void ResponsesWriter::Error(const ApiError& error, std::string* out) {
  Event("error", {{"code", Word(error.code)}, {"message", Word(error.message)}, {"param", nullptr}},
        out);
}

}  // namespace terrace::server
