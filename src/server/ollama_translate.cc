#include "server/ollama_translate.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <utility>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/text.h"
#include "server/json_fields.h"
#include "server/json_text.h"

namespace terrace::server {
namespace {

namespace json = boost::json;

json::string Text(std::string_view text) { return json::string(text.data(), text.size()); }
std::string_view View(const json::string& text) { return {text.data(), text.size()}; }

const json::value* Find(const json::object& object, std::string_view name) {
  const json::value* found = object.if_contains(json::string_view(name.data(), name.size()));
  return found != nullptr && !found->is_null() ? found : nullptr;
}

std::string TextOf(const json::object& object, std::string_view name) {
  const json::value* found = Find(object, name);
  return found != nullptr && found->is_string() ? std::string(View(found->get_string())) : "";
}

// Ollama's names of sampling options and OpenAI's.
std::optional<ApiError> TakeOptions(const json::object& from, json::object* body) {
  static constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"temperature", "temperature"},
      {"top_k", "top_k"},
      {"top_p", "top_p"},
      {"min_p", "min_p"},
      {"typical_p", "typical_p"},
      {"seed", "seed"},
      {"stop", "stop"},
      {"repeat_penalty", "repetition_penalty"},
      {"presence_penalty", "presence_penalty"},
      {"frequency_penalty", "frequency_penalty"}};
  const json::value* found = Find(from, "options");
  if (found == nullptr) return std::nullopt;
  if (!found->is_object()) return BadField("options", "options must be an object.");
  const json::object& options = found->get_object();
  for (const auto& [name, theirs] : kNames) {
    if (const json::value* value = Find(options, name)) {
      (*body)[json::string_view(theirs.data(), theirs.size())] = *value;
    }
  }
  if (const json::value* most = Find(options, "num_predict")) {
    if (!most->is_int64()) return BadField("options.num_predict", "num_predict must be a number.");
    if (most->get_int64() > 0) (*body)["max_tokens"] = *most;  // -1, -2: as many as fit
  }
  return std::nullopt;
}

std::optional<ApiError> TakeFormat(const json::object& from, json::object* body) {
  const json::value* format = Find(from, "format");
  if (format == nullptr) return std::nullopt;
  if (format->is_string()) {
    const std::string_view word = View(format->get_string());
    if (word.empty()) return std::nullopt;
    if (word != "json") return BadField("format", "format must be \"json\" or a JSON schema.");
    (*body)["response_format"] = {{"type", "json_object"}};
    return std::nullopt;
  }
  if (!format->is_object()) {
    return BadField("format", "format must be \"json\" or a JSON schema.");
  }
  json::object schema = {{"name", "answer"}, {"schema", *format}, {"strict", true}};
  (*body)["response_format"] = {{"type", "json_schema"}, {"json_schema", std::move(schema)}};
  return std::nullopt;
}

std::optional<ApiError> TakeStream(const json::object& from, OllamaJob* out, json::object* body) {
  if (const json::value* stream = Find(from, "stream")) {
    if (!stream->is_bool()) return BadField("stream", "stream must be a boolean.");
    out->stream = stream->get_bool();
  }
  (*body)["stream"] = out->stream;
  if (out->stream) (*body)["stream_options"] = {{"include_usage", true}};
  return std::nullopt;
}

bool HasImages(const json::object& object) {
  const json::value* images = Find(object, "images");
  return images != nullptr && images->is_array() && !images->get_array().empty();
}

ApiError NoImages() {
  return BadField("images", "This server's models do not see images; leave them out.",
                  "unsupported_parameter");
}

// Tool calls: Ollama gives arguments as an object and no ids, OpenAI as text and with ids.
json::array ToolCalls(const json::array& from, const std::string& id) {
  json::array out;
  for (const json::value& each : from) {
    if (!each.is_object()) continue;
    const json::value* function = Find(each.get_object(), "function");
    if (function == nullptr || !function->is_object()) continue;
    json::object call = function->get_object();
    if (const json::value* arguments = call.if_contains("arguments");
        arguments != nullptr && !arguments->is_string()) {
      const json::string text(json::serialize(*arguments));
      call["arguments"] = text;
    }
    out.push_back(json::object{{"type", "function"},
                               {"id", Text(fmt::format("{}-{}", id, out.size()))},
                               {"function", std::move(call)}});
  }
  return out;
}

