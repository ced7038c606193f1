#include "server/chat_translation.h"

#include <fmt/format.h>

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <string>
#include <utility>

#include "server/json_fields.h"

namespace terrace::server {
namespace {

namespace json = boost::json;

json::string Word(std::string_view text) { return json::string(text.data(), text.size()); }
std::string_view View(const json::value& value) {
  const json::string& text = value.get_string();
  return {text.data(), text.size()};
}
bool Is(const json::value* value, std::string_view word) {
  return value != nullptr && value->is_string() && View(*value) == word;
}

// Builds the chat request's body beside the request's own fields.
class Translator {
 public:
  Translator(const json::object& in, std::initializer_list<std::string_view> same) : fields(in) {
    for (std::string_view name : same) Copy(name, name);
  }

  void Copy(std::string_view from, std::string_view to) {
    if (const json::value* value = fields.Find(from)) out[Key(to)] = *value;
  }
  static json::string_view Key(std::string_view name) { return {name.data(), name.size()}; }

  // The chat request, with errors in this API's names.
  std::optional<ApiError> Finish(
      std::initializer_list<std::pair<std::string_view, std::string_view>> names,
      ChatRequest* request) {
    if (auto error = fields.TakeError()) return error;
    auto error = ParseChatRequest(json::serialize(out), request);
    if (!error) return std::nullopt;
    for (const auto& [chat, own] : names) {
      for (std::string* text : {&error->param, &error->message}) {
        if (const size_t at = text->find(chat); at != std::string::npos) {
          text->replace(at, chat.size(), own);
        }
      }
    }
    return error;
  }

