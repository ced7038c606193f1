#include "text/chat_template.h"

#include <algorithm>
#include <array>
#include <optional>

#include <fmt/format.h>
#include <boost/json/parse.hpp>

#include "base/status.h"
#include "text/jinja/json.h"
#include "text/jinja/value.h"

namespace terrace {
namespace {

using jinja::Dict;
using jinja::DictPtr;
using jinja::Str;
using jinja::Value;

constexpr std::string_view kChatMl =
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

constexpr std::array<std::string_view, 6> kRoles = {"system",    "developer", "user",
                                                    "assistant", "tool",      "function"};

std::string_view View(boost::json::string_view s) { return {s.data(), s.size()}; }

absl::Status Invalid(std::string message) { return absl::InvalidArgumentError(std::move(message)); }

// The request's messages in the form a template takes. Builds values directly, so that role names,
// checked against the known ones, are trusted and everything else is not.
class MessageAdapter {
 public:
  MessageAdapter(const ChatCapabilities& capabilities, bool knows_developer)
      : capabilities_(capabilities), knows_developer_(knows_developer) {}

  absl::StatusOr<Value> Adapt(const boost::json::array& messages) {
    std::vector<Value> adapted;
    for (size_t i = 0; i < messages.size(); ++i) {
      path_ = fmt::format("messages[{}]", i);
      if (!messages[i].is_object()) return Invalid(path_ + ": not an object");
      ASSIGN_OR_RETURN(DictPtr message, AdaptMessage(messages[i].get_object()));
      if (message != nullptr) adapted.emplace_back(std::move(message));
    }
    if (held_system_) {
      // No user turn follows: it becomes one.
      auto message = std::make_shared<Dict>();
      message->Set(Value::Trusted("role"), Value::Trusted("user"));
      message->Set(Value::Trusted("content"), Content(*std::exchange(held_system_, {})));
      adapted.emplace_back(std::move(message));
    }
    return Value(jinja::MakeList(std::move(adapted)));
  }

 private:
  // Null if the message is held back for the next user turn.
  absl::StatusOr<DictPtr> AdaptMessage(const boost::json::object& json) {
    ASSIGN_OR_RETURN(const std::string_view role, ReadRole(json));
    ASSIGN_OR_RETURN(std::string text, ReadContent(json, role));
    if (role == "system" && !capabilities_.system_role) {
      HoldSystem(std::move(text));
      return DictPtr();
    }
    if (role == "user" && held_system_) {
      text = *std::exchange(held_system_, {}) + "\n\n" + text;
    }
    const boost::json::value* calls = json.if_contains("tool_calls");
    const bool has_calls = calls != nullptr && calls->is_array() && !calls->get_array().empty();
    const bool as_null = text.empty() && has_calls && capabilities_.null_content;
    auto message = std::make_shared<Dict>();
    message->Set(Value::Trusted("role"), Value::Trusted(role));
    message->Set(Value::Trusted("content"),
                 as_null ? Value(jinja::None{}) : Content(std::move(text)));
    for (const auto& entry : json) {
      const std::string_view key = View(entry.key());
      if (key == "role" || key == "content" || entry.value().is_null()) continue;
      Value value;
      if (key == "tool_calls") {
        if (!entry.value().is_array()) return Invalid(path_ + ".tool_calls: not an array");
        if (!has_calls) continue;
        ASSIGN_OR_RETURN(value, AdaptToolCalls(entry.value().get_array()));
      } else {
        ASSIGN_OR_RETURN(value, jinja::FromJson(entry.value()));
      }
      message->Set(Value::Untrusted(key), std::move(value));
    }
    return message;
  }

  void HoldSystem(std::string text) {
    held_system_ = held_system_ ? *held_system_ + "\n\n" + text : std::move(text);
  }