std::optional<ApiError> Message(const json::value& value, size_t index, std::string* last_call,
                                json::array* out) {
  const std::string field = fmt::format("messages[{}]", index);
  if (!value.is_object()) return BadField(field, field + " must be an object.");
  const json::object& from = value.get_object();
  if (HasImages(from)) return NoImages();
  const std::string role = TextOf(from, "role");
  json::object message = {{"role", Text(role)}, {"content", Text(TextOf(from, "content"))}};
  if (const std::string thinking = TextOf(from, "thinking"); !thinking.empty()) {
    message["reasoning_content"] = Text(thinking);
  }
  if (const json::value* calls = Find(from, "tool_calls"); calls && calls->is_array()) {
    *last_call = fmt::format("call-{}", index);
    message["tool_calls"] = ToolCalls(calls->get_array(), *last_call);
  }
  if (role == "tool") {
    message["tool_call_id"] = Text(*last_call + "-0");
    const std::string tool = TextOf(from, "tool_name");
    if (!tool.empty()) message["name"] = Text(tool);
  }
  out->push_back(std::move(message));
  return std::nullopt;
}

void TakeThink(const json::object& from, json::object* body) {
  const json::value* think = Find(from, "think");
  if (think == nullptr) return;
  if (think->is_bool()) {
    (*body)["chat_template_kwargs"] = {{"enable_thinking", *think}};
  } else if (think->is_string()) {
    (*body)["chat_template_kwargs"] = {{"reasoning_effort", *think}};
  }
}

std::optional<ApiError> Finish(const json::object& from, std::string path, json::object body,
                               OllamaJob* out) {
  if (auto error = TakeOptions(from, &body)) return error;
  if (auto error = TakeFormat(from, &body)) return error;
  if (auto error = TakeStream(from, out, &body)) return error;
  TakeThink(from, &body);
  if (out->path.empty()) out->path = std::move(path);
  out->body = json::serialize(body);
  return std::nullopt;
}

// ---- Answers ----------------------------------------------------------------------------------

class Receiver final : public AnswerReceiver {
 public:
  Receiver(std::shared_ptr<Exchange> exchange, const Clock* clock, std::string asked, bool chat)
      : exchange_(std::move(exchange)),
        clock_(clock),
        asked_(std::move(asked)),
        chat_(chat),
        started_us_(clock->NowUs()) {}

  void OnWhole(const HttpResponse& response) override {
    json::error_code ec;
    const json::value parsed = json::parse(response.body, ec);
    if (ec || !parsed.is_object()) {
      return Fail({.code = "internal_error", .message = "The answer could not be read."});
    }
    if (response.status != 200) {
      ApiError error{.status = response.status, .message = "The request failed."};
      if (const json::value* told = parsed.get_object().if_contains("error")) {
        error.message = TextOf(told->as_object(), "message");
        error.code = TextOf(told->as_object(), "code");
      }
      HttpResponse answer = OllamaError(error);
      answer.headers = response.headers;
      exchange_->access().error_code = error.code;
      return exchange_->Respond(std::move(answer));
    }
    TakeUsage(parsed.get_object());
    const json::value* choices = parsed.get_object().if_contains("choices");
    Piece piece;
    if (choices != nullptr && choices->is_array() && !choices->get_array().empty()) {
      piece = ReadChoice(choices->get_array()[0].as_object());
    }
    exchange_->Respond({.body = Line(piece, true)});
  }

  bool OnEvent(std::string_view data) override {
    if (data == "[DONE]") return true;
    json::error_code ec;
    const json::value parsed = json::parse(json::string_view(data.data(), data.size()), ec);
    if (ec || !parsed.is_object()) return true;
    const json::object& event = parsed.get_object();
    if (const json::value* told = event.if_contains("error"); told && told->is_object()) {
      error_ = TextOf(told->get_object(), "message");
      return true;
    }
    TakeUsage(event);
    const json::value* choices = event.if_contains("choices");
    if (choices == nullptr || !choices->is_array() || choices->get_array().empty()) return true;
    Piece piece = ReadChoice(choices->get_array()[0].as_object());
    if (piece.text.empty() && piece.thinking.empty()) return true;
    return Write(Line(piece, false) + "\n");
  }