  JsonFields fields;
  json::object out;
  json::array messages;
};

json::object FunctionTool(const json::object& tool, std::string_view schema_name) {
  json::object function;
  for (std::string_view name : {"name", "description", "strict"}) {
    const json::value* value = tool.if_contains(Translator::Key(name));
    if (value != nullptr && !value->is_null()) function[Translator::Key(name)] = *value;
  }
  const json::value* schema = tool.if_contains(Translator::Key(schema_name));
  if (schema != nullptr && !schema->is_null()) function["parameters"] = *schema;
  return {{"type", "function"}, {"function", std::move(function)}};
}

json::object Call(const json::value& id, const json::value& name, json::string arguments) {
  return {{"id", id},
          {"type", "function"},
          {"function", json::object{{"name", name}, {"arguments", std::move(arguments)}}}};
}

json::value Or(const json::value* value, json::value otherwise) {
  return value != nullptr && !value->is_null() ? *value : std::move(otherwise);
}

// ---- /v1/responses ----

// Adds a call to the assistant's turn that goes on, or begins one.
void AddCall(json::array* messages, json::object call) {
  json::object* last = messages->empty() ? nullptr : &messages->back().as_object();
  if (last == nullptr || !Is(last->if_contains("role"), "assistant")) {
    messages->push_back(json::object{{"role", "assistant"}, {"content", nullptr}});
    last = &messages->back().as_object();
  }
  json::value& calls = (*last)["tool_calls"];
  if (!calls.is_array()) calls = json::array();
  calls.get_array().push_back(std::move(call));
}

void AddItem(Translator* t, const json::value& value, size_t index) {
  const std::string name = fmt::format("input[{}]", index);
  if (!value.is_object()) return t->fields.FailKind(name, "an object", value);
  const json::object& item = value.get_object();
  const json::value* type = item.if_contains("type");
  if (type == nullptr || Is(type, "message")) {
    json::object message{{"role", Or(item.if_contains("role"), "")}};
    json::value content = Or(item.if_contains("content"), nullptr);
    if (content.is_array()) {
      for (json::value& part : content.get_array()) {
        if (part.is_object() && Is(part.get_object().if_contains("type"), "output_text")) {
          part.get_object()["type"] = "text";
        }
      }
    }
    message["content"] = std::move(content);
    t->messages.push_back(std::move(message));
  } else if (Is(type, "function_call")) {
    const json::value arguments = Or(item.if_contains("arguments"), "");
    AddCall(
        &t->messages,
        Call(Or(item.if_contains("call_id"), ""), Or(item.if_contains("name"), ""),
             arguments.is_string() ? arguments.get_string() : Word(json::serialize(arguments))));
  } else if (Is(type, "function_call_output")) {
    t->messages.push_back(json::object{{"role", "tool"},
                                       {"tool_call_id", Or(item.if_contains("call_id"), "")},
                                       {"content", Or(item.if_contains("output"), "")}});
  } else if (!Is(type, "reasoning")) {  // reasoning of earlier turns is not read again
    t->fields.FailField(name,
                        fmt::format("{}: items of type {} are not supported.", name,
                                    json::serialize(*type).substr(0, 80)),
                        "unsupported_content");
  }
}

void ReadInput(Translator* t) {
  if (const json::value* words = t->fields.Find("instructions")) {
    t->messages.push_back(json::object{{"role", "system"}, {"content", *words}});
  }
  const json::value* input = t->fields.Find("input");
  if (input == nullptr) return t->fields.FailField("input", "input is missing.", "missing_field");
  if (input->is_string()) {
    t->messages.push_back(json::object{{"role", "user"}, {"content", *input}});
  } else if (input->is_array()) {
    for (size_t i = 0; i < input->get_array().size() && t->fields.ok(); ++i) {
      AddItem(t, input->get_array()[i], i);
    }
  } else {
    t->fields.FailKind("input", "a string or an array of items", *input);
  }
}

// Tools of this API have their function's fields at the top.
void ReadFlatTools(Translator* t, std::string_view schema_name) {
  const json::value* tools = t->fields.Find("tools");
  if (tools == nullptr) return;
  if (!tools->is_array()) return t->fields.FailKind("tools", "an array", *tools);
  json::array list;
  for (size_t i = 0; i < tools->get_array().size(); ++i) {
    const json::value& tool = tools->get_array()[i];
    const std::string name = fmt::format("tools[{}]", i);
    if (!tool.is_object()) return t->fields.FailKind(name, "an object", tool);
    const json::value* type = tool.get_object().if_contains("type");
    if (type != nullptr && !Is(type, "function") && !Is(type, "custom")) {
      return t->fields.FailField(name + ".type",
                                 fmt::format("{}.type: only functions can be called here.", name),
                                 "unsupported_parameter");
    }
    list.push_back(FunctionTool(tool.get_object(), schema_name));
  }
  t->out["tools"] = std::move(list);
}

void ReadTextFormat(Translator* t) {
  const json::value* text = t->fields.Find("text");
  if (text == nullptr) return;
  if (!text->is_object()) return t->fields.FailKind("text", "an object", *text);
  const json::value* format = text->get_object().if_contains("format");
  if (format == nullptr || format->is_null()) return;
  if (!format->is_object()) return t->fields.FailKind("text.format", "an object", *format);
  json::object flat = format->get_object();
  if (Is(flat.if_contains("type"), "json_schema")) {
    json::object inner = flat;
    inner.erase("type");
    flat = {{"type", "json_schema"}, {"json_schema", std::move(inner)}};
  }
  t->out["response_format"] = std::move(flat);
}

// ---- /v1/messages ----

// The text of a block, or of a list of text blocks.
void AppendText(Translator* t, const json::value& content, const std::string& name,
                std::string* out) {
  if (content.is_string()) {
    *out += View(content);
    return;
  }
  if (!content.is_array()) {
    return t->fields.FailKind(name, "a string or an array of blocks", content);
  }
  for (size_t i = 0; i < content.get_array().size(); ++i) {
    const json::value& block = content.get_array()[i];
    const json::value* text =
        block.is_object() && Is(block.get_object().if_contains("type"), "text")
            ? block.get_object().if_contains("text")
            : nullptr;
    if (text == nullptr || !text->is_string()) {
      return t->fields.FailField(
          fmt::format("{}[{}]", name, i),
          fmt::format("{}[{}]: only text blocks are supported here.", name, i),
          "unsupported_content");
    }
    *out += View(*text);
  }
}

// A message's blocks: tool results become turns of their own, before what the user says.
void AddBlocks(Translator* t, const json::value& role, const json::array& blocks,
               const std::string& name) {
  json::object message{{"role", role}};
  std::string text, thinking;
  json::array calls;
  bool said = false;
  for (size_t i = 0; i < blocks.size() && t->fields.ok(); ++i) {
    const std::string at = fmt::format("{}.content[{}]", name, i);
    if (!blocks[i].is_object()) return t->fields.FailKind(at, "an object", blocks[i]);
    const json::object& block = blocks[i].get_object();
    const json::value* type = block.if_contains("type");
    if (Is(type, "text")) {
      said = true;
      AppendText(t, json::array{blocks[i]}, at, &text);
    } else if (Is(type, "tool_use")) {
      calls.push_back(Call(Or(block.if_contains("id"), ""), Or(block.if_contains("name"), ""),
                           Word(json::serialize(Or(block.if_contains("input"), json::object())))));
    } else if (Is(type, "tool_result")) {
      std::string result;
      AppendText(t, Or(block.if_contains("content"), ""), at + ".content", &result);
      t->messages.push_back(json::object{{"role", "tool"},
                                         {"tool_call_id", Or(block.if_contains("tool_use_id"), "")},
                                         {"content", Word(result)}});
    } else if (Is(type, "thinking")) {
      const json::value* thought = block.if_contains("thinking");
      if (thought != nullptr && thought->is_string()) thinking += View(*thought);
    } else if (!Is(type, "redacted_thinking")) {
      t->fields.FailField(at, fmt::format("{}: blocks of this type are not supported.", at),
                          "unsupported_content");
    }
  }
  if (!said && calls.empty()) return;
  message["content"] = Word(text);
  if (!thinking.empty()) message["reasoning_content"] = Word(thinking);
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  t->messages.push_back(std::move(message));
}

void ReadMessages(Translator* t) {
  if (const json::value* system = t->fields.Find("system")) {
    std::string text;
    AppendText(t, *system, "system", &text);
    t->messages.push_back(json::object{{"role", "system"}, {"content", Word(text)}});
  }
  const json::value* messages = t->fields.Find("messages");
  if (messages == nullptr) {
    return t->fields.FailField("messages", "messages is missing.", "missing_field");
  }
  if (!messages->is_array()) return t->fields.FailKind("messages", "an array", *messages);
  for (size_t i = 0; i < messages->get_array().size() && t->fields.ok(); ++i) {
    const json::value& each = messages->get_array()[i];
    const std::string name = fmt::format("messages[{}]", i);
    if (!each.is_object()) return t->fields.FailKind(name, "an object", each);
    const json::value* role = each.get_object().if_contains("role");
    const json::value* content = each.get_object().if_contains("content");
    if (!Is(role, "user") && !Is(role, "assistant")) {
      return t->fields.FailField(name + ".role",
                                 fmt::format("{}.role must be \"user\" or \"assistant\".", name));
    }
    if (content != nullptr && content->is_array()) {
      AddBlocks(t, *role, content->get_array(), name);
    } else {
      t->messages.push_back(json::object{{"role", *role}, {"content", Or(content, nullptr)}});
    }
  }
}

void ReadToolChoice(Translator* t) {
  const json::value* choice = t->fields.Find("tool_choice");
  if (choice == nullptr) return;
  if (!choice->is_object()) return t->fields.FailKind("tool_choice", "an object", *choice);
  const json::object& object = choice->get_object();
  const json::value* type = object.if_contains("type");
  if (Is(type, "tool")) {
    t->out["tool_choice"] =
        json::object{{"type", "function"},
                     {"function", json::object{{"name", Or(object.if_contains("name"), nullptr)}}}};
  } else if (Is(type, "auto") || Is(type, "none") || Is(type, "any")) {
    t->out["tool_choice"] = Is(type, "any") ? json::value("required") : *type;
  } else {
    return t->fields.FailField("tool_choice.type",
                               "tool_choice.type must be auto, any, tool or none.");
  }
  const json::value* single = object.if_contains("disable_parallel_tool_use");
  if (single != nullptr && single->is_bool()) t->out["parallel_tool_calls"] = !single->get_bool();
}

}  // namespace

std::optional<ApiError> ParseResponsesRequest(std::string_view body, ChatRequest* out) {
  json::value value;
  if (auto error = ParseObject(body, &value)) return error;
  Translator t(value.get_object(),
               {"model", "stream", "temperature", "top_p", "parallel_tool_calls", "tool_choice",
                "metadata", "user", "seed", "stop", "top_k", "min_p", "logit_bias",
                "chat_template_kwargs", "presence_penalty", "frequency_penalty"});
  t.Copy("max_output_tokens", "max_completion_tokens");
  for (std::string_view name : {"previous_response_id", "conversation", "prompt"}) {
    if (t.fields.Find(name) == nullptr) continue;
    t.fields.FailField(name,
                       fmt::format("{}: this server keeps no responses; send the whole "
                                   "conversation as input.",
                                   name),
                       "unsupported_parameter");
  }
  bool background = false;
  t.fields.Bool("background", &background);
  if (background) {
    t.fields.FailField("background", "background is not supported; use stream.",
                       "unsupported_parameter");
  }
  if (const json::value* reasoning = t.fields.Find("reasoning")) {
    if (!reasoning->is_object()) {
      t.fields.FailKind("reasoning", "an object", *reasoning);
    } else if (const json::value* effort = reasoning->get_object().if_contains("effort");
               effort != nullptr && !effort->is_null()) {
      t.out["reasoning_effort"] = *effort;
    }
  }
  ReadInput(&t);
  ReadFlatTools(&t, "parameters");
  ReadTextFormat(&t);
  t.out["messages"] = std::move(t.messages);
  return t.Finish({{"max_completion_tokens", "max_output_tokens"},
                   {"response_format.json_schema", "text.format"},
                   {"response_format", "text.format"},
                   {"messages", "input"}},
                  out);
}

std::optional<ApiError> ParseMessagesRequest(std::string_view body, ChatRequest* out) {
  json::value value;
  if (auto error = ParseObject(body, &value)) return error;
  Translator t(value.get_object(), {"model", "stream", "temperature", "top_p", "top_k", "seed"});
  t.Copy("max_tokens", "max_completion_tokens");
  t.Copy("stop_sequences", "stop");
  if (t.fields.Find("max_tokens") == nullptr) {
    t.fields.FailField("max_tokens", "max_tokens is missing.", "missing_field");
  }
  ReadMessages(&t);
  ReadFlatTools(&t, "input_schema");
  ReadToolChoice(&t);
  if (const json::value* thinking = t.fields.Find("thinking")) {
    const json::object* object = thinking->if_object();
    if (object == nullptr) {
      t.fields.FailKind("thinking", "an object", *thinking);
    } else if (Is(object->if_contains("type"), "disabled")) {
      t.out["chat_template_kwargs"] = json::object{{"enable_thinking", false}};
    }
  }
  t.out["messages"] = std::move(t.messages);
  return t.Finish({{"max_completion_tokens", "max_tokens"}, {"stop", "stop_sequences"}}, out);
}

}  // namespace terrace::server