  absl::StatusOr<std::string_view> ReadRole(const boost::json::object& json) const {
    const boost::json::value* role = json.if_contains("role");
    if (role == nullptr || !role->is_string()) return Invalid(path_ + ".role: not a string");
    const std::string_view name = View(role->get_string());
    const auto* known = std::find(kRoles.begin(), kRoles.end(), name);
    if (known == kRoles.end()) {
      return Invalid(fmt::format("{}.role: unknown role '{}'; known are {}", path_,
                                 name.substr(0, 40), fmt::join(kRoles, ", ")));
    }
    if (name == "developer" && !knows_developer_) return "system";
    return *known;
  }

  absl::StatusOr<std::string> ReadContent(const boost::json::object& json,
                                          std::string_view role) const {
    const boost::json::value* content = json.if_contains("content");
    if (content == nullptr || content->is_null()) {
      if (role == "assistant") return std::string();
      return Invalid(fmt::format("{}.content: missing; only an assistant's may be", path_));
    }
    if (content->is_string()) return std::string(View(content->get_string()));
    if (!content->is_array()) return Invalid(path_ + ".content: not a string or an array");
    std::string text;
    for (size_t i = 0; i < content->get_array().size(); ++i) {
      const std::string path = fmt::format("{}.content[{}]", path_, i);
      const boost::json::object* part = content->get_array()[i].if_object();
      if (part == nullptr) return Invalid(path + ": not an object");
      const boost::json::value* type = part->if_contains("type");
      if (type == nullptr || !type->is_string()) return Invalid(path + ".type: not a string");
      if (type->get_string() != "text") {
        return Invalid(fmt::format("{}.type: '{}' is not supported; only 'text' is", path,
                                   View(type->get_string()).substr(0, 40)));
      }
      const boost::json::value* words = part->if_contains("text");
      if (words == nullptr || !words->is_string()) return Invalid(path + ".text: not a string");
      text += View(words->get_string());
    }
    return text;
  }

  Value Content(std::string text) const {
    Value content = Str(std::move(text), /*trusted=*/false);
    if (capabilities_.string_content || !capabilities_.part_content) return content;
    auto part = std::make_shared<Dict>();
    part->Set(Value::Trusted("type"), Value::Trusted("text"));
    part->Set(Value::Trusted("text"), std::move(content));
    return jinja::MakeList({Value(std::move(part))});
  }

  absl::StatusOr<Value> AdaptToolCalls(const boost::json::array& calls) const {
    std::vector<Value> adapted;
    for (size_t i = 0; i < calls.size(); ++i) {
      const std::string path = fmt::format("{}.tool_calls[{}]", path_, i);
      const boost::json::object* call = calls[i].if_object();
      const boost::json::value* function =
          call != nullptr ? call->if_contains("function") : nullptr;
      if (function == nullptr || !function->is_object()) {
        return Invalid(path + ".function: not an object");
      }
      const boost::json::value* name = function->get_object().if_contains("name");
      if (name == nullptr || !name->is_string()) {
        return Invalid(path + ".function.name: not a string");
      }
      boost::json::object copy = *call;
      boost::json::object& changed = copy["function"].get_object();
      RETURN_IF_ERROR(AdaptArguments(path + ".function.arguments", &changed["arguments"]));
      ASSIGN_OR_RETURN(Value value, jinja::FromJson(copy));
      adapted.push_back(std::move(value));
    }
    return Value(jinja::MakeList(std::move(adapted)));
  }

  // To an object or to text, as the template takes it; the client's own text is kept as it is.
  absl::Status AdaptArguments(const std::string& path, boost::json::value* arguments) const {
    boost::json::value parsed;
    if (arguments->is_object()) {
      parsed = *arguments;
    } else if (arguments->is_null()) {
      parsed.emplace_object();
    } else if (arguments->is_string()) {
      const std::string_view text = View(arguments->get_string());
      if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
        parsed.emplace_object();
      } else {
        boost::json::error_code error;
        parsed = boost::json::parse(boost::json::string_view(text.data(), text.size()), error);
        if (error) return Invalid(path + ": the text is not JSON");
      }
    }
    if (!parsed.is_object()) return Invalid(path + ": not a JSON object or the text of one");
    if (capabilities_.object_arguments) {
      *arguments = std::move(parsed);
    } else if (!arguments->is_string() || arguments->get_string().empty()) {
      ASSIGN_OR_RETURN(const Value value, jinja::FromJson(parsed));
      ASSIGN_OR_RETURN(const std::string text, jinja::ToJson(value));
      *arguments = boost::json::string(text.data(), text.size());
    }
    return absl::OkStatus();
  }