  void OnEnd(bool failed) override {
    if (failed) {
      Write("{\"error\":" + JsonString(ToValidUtf8(error_)) + "}\n");
    } else {
      Write(Line({}, true) + "\n");
    }
    exchange_->EndStream(failed);
  }

 private:
  struct Piece {
    std::string text;
    std::string thinking;
  };
  struct Call {
    std::string name;
    std::string arguments;
  };

  void Fail(const ApiError& error) {
    exchange_->access().error_code = error.code;
    exchange_->Respond(OllamaError(error));
  }

  bool Write(const std::string& line) {
    if (!begun_) exchange_->BeginStream("application/x-ndjson");
    begun_ = true;
    return exchange_->Write(line);
  }

  void TakeUsage(const json::object& from) {
    const json::value* usage = Find(from, "usage");
    if (usage == nullptr || !usage->is_object()) return;
    prompt_tokens_ = usage->at("prompt_tokens").to_number<int64_t>();
    completion_tokens_ = usage->at("completion_tokens").to_number<int64_t>();
  }

  Piece ReadChoice(const json::object& choice) {
    Piece piece;
    if (const std::string reason = TextOf(choice, "finish_reason"); !reason.empty()) {
      reason_ = reason == "length" ? "length" : "stop";
    }
    piece.text = TextOf(choice, "text");
    for (const std::string_view name : {"message", "delta"}) {
      const json::value* part = Find(choice, name);
      if (part == nullptr || !part->is_object()) continue;
      piece.text = TextOf(part->get_object(), "content");
      piece.thinking = TextOf(part->get_object(), "reasoning_content");
      if (const json::value* calls = Find(part->get_object(), "tool_calls");
          calls != nullptr && calls->is_array()) {
        for (const json::value& each : calls->get_array()) TakeCall(each.as_object());
      }
    }
    return piece;
  }

  // A call, or a piece of one: with an index in streams.
  void TakeCall(const json::object& from) {
    const json::value* index = Find(from, "index");
    const size_t at = index != nullptr && index->is_int64()
                          ? static_cast<size_t>(index->get_int64())
                          : calls_.size();
    if (at > 1000) return;
    if (calls_.size() <= at) calls_.resize(at + 1);
    if (const json::value* function = Find(from, "function"); function && function->is_object()) {
      calls_[at].name += TextOf(function->get_object(), "name");
      calls_[at].arguments += TextOf(function->get_object(), "arguments");
    }
  }

  std::string CallsJson() const {
    json::array out;
    for (const Call& call : calls_) {
      json::error_code ec;
      json::value arguments = json::parse(call.arguments, ec);
      if (ec) arguments = json::object();
      json::object function = {{"name", Text(call.name)}, {"arguments", std::move(arguments)}};
      out.push_back(json::object{{"function", std::move(function)}});
    }
    return json::serialize(out);
  }

  std::string Line(const Piece& piece, bool done) {
    std::string out = fmt::format("{{\"model\":{},\"created_at\":\"{}\",",
                                  JsonString(ToValidUtf8(asked_)), OllamaTime(clock_->WallUs()));
    if (chat_) {
      out += "\"message\":{\"role\":\"assistant\",\"content\":" + JsonString(piece.text);
      if (!piece.thinking.empty()) out += ",\"thinking\":" + JsonString(piece.thinking);
      if (done && !calls_.empty()) out += ",\"tool_calls\":" + CallsJson();
      out += "}";
    } else {
      out += "\"response\":" + JsonString(piece.text);
      if (!piece.thinking.empty()) out += ",\"thinking\":" + JsonString(piece.thinking);
    }
    if (!done) return out + ",\"done\":false}";
    const AccessRecord& record = exchange_->access();
    auto ns = [](int64_t us) { return us * 1000; };
    return out + fmt::format(
                     ",\"done\":true,\"done_reason\":\"{}\",\"total_duration\":{},"
                     "\"load_duration\":{},\"prompt_eval_count\":{},"
                     "\"prompt_eval_duration\":{},\"eval_count\":{},\"eval_duration\":{}}}",
                     reason_, ns(clock_->NowUs() - started_us_), ns(record.swap_us), prompt_tokens_,
                     ns(record.prefill_us), completion_tokens_, ns(record.decode_us));
  }

