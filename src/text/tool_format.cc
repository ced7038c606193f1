#include "text/tool_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>

namespace terrace {
namespace {

namespace json = boost::json;

// Words that no template writes by itself. Ids have nine letters and digits, which all accept.
constexpr std::array<std::string_view, 3> kNames = {"qprobe_one", "qprobe_two", "qprobe_three"};
constexpr std::array<std::string_view, 3> kIds = {"qzx123de1", "qzx123de2", "qzx123de3"};
constexpr std::string_view kKey = "qkey";
constexpr std::string_view kContent = "qcontent";
constexpr char kIdMark = '\x01';

json::object Message(std::string_view role, std::string_view content) {
  return {{"role", json::string(role)}, {"content", json::string(content)}};
}

std::optional<std::string> Render(const ChatTemplate& chat_template, size_t calls,
                                  std::string_view content, bool prompt) {
  ChatInput input;
  json::array tools;
  for (std::string_view name : kNames) {
    json::object parameters{{"type", "object"},
                            {"properties", json::object{{kKey, json::object{{"type", "string"}}}}},
                            {"required", json::array{json::string(kKey)}}};
    tools.push_back(
        json::object{{"type", "function"},
                     {"function", json::object{{"name", json::string(name)},
                                               {"description", "x"},
                                               {"parameters", std::move(parameters)}}}});
  }
  input.tools = std::move(tools);
  input.messages.push_back(Message("user", "x"));
  if (!prompt) {
    json::object answer = Message("assistant", content);
    json::array list;
    for (size_t i = 0; i < calls; ++i) {
      list.push_back(json::object{
          {"id", json::string(kIds[i])},
          {"type", "function"},
          {"function", json::object{{"name", json::string(kNames[i])},
                                    {"arguments", fmt::format("{{\"{}\": \"qvalue\"}}", kKey)}}}});
    }
    if (calls > 0) answer["tool_calls"] = std::move(list);
    input.messages.push_back(std::move(answer));
  }
  input.add_generation_prompt = prompt;
  input.now = [] { return int64_t{1'700'000'000}; };
  auto rendered = chat_template.Render(input);
  if (!rendered.ok()) return std::nullopt;
  return std::move(rendered->text);
}

// One past the end of the JSON object at `begin` that holds the key; nothing if there is none.
std::optional<size_t> ObjectEnd(std::string_view text, size_t begin) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = begin; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        quoted = false;
      }
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{') {
      ++depth;
    } else if (c == '}' && --depth == 0) {
      const std::string_view object = text.substr(begin, i + 1 - begin);
      json::error_code ec;
      const json::value value = json::parse(json::string_view(object.data(), object.size()), ec);
      if (ec || !value.is_object() || !value.get_object().contains(kKey)) return std::nullopt;
      return i + 1;
    }
  }
  return std::nullopt;
}

struct Call {
  size_t name_begin = 0, name_end = 0, arguments_begin = 0, arguments_end = 0;
};
std::optional<Call> FindCall(std::string_view text, size_t from, std::string_view name) {
  Call call;
  call.name_begin = text.find(name, from);
  if (call.name_begin == std::string_view::npos) return std::nullopt;
  call.name_end = call.name_begin + name.size();
  for (size_t at = text.find('{', call.name_end); at != std::string_view::npos;
       at = text.find('{', at + 1)) {
    if (const auto end = ObjectEnd(text, at)) {
      call.arguments_begin = at;
      call.arguments_end = *end;
      return call;
    }
  }
  return std::nullopt;
}

std::string Masked(std::string_view text, size_t call) {
  std::string out(text);
  for (size_t at; (at = out.find(kIds[call])) != std::string::npos;) {
    out.replace(at, kIds[call].size(), 1, kIdMark);
  }
  return out;
}

// `text` with its ids as parts; `other` is the same of the next call: digits that differ are its
// number. Nothing if they differ otherwise.
std::optional<FormatParts> Parts(const std::string& text, const std::string& other) {
  FormatParts parts;
  auto add = [&parts](std::string_view piece) {
    for (size_t at = 0; at <= piece.size();) {
      const size_t mark = std::min(piece.find(kIdMark, at), piece.size());
      if (mark > at)
        parts.push_back({FormatPart::Kind::kText, std::string(piece.substr(at, mark - at))});
      if (mark < piece.size()) parts.push_back({FormatPart::Kind::kId, ""});
      at = mark + 1;
    }
  };
  if (text == other) {
    add(text);
    return parts;
  }
  const size_t shorter = std::min(text.size(), other.size());
  size_t front = 0, back = 0;
  while (front < shorter && text[front] == other[front]) ++front;
  while (back < shorter - front && text[text.size() - 1 - back] == other[other.size() - 1 - back]) {
    ++back;
  }
  auto digits = [&](const std::string& from) {
    const std::string_view middle =
        std::string_view(from).substr(front, from.size() - front - back);
    return !middle.empty() && middle.find_first_not_of("0123456789") == std::string_view::npos;
  };
  if (!digits(text) || !digits(other)) return std::nullopt;
  add(std::string_view(text).substr(0, front));
  parts.push_back({FormatPart::Kind::kIndex, ""});
  add(std::string_view(text).substr(text.size() - back));
  return parts;
}

// What ends the turn is no part of the call.
std::string_view CutEnd(std::string_view close, std::string_view turn_end,
                        std::span<const std::string> end_words) {
  size_t cut = close.size();
  for (const std::string& word : end_words) {
    if (!word.empty()) cut = std::min(cut, close.find(word));
  }
  const size_t last = turn_end.find_last_not_of(" \n");
  if (last != std::string_view::npos) cut = std::min(cut, close.find(turn_end.substr(0, last + 1)));
  close = close.substr(0, std::min(cut, close.size()));
  while (!close.empty() && (close.back() == '\n' || close.back() == ' ')) close.remove_suffix(1);
  return close;
}

std::string Trigger(const FormatParts& open) {
  std::string_view text = open[0].text;
  text.remove_prefix(std::min(text.find_first_not_of(" \n"), text.size()));
  if (text.starts_with('<') || text.starts_with('[')) {
    const size_t end = text.find(text[0] == '<' ? '>' : ']');
    // A marker, not the beginning of a list or of a tag with the name in it.
    if (end != std::string_view::npos && text.find_first_of("\"{") > end) {
      return std::string(text.substr(0, end + 1));
    }
  }
  return std::string(text);
}

}  // namespace