  const ChatCapabilities capabilities_;
  const bool knows_developer_;
  std::string path_;
  std::optional<std::string> held_system_;
};

// --- probes ---

boost::json::object Message(const char* role, boost::json::value content) {
  return {{"role", role}, {"content", std::move(content)}};
}

boost::json::array ProbeTools() {
  return boost::json::parse(
             R"([{"type": "function", "function": {"name": "probe_tool",
                  "description": "A probe.", "parameters": {"type": "object",
                  "properties": {"probe_key": {"type": "string", "description": "A key."}},
                  "required": ["probe_key"]}}}])")
      .as_array();
}

boost::json::array ProbeToolTurn(const boost::json::object& user, const boost::json::value& content,
                                 boost::json::value arguments) {
  boost::json::object call{{"id", "abc123def"}, {"type", "function"}};
  call["function"] =
      boost::json::object{{"name", "probe_tool"}, {"arguments", std::move(arguments)}};
  boost::json::object assistant = Message("assistant", content);
  assistant["tool_calls"] = boost::json::array{std::move(call)};
  boost::json::object result = Message("tool", "probe_result");
  result["tool_call_id"] = "abc123def";
  result["name"] = "probe_tool";
  return {user, std::move(assistant), std::move(result)};
}

bool Has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

std::vector<TextSpan> RenderedPrompt::TextSpans() const {
  std::vector<TextSpan> result;
  result.reserve(spans.size());
  for (const jinja::Span& span : spans) {
    result.push_back(
        {std::string_view(text).substr(span.begin, span.end - span.begin), span.trusted});
  }
  return result;
}

ChatTemplate::ChatTemplate(std::unique_ptr<const jinja::Template> parsed,
                           ChatTemplateOptions options, bool knows_developer)
    : template_(std::move(parsed)),
      options_(std::move(options)),
      knows_developer_(knows_developer) {}

absl::StatusOr<std::unique_ptr<const ChatTemplate>> ChatTemplate::Create(
    std::string_view source, ChatTemplateOptions options) {
  if (source.empty()) source = kChatMl;
  ASSIGN_OR_RETURN(auto parsed, jinja::Template::Parse(source, options.parsing));
  const bool knows_developer = source.find("developer") != std::string_view::npos;
  auto created = std::unique_ptr<ChatTemplate>(
      new ChatTemplate(std::move(parsed), std::move(options), knows_developer));
  created->Probe();
  return std::unique_ptr<const ChatTemplate>(std::move(created));
}

jinja::Value ChatTemplate::AbsentValue(const char* name) const {
  if (capabilities_.null_tools) return jinja::None{};
  return jinja::Undefined{std::make_shared<const std::string>(name), {}};
}

absl::StatusOr<RenderedPrompt> ChatTemplate::RenderAdapted(const jinja::Value& messages,
                                                           const ChatInput& input) const {
  Dict context;
  for (const auto& entry : input.extra) {
    ASSIGN_OR_RETURN(Value value, jinja::FromJson(entry.value()));
    context.Set(Value::Untrusted(View(entry.key())), std::move(value));
  }
  ASSIGN_OR_RETURN(Value tools, jinja::FromJson(input.tools));
  if (!tools.Truthy()) tools = AbsentValue("tools");
  context.Set(Value::Trusted("messages"), messages);
  context.Set(Value::Trusted("tools"), std::move(tools));
  context.Set(Value::Trusted("add_generation_prompt"), input.add_generation_prompt);
  if (context.Find(std::string_view("documents")) == nullptr) {
    context.Set(Value::Trusted("documents"), AbsentValue("documents"));
  }
  context.Set(Value::Trusted("bos_token"), Value::Trusted(options_.bos_token));
  context.Set(Value::Trusted("eos_token"), Value::Trusted(options_.eos_token));
  for (const auto& [name, token] : options_.tokens) {
    context.Set(Value::Trusted(name), Value::Trusted(token));
  }
  ASSIGN_OR_RETURN(jinja::Rendered rendered,
                   template_->Render(context, {options_.limits, input.now}));
  return RenderedPrompt{std::move(rendered.text), std::move(rendered.spans)};
}

