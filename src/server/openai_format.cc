#include "server/openai_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <utility>

namespace terrace::server {
namespace {

namespace json = boost::json;
using Kind = AnswerFormat::Kind;

constexpr size_t kMaxNameBytes = 64;

std::string_view Text(const json::value& value) {
  const json::string& text = value.get_string();
  return {text.data(), text.size()};
}

// A schema: an object, or the text of one.
void ReadSchema(JsonFields* fields, std::string_view name, const json::value& value,
                AnswerFormat* out) {
  if (value.is_string()) {
    json::value parsed;
    if (ParseObject(Text(value), &parsed)) {
      return fields->FailField(
          name, fmt::format("{} must be a JSON schema, or the text of one.", fields->Path(name)));
    }
    out->text = json::serialize(parsed);
  } else if (value.is_object() || value.is_bool()) {
    out->text = json::serialize(value);
  } else {
    return fields->FailKind(name, "a JSON schema", value);
  }
  out->kind = Kind::kJsonSchema;
  out->field = fields->Path(name);
}

void ReadText(JsonFields* fields, std::string_view name, const json::value& value, Kind kind,
              AnswerFormat* out) {
  if (!value.is_string() || Text(value).empty()) {
    return fields->FailKind(name, "a string that is not empty", value);
  }
  out->kind = kind;
  out->text = Text(value);
  out->field = fields->Path(name);
}

void ReadChoices(JsonFields* fields, std::string_view name, const json::value& value,
                 AnswerFormat* out) {
  if (!value.is_array()) return fields->FailKind(name, "an array of strings", value);
  const json::array& list = value.get_array();
  if (list.empty() || list.size() > kMaxGuidedChoices) {
    return fields->FailField(
        name, fmt::format("{} must hold 1 to {} strings.", fields->Path(name), kMaxGuidedChoices));
  }
  for (const json::value& each : list) {
    if (!each.is_string() || Text(each).empty()) {
      return fields->FailField(
          name, fmt::format("{} must hold strings that are not empty.", fields->Path(name)));
    }
    out->choices.emplace_back(Text(each));
  }
  out->kind = Kind::kChoice;
  out->field = fields->Path(name);
}

void ReadResponseFormat(JsonFields* fields, const json::value& value, AnswerFormat* out) {
  if (!value.is_object()) return fields->FailKind("response_format", "an object", value);
  JsonFields format(value.get_object(), "response_format.");
  std::string type;
  format.RequiredString("type", &type);
  if (type == "json_object") {
    out->kind = Kind::kJsonObject;
    out->field = "response_format";
  } else if (type == "json_schema") {
    const json::value* inner = format.Find("json_schema");
    if (inner == nullptr || !inner->is_object()) {
      format.FailField("json_schema",
                       "response_format.json_schema must be an object with a schema.",
                       inner == nullptr ? "missing_field" : "invalid_value");
    } else {
      JsonFields named(inner->get_object(), "response_format.json_schema.");
      if (const json::value* schema = named.Find("schema")) {
        ReadSchema(&named, "schema", *schema, out);
      } else {
        named.FailField("schema", "response_format.json_schema.schema is missing.",
                        "missing_field");
      }
      bool strict = false;
      named.Bool("strict", &strict);
      std::string name;
      named.String("name", &name);
      if (auto error = named.TakeError()) format.Fail(std::move(*error));
    }
  } else if (type != "text" && format.ok()) {
    format.FailField("type",
                     "response_format.type must be \"text\", \"json_object\" or "
                     "\"json_schema\".");
  }
  if (auto error = format.TakeError()) fields->Fail(std::move(*error));
}

// {"json" | "regex" | "choice" | "grammar" | "json_object": ...}
void ReadStructured(JsonFields* fields, const json::value& value, AnswerFormat* out) {
  if (!value.is_object()) return fields->FailKind("structured_outputs", "an object", value);
  JsonFields inner(value.get_object(), "structured_outputs.");
  bool any_object = false;
  int found = 0;
  if (const json::value* each = inner.Find("json")) ++found, ReadSchema(&inner, "json", *each, out);
  if (const json::value* each = inner.Find("regex")) {
    ++found, ReadText(&inner, "regex", *each, Kind::kRegex, out);
  }
  if (const json::value* each = inner.Find("choice")) {
    ++found, ReadChoices(&inner, "choice", *each, out);
  }
  if (const json::value* each = inner.Find("grammar")) {
    ++found, ReadText(&inner, "grammar", *each, Kind::kGrammar, out);
  }
  inner.Bool("json_object", &any_object);
  if (any_object) {
    ++found;
    out->kind = Kind::kJsonObject;
    out->field = "structured_outputs.json_object";
  }
  if (inner.ok() && found != 1) {
    fields->FailField("structured_outputs",
                      "structured_outputs must hold one of json, regex, "
                      "choice, grammar and json_object.");
  }
  if (auto error = inner.TakeError()) fields->Fail(std::move(*error));
}

void ReadTool(JsonFields* fields, Tool* out) {
  std::string type = "function";
  fields->String("type", &type);
  if (fields->ok() && type != "function") {
    return fields->FailField("type", fmt::format("{} must be \"function\".", fields->Path("type")));
  }
  const json::value* function = fields->Find("function");
  if (function == nullptr || !function->is_object()) {
    return fields->FailField("function",
                             fmt::format("{} must be an object.", fields->Path("function")));
  }
  JsonFields inner(function->get_object(), fields->Path("function."));
  inner.RequiredString("name", &out->name);
  const bool named = !out->name.empty() && out->name.size() <= kMaxNameBytes &&
                     std::all_of(out->name.begin(), out->name.end(), [](char c) {
                       return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                              (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
                     });
  if (inner.ok() && !named) {
    inner.FailField("name", fmt::format("{} must be 1 to {} letters, digits, dashes, dots and "
                                        "underscores.",
                                        inner.Path("name"), kMaxNameBytes));
  }
  std::string description;
  inner.String("description", &description);
  inner.Bool("strict", &out->strict);
  if (const json::value* parameters = inner.Find("parameters")) {
    if (!parameters->is_object()) {
      inner.FailKind("parameters", "an object", *parameters);
    } else if (!parameters->get_object().empty()) {
      out->parameters = json::serialize(*parameters);
    }
  }
  if (auto error = inner.TakeError()) fields->Fail(std::move(*error));
}

void ReadToolChoice(JsonFields* fields, ToolRequest* out) {
  const json::value* value = fields->Find("tool_choice");
  if (value == nullptr) {
    out->choice = out->tools.empty() ? ToolChoice::kNone : ToolChoice::kAuto;
    return;
  }
  constexpr std::string_view kRule =
      "tool_choice must be \"none\", \"auto\", \"required\" or an object that names a function.";
  if (value->is_string()) {
    const std::string_view word = Text(*value);
    if (word == "none") {
      out->choice = ToolChoice::kNone;
    } else if (word == "auto") {
      out->choice = out->tools.empty() ? ToolChoice::kNone : ToolChoice::kAuto;
    } else if (word == "required" || word == "any") {
      out->choice = ToolChoice::kRequired;
    } else {
      return fields->FailField("tool_choice", std::string(kRule));
    }
  } else if (value->is_object()) {
    const json::object& object = value->get_object();
    const json::value* function = object.if_contains("function");
    const json::value* name = nullptr;
    if (function != nullptr && function->is_object()) {
      name = function->get_object().if_contains("name");
    } else {
      name = object.if_contains("name");
    }
    if (name == nullptr || !name->is_string()) {
      return fields->FailField("tool_choice", std::string(kRule));
    }
    out->choice = ToolChoice::kNamed;
    out->named = Text(*name);
    if (std::none_of(out->tools.begin(), out->tools.end(),
                     [&](const Tool& tool) { return tool.name == out->named; })) {
      return fields->FailField("tool_choice",
                               fmt::format("tool_choice names the function \"{}\", which is not "
                                           "among tools.",
                                           out->named.substr(0, kMaxNameBytes)));
    }
  } else {
    return fields->FailKind("tool_choice", "a string or an object", *value);
  }
  if (out->tools.empty() && out->choice != ToolChoice::kNone) {
    fields->FailField("tool_choice", "tool_choice needs tools.");
  }
}

}  // namespace

void ReadAnswerFormat(JsonFields* fields, AnswerFormat* out) {
  int found = 0;
  if (const json::value* value = fields->Find("response_format")) {
    ReadResponseFormat(fields, *value, out);
    found += out->kind != Kind::kText;
  }
  auto each = [&](std::string_view name, auto&& read) {
    const json::value* value = fields->Find(name);
    if (value == nullptr) return;
    if (++found > 1) {
      return fields->FailField(
          name, fmt::format("{} cannot be used beside another field that restricts the answer.",
                            fields->Path(name)));
    }
    read(name, *value);
  };
  auto schema = [&](std::string_view name, const json::value& value) {
    ReadSchema(fields, name, value, out);
  };
  auto text = [&](Kind kind) {
    return [=](std::string_view name, const json::value& value) {
      ReadText(fields, name, value, kind, out);
    };
  };
  each("guided_json", schema);
  each("json_schema", schema);
  each("guided_regex", text(Kind::kRegex));
  each("regex", text(Kind::kRegex));
  each("guided_grammar", text(Kind::kGrammar));
  each("grammar", text(Kind::kGrammar));
  each("ebnf", text(Kind::kGrammar));
  each("guided_choice", [&](std::string_view name, const json::value& value) {
    ReadChoices(fields, name, value, out);
  });
  each("structured_outputs",
       [&](std::string_view, const json::value& value) { ReadStructured(fields, value, out); });
}

void ReadTools(JsonFields* fields, ToolRequest* out) {
  if (fields->Find("functions") != nullptr) {
    return fields->FailField("functions", "functions is the older form of tools; use tools.",
                             "unsupported_parameter");
  }
  fields->Bool("parallel_tool_calls", &out->parallel);
  if (const json::value* tools = fields->Find("tools")) {
    if (!tools->is_array()) return fields->FailKind("tools", "an array", *tools);
    const json::array& list = tools->get_array();
    if (list.size() > kMaxTools) {
      return fields->FailField("tools", fmt::format("tools takes at most {} tools.", kMaxTools));
    }
    out->tools.resize(list.size());
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string name = fmt::format("tools[{}]", i);
      if (!list[i].is_object()) return fields->FailKind(name, "an object", list[i]);
      JsonFields tool(list[i].get_object(), fields->Path(name) + ".");
      ReadTool(&tool, &out->tools[i]);
      if (auto error = tool.TakeError()) return fields->Fail(std::move(*error));
    }
    if (!list.empty()) out->json = json::serialize(*tools);
  }
  ReadToolChoice(fields, out);
}

}  // namespace terrace::server