std::optional<ToolFormat> FindToolFormat(const ChatTemplate& chat_template,
                                         std::span<const std::string> end_words) {
  const auto prompt = Render(chat_template, 0, "", true);
  const auto one = Render(chat_template, 1, "", false);
  const auto said = Render(chat_template, 0, kContent, false);
  if (!prompt || !one || !said) return std::nullopt;
  const size_t base = static_cast<size_t>(
      std::mismatch(prompt->begin(), prompt->end(), one->begin(), one->end()).first -
      prompt->begin());
  const auto call = FindCall(*one, base, kNames[0]);
  if (!call) return std::nullopt;
  std::string_view open = std::string_view(*one).substr(base, call->name_begin - base);
  // Empty reasoning before the call is no part of it.
  if (const auto reasoning = FindReasoningFormat(*one + *prompt)) {
    if (const size_t at = open.rfind(reasoning->close); at != std::string_view::npos) {
      open.remove_prefix(at + reasoning->close.size());
      open.remove_prefix(std::min(open.find_first_not_of(" \n"), open.size()));
    }
  }
  const size_t content = said->find(kContent, 0);
  const std::string_view turn_end =
      content == std::string::npos ? "" : std::string_view(*said).substr(content + kContent.size());
  ToolFormat format;
  format.native = true;
  const std::string first_middle = Masked(
      std::string_view(*one).substr(call->name_end, call->arguments_begin - call->name_end), 0);
  std::string second_middle = first_middle;
  if (const auto three = Render(chat_template, 3, "", false)) {
    const auto a = FindCall(*three, base, kNames[0]);
    const auto b = a ? FindCall(*three, a->arguments_end, kNames[1]) : std::nullopt;
    const auto c = b ? FindCall(*three, b->arguments_end, kNames[2]) : std::nullopt;
    if (c) {
      auto piece = [&](size_t from, size_t to, size_t ids) {
        return Masked(Masked(std::string_view(*three).substr(from, to - from), ids), ids - 1);
      };
      second_middle = piece(b->name_end, b->arguments_begin, 1);
      const auto between = Parts(piece(a->arguments_end, b->name_begin, 1),
                                 piece(b->arguments_end, c->name_begin, 2));
      format.parallel = between.has_value() && !between->empty();
      if (format.parallel) format.between = *between;
    }
  }
  const auto middle = Parts(first_middle, second_middle);
  const std::string opening = Masked(open, 0);
  const std::string closing =
      Masked(CutEnd(std::string_view(*one).substr(call->arguments_end), turn_end, end_words), 0);
  format.open = *Parts(opening, opening);
  format.close = *Parts(closing, closing);
  if (!middle || format.open.empty() || format.open[0].kind != FormatPart::Kind::kText) {
    return std::nullopt;
  }
  format.middle = *middle;
  format.trigger = Trigger(format.open);
  if (format.trigger.empty()) return std::nullopt;
  return format;
}

ToolFormat GenericToolFormat() {
  auto text = [](std::string_view words) {
    return FormatParts{{FormatPart::Kind::kText, std::string(words)}};
  };
  ToolFormat format;
  format.open = text("<tool_call>\n{\"name\": \"");
  format.middle = text("\", \"arguments\": ");
  format.between = text("}\n</tool_call>\n<tool_call>\n{\"name\": \"");
  format.close = text("}\n</tool_call>");
  format.parallel = true;
  format.trigger = "<tool_call>";
  return format;
}

std::string GenericToolPrompt(std::string_view tools_json) {
  return fmt::format(
      "You can call these tools, described by JSON schemas:\n<tools>\n{}\n</tools>\n\n"
      "To call a tool, answer with its name and arguments as JSON between tool_call markers:\n"
      "<tool_call>\n{{\"name\": \"the tool's name\", \"arguments\": {{}}}}\n</tool_call>",
      tools_json);
}

std::optional<ReasoningFormat> FindReasoningFormat(std::string_view template_source) {
  static const std::array<ReasoningFormat, 7> kKnown = {{
      {"<think>", "</think>", ""},
      {"<|START_THINKING|>", "<|END_THINKING|>", ""},
      {"[THINK]", "[/THINK]", ""},
      {"<seed:think>", "</seed:think>", ""},
      {"<mm:think>", "</mm:think>", ""},
      {"<|inner_prefix|>", "<|inner_suffix|>", ""},
      {"<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>",
       "<|channel|>final<|message|>"},
  }};
  for (const ReasoningFormat& format : kKnown) {
    // The last one is written in pieces: its first marker and its word show it.
    const bool channels = !format.skip.empty();
    const std::string_view first = channels ? std::string_view("<|channel|>") : format.open;
    const std::string_view second = channels ? std::string_view("analysis") : format.close;
    if (template_source.find(first) != std::string_view::npos &&
        template_source.find(second) != std::string_view::npos) {
      return format;
    }
  }
  return std::nullopt;
}

}  // namespace terrace