  const std::shared_ptr<Exchange> exchange_;
  const Clock* const clock_;
  const std::string asked_;
  const bool chat_;
  const int64_t started_us_;
  bool begun_ = false;
  std::string reason_ = "stop";
  std::string error_;
  int64_t prompt_tokens_ = 0;
  int64_t completion_tokens_ = 0;
  std::vector<Call> calls_;
};

}  // namespace

std::optional<ApiError> TranslateOllamaChat(const json::object& from, const std::string& served,
                                            OllamaJob* out) {
  json::object body = {{"model", Text(served)}};
  const json::value* messages = Find(from, "messages");
  if (messages == nullptr || (messages->is_array() && messages->get_array().empty())) {
    out->empty = true;
    return TakeStream(from, out, &body);
  }
  if (!messages->is_array()) return BadField("messages", "messages must be a list.");
  json::array list;
  std::string last_call;
  for (const json::value& each : messages->get_array()) {
    if (auto error = Message(each, list.size(), &last_call, &list)) return error;
  }
  body["messages"] = std::move(list);
  if (const json::value* tools = Find(from, "tools");
      tools != nullptr && tools->is_array() && !tools->get_array().empty()) {
    body["tools"] = *tools;
  }
  return Finish(from, "/v1/chat/completions", std::move(body), out);
}

std::optional<ApiError> TranslateOllamaGenerate(const json::object& from, const std::string& served,
                                                OllamaJob* out) {
  json::object body = {{"model", Text(served)}};
  if (HasImages(from)) return NoImages();
  for (const std::string_view name : {"suffix", "template", "context"}) {
    if (Find(from, name) == nullptr || TextOf(from, name).empty()) {
      if (name != "context" || Find(from, name) == nullptr) continue;
    }
    return BadField(name,
                    fmt::format("This server does not take {}; use messages of /api/chat.", name),
                    "unsupported_parameter");
  }
  const std::string prompt = TextOf(from, "prompt");
  if (prompt.empty()) {
    out->empty = true;
    return TakeStream(from, out, &body);
  }
  const json::value* raw = Find(from, "raw");
  if (raw != nullptr && raw->is_bool() && raw->get_bool()) {
    body["prompt"] = Text(prompt);
    body["max_tokens"] = 1 << 20;  // as many as fit, which this API means by none
    return Finish(from, "/v1/completions", std::move(body), out);
  }
  json::array messages;
  if (const std::string system = TextOf(from, "system"); !system.empty()) {
    messages.push_back(json::object{{"role", "system"}, {"content", Text(system)}});
  }
  messages.push_back(json::object{{"role", "user"}, {"content", Text(prompt)}});
  body["messages"] = std::move(messages);
  return Finish(from, "/v1/chat/completions", std::move(body), out);
}

std::shared_ptr<AnswerReceiver> MakeOllamaReceiver(std::shared_ptr<Exchange> exchange,
                                                   const Clock* clock, std::string asked,
                                                   bool chat) {
  return std::make_shared<Receiver>(std::move(exchange), clock, std::move(asked), chat);
}

std::string OllamaTime(int64_t wall_us) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", absl::FromUnixMicros(wall_us),
                          absl::UTCTimeZone());
}

HttpResponse OllamaError(const ApiError& error) {
  HttpResponse response{.status = error.status};
  response.body = "{\"error\":" + JsonString(ToValidUtf8(error.message)) + "}";
  if (error.retry_after_s > 0) {
    response.headers.emplace_back("Retry-After", fmt::format("{}", error.retry_after_s));
  }
  return response;
}

}  // namespace terrace::server