absl::StatusOr<RenderedPrompt> ChatTemplate::Render(const ChatInput& input) const {
  if (!input.tools.is_null() && !input.tools.is_array()) return Invalid("tools: not an array");
  ASSIGN_OR_RETURN(const Value messages,
                   MessageAdapter(capabilities_, knows_developer_).Adapt(input.messages));
  return RenderAdapted(messages, input);
}

// What the template makes of raw messages; "" if it fails.
std::string ChatTemplate::RenderProbe(const boost::json::array& messages,
                                      const boost::json::value& tools) const {
  ChatInput input;
  input.tools = tools;
  input.now = [] { return int64_t{1768478400}; };  // Some time; any will do.
  const auto value = jinja::FromJson(messages);
  const auto rendered = RenderAdapted(*value, input);
  return rendered.ok() ? rendered->text : std::string();
}

void ChatTemplate::Probe() {
  const boost::json::array parts{boost::json::object{{"type", "text"}, {"text", "probe_user"}}};
  const auto probe_content = [&] {
    const std::string as_string = RenderProbe({Message("user", "probe_user")});
    const std::string as_parts = RenderProbe({Message("user", parts)});
    capabilities_.string_content = Has(as_string, "probe_user");
    capabilities_.part_content =
        Has(as_parts, "probe_user") && !Has(as_parts, "'text'") && !Has(as_parts, "\"text\"");
    return capabilities_.string_content || capabilities_.part_content;
  };
  const bool with_null = probe_content();
  if (!with_null) {
    capabilities_.null_tools = false;
    capabilities_.null_tools = !probe_content();
  }
  const auto content = [&](const char* text) -> boost::json::value {
    if (capabilities_.string_content || !capabilities_.part_content) {
      return boost::json::string(text);
    }
    return boost::json::array{boost::json::object{{"type", "text"}, {"text", text}}};
  };
  const boost::json::object user = Message("user", content("probe_user"));
  const std::string plain = RenderProbe({user});
  capabilities_.system_role =
      Has(RenderProbe({Message("system", content("probe_system")), user}), "probe_system");
  capabilities_.alternating_roles = !plain.empty() && RenderProbe({user, user}).empty();
  capabilities_.tools = Has(RenderProbe({user}, ProbeTools()), "probe_tool");
  ProbeToolCalls(user);
}

void ChatTemplate::ProbeToolCalls(const boost::json::object& user) {
  const boost::json::object arguments{{"probe_key", "probe_value"}};
  for (const bool null_content : {false, true}) {
    const boost::json::value content =
        null_content ? boost::json::value(nullptr) : boost::json::value("");
    const std::string as_object =
        RenderProbe(ProbeToolTurn(user, content, arguments), ProbeTools());
    const std::string as_text =
        RenderProbe(ProbeToolTurn(user, content, "{\"probe_key\": \"probe_value\"}"), ProbeTools());
    capabilities_.object_arguments =
        Has(as_object, "probe_value") && !Has(as_object, "'probe_key'");
    capabilities_.tool_calls = capabilities_.object_arguments || Has(as_text, "probe_value");
    capabilities_.null_content = null_content && capabilities_.tool_calls;
    if (capabilities_.tool_calls) return;
  }
}

}  // namespace terrace
