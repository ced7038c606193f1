// Filters whose result is text or a number.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "text/jinja/filters.h"
#include "text/jinja/format.h"
#include "text/jinja/json.h"
#include "text/jinja/ops.h"
#include "text/jinja/runtime.h"
#include "text/jinja/strings.h"
#include "text/jinja/utf8.h"

namespace terrace::jinja {
namespace {

using Args = const CallArgs&;

Value TrimFilter(Runtime& rt, const Value& v, Args args) {
  const auto bound = Bind("trim", args, {"chars"});
  const bool plain = bound[0] == nullptr || bound[0]->is_none();
  return Strip(rt, ToStr(rt, v), plain ? nullptr : &StrArg(bound[0], "trim"), Side::kBoth);
}

Value ReplaceFilter(Runtime& rt, const Value& v, Args args) {
  const auto bound = Bind("replace", args, {"old", "new", "count"});
  if (bound[0] == nullptr || bound[1] == nullptr) FailType("replace needs two arguments");
  const bool all = bound[2] == nullptr || bound[2]->is_none();
  return Replace(rt, ToStr(rt, v).WithMarkup(false), ToStr(rt, *bound[0]), ToStr(rt, *bound[1]),
                 all ? -1 : IntArg(bound[2], -1));
}

Value IndentFilter(Runtime& rt, const Value& v, Args args) {
  const auto bound = Bind("indent", args, {"width", "first", "blank"});
  const Str text = StrArg(&v, "indent");
  Str indent;
  if (bound[0] != nullptr && bound[0]->is_string()) {
    indent = *bound[0]->str();
  } else {
    indent = Repeat(rt, Str(" ", true), IntArg(bound[0], 4));
  }
  const bool blank = BoolArg(bound[2], false);
  const Str newline("\n", true);
  // With the newline that Jinja2 adds, text that ends with one keeps it.
  const std::vector<Value> lines = SplitLines(rt, ConcatStr(rt, text.WithMarkup(false), newline),
                                              /*keep_ends=*/false);
  StrBuilder builder;
  if (BoolArg(bound[1], false)) builder.Append(indent);
  for (size_t i = 0; i < lines.size(); ++i) {
    const Str& line = *lines[i].str();
    rt.CheckString(builder.size() + indent.size() + line.size() + 1);
    if (i > 0) {
      builder.Append(newline);
      if (blank || !line.empty()) builder.Append(indent);
    }
    builder.Append(line);
  }
  rt.NewString(builder.size());
  return builder.Build(text.markup());
}

Value TitleFilter(Runtime& rt, const Value& v, Args) {
  const Str text = ToStr(rt, v);
  StrBuilder builder;
  bool word_start = true;
  rt.Step(text.size() / 16);
  text.ForEachRun(0, text.size(), [&](size_t begin, size_t end, bool trusted) {
    std::string piece;
    const std::string_view run = text.view().substr(begin, end - begin);
    for (size_t pos = 0; pos < run.size();) {
      const CodePoint c = DecodeAt(run, pos);
      word_start ? AppendUpper(c.value, &piece) : AppendLower(c.value, &piece);
      word_start =
          IsSpace(c.value) || std::string_view("-({[<").find(run[pos]) != std::string_view::npos;
      pos += c.bytes;
    }
    builder.Append(piece, trusted);
  });
  rt.NewString(builder.size());
  return builder.Build(text.markup());
}

Value TruncateFilter(Runtime& rt, const Value& v, Args args) {
  const auto bound = Bind("truncate", args, {"length", "killwords", "end", "leeway"});
  const Str text = StrArg(&v, "truncate");
  const int64_t length = IntArg(bound[0], 255);
  const Str end = bound[2] != nullptr ? StrArg(bound[2], "truncate") : Str("...", true);
  const bool standard = bound[3] == nullptr || bound[3]->is_none();
  const int64_t leeway = standard ? 5 : IntArg(bound[3], 5);
  const int64_t end_length = static_cast<int64_t>(CountCodePoints(end.view()));
  if (length < end_length || leeway < 0) FailType("truncate: the length is too small");
  const int64_t size = static_cast<int64_t>(CountCodePoints(text.view()));
  if (size <= leeway || size - leeway <= length) return text;
  Str kept = text.Sub(0, ByteOffset(text.view(), static_cast<size_t>(length - end_length)));
  if (!BoolArg(bound[1], false)) {
    const size_t space = kept.view().rfind(' ');
    if (space != std::string_view::npos) kept = kept.Sub(0, space);
  }
  return ConcatStr(rt, kept, end);
}

Value WordCountFilter(Runtime& rt, const Value& v, Args) {
  const Str text = ToStr(rt, v);
  const std::string_view view = text.view();
  rt.Step(view.size() / 32);
  int64_t count = 0;
  bool in_word = false;
  for (size_t pos = 0; pos < view.size();) {
    const CodePoint c = DecodeAt(view, pos);
    const bool part = c.value == '_' || IsAlpha(c.value) || IsDecimal(c.value);
    count += part && !in_word;
    in_word = part;
    pos += c.bytes;
  }
  return count;
}

Value IntFilter(Runtime&, const Value& v, Args args) {
  const auto bound = Bind("int", args, {"default", "base"});
  const Value fallback = bound[0] != nullptr ? *bound[0] : Value(int64_t{0});
  int64_t scratch = 0;
  double number = 0;
  if (const int64_t* i = AsInt(v, &scratch)) return *i;
  if (const Undefined* u = v.As<Undefined>()) FailUndefined(*u);
  if (const Str* s = v.str()) {
    if (ParseInt(s->view(), static_cast<int>(std::clamp<int64_t>(IntArg(bound[1], 10), 0, 99)),
                 &scratch)) {
      return scratch;
    }
    if (!ParseFloat(s->view(), &number)) return fallback;
  } else if (!AsDouble(v, &number)) {
    return fallback;
  }
  if (std::isnan(number) || std::isinf(number)) return fallback;
  if (std::fabs(number) >= 9.2e18) FailType("an integer is out of range (64 bits)");
  return static_cast<int64_t>(number);
}

Value FloatFilter(Runtime&, const Value& v, Args args) {
  const auto bound = Bind("float", args, {"default"});
  double number = 0;
  if (AsDouble(v, &number)) return number;
  if (const Undefined* u = v.As<Undefined>()) FailUndefined(*u);
  if (v.str() != nullptr && ParseFloat(v.str()->view(), &number)) return number;
  return bound[0] != nullptr ? *bound[0] : Value(0.0);
}

Value RoundFilter(Runtime&, const Value& v, Args args) {
  const auto bound = Bind("round", args, {"precision", "method"});
  const int64_t precision = std::clamp<int64_t>(IntArg(bound[0], 0), -300, 300);
  const std::string_view method = bound[1] != nullptr ? StrArg(bound[1], "round").view() : "common";
  double number = 0;
  if (!AsDouble(v, &number)) {
    FailType(fmt::format("type {} doesn't define __round__ method", v.TypeName()));
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  if (method == "ceil") return std::ceil(number * scale) / scale;
  if (method == "floor") return std::floor(number * scale) / scale;
  if (method != "common") FailType("method must be common, ceil or floor");
  if (!v.is_double() && precision >= 0) return Positive(v);
  if (precision < 0) {
    const double rounded = std::nearbyint(number * scale) / scale;
    return v.is_double() ? Value(rounded) : Value(static_cast<int64_t>(rounded));
  }
  if (std::isnan(number) || std::isinf(number) || std::fabs(number) >= 1e16) return number;
  // Correct rounding of the decimal expansion, ties to even of the exact value: as printf does.
  const std::string digits = fmt::format("{:.{}f}", number, precision);
  double rounded = 0;
  ParseFloat(digits, &rounded);
  return rounded;
}

Value AbsFilter(Runtime&, const Value& v, Args) {
  int64_t scratch = 0;
  if (const int64_t* i = AsInt(v, &scratch)) return *i < 0 ? Negate(v) : Positive(v);
  double number = 0;
  if (AsDouble(v, &number)) return std::fabs(number);
  if (const Undefined* u = v.As<Undefined>()) FailUndefined(*u);
  FailType(fmt::format("bad operand type for abs(): '{}'", v.TypeName()));
}

Value FormatFilter(Runtime& rt, const Value& v, Args args) {
  if (!args.positional.empty() && !args.named.empty()) {
    FailType("can't handle positional and keyword arguments at the same time");
  }
  if (args.named.empty()) {
    return PercentFormat(rt, ToStr(rt, v), MakeList(args.positional, ListKind::kTuple));
  }
  auto dict = std::make_shared<Dict>();
  for (const auto& [name, value] : args.named) dict->Set(Value::Trusted(name), value);
  return PercentFormat(rt, ToStr(rt, v), dict);
}

// Percent-encodes all but unreserved characters and '/' (and that too if `for_query`).
void AppendQuoted(const Str& text, bool for_query, StrBuilder* out) {
  text.ForEachRun(0, text.size(), [&](size_t begin, size_t end, bool trusted) {
    for (size_t i = begin; i < end; ++i) {
      const char c = text.view()[i];
      const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                         (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-' || c == '~' ||
                         (c == '/' && !for_query);
      if (plain) {
        out->Append(text.view().substr(i, 1), trusted);
      } else if (c == ' ' && for_query) {
        out->Append("+", trusted);
      } else {
        out->Append(fmt::format("%{:02X}", static_cast<unsigned char>(c)), trusted);
      }
    }
  });
}

Value UrlEncodeFilter(Runtime& rt, const Value& v, Args) {
  StrBuilder builder;
  if (v.list() == nullptr && v.dict() == nullptr) {
    const Str text = ToStr(rt, v);
    rt.NewString(text.size() * 3);
    rt.Step(text.size() / 8);
    AppendQuoted(text, false, &builder);
    return builder.Build();
  }
  const auto add = [&](const Value& key, const Value& value) {
    const Str name = ToStr(rt, key), text = ToStr(rt, value);
    rt.NewString((name.size() + text.size()) * 3);
    rt.Step((name.size() + text.size()) / 8);
    if (builder.size() > 0) builder.Append("&", true);
    AppendQuoted(name, true, &builder);
    builder.Append("=", true);
    AppendQuoted(text, true, &builder);
  };
  if (const Dict* dict = v.dict()) {
    for (const auto& [key, value] : dict->entries()) add(key, value);
  } else {
    const auto list = IterItems(rt, v);
    for (const Value& pair : list->items) {
      const auto parts = IterItems(rt, pair);
      if (parts->items.size() != 2) FailType("urlencode: each item must be a pair");
      add(parts->items[0], parts->items[1]);
    }
  }
  return builder.Build();
}

Value FileSizeFilter(Runtime& rt, const Value& v, Args args) {
  const bool binary = BoolArg(Bind("filesizeformat", args, {"binary"})[0], false);
  double bytes = 0;
  if (!AsDouble(v, &bytes)) AsDouble(FloatFilter(rt, v, {}), &bytes);
  const double base = binary ? 1024 : 1000;
  if (bytes == 1) return Value::Trusted("1 Byte");
  if (!(bytes >= base)) return Value::Trusted(fmt::format("{:.0f} Bytes", std::trunc(bytes)));
  constexpr std::string_view kPrefixes = "kMGTPEZY";
  double unit = base;
  size_t i = 0;
  while (i + 1 < kPrefixes.size() && bytes >= unit * base) {
    unit *= base;
    ++i;
  }
  const char prefix = binary && i == 0 ? 'K' : kPrefixes[i];
  return Value::Trusted(fmt::format("{:.1f} {}{}", bytes / unit, prefix, binary ? "iB" : "B"));
}

// Without <tags> and comments, and with runs of whitespace as one space.
Value StripTagsFilter(Runtime& rt, const Value& v, Args) {
  const Str text = ToStr(rt, v);
  const std::string_view view = text.view();
  rt.Step(view.size() / 16);
  rt.NewString(view.size());
  StrBuilder bare;
  for (size_t pos = 0; pos < view.size();) {
    const bool comment = view.substr(pos, 4) == "<!--";
    if (view[pos] == '<') {
      const std::string_view closer = comment ? "-->" : ">";
      const size_t close = view.find(closer, pos);
      if (close != std::string_view::npos) {
        pos = close + closer.size();
        continue;
      }
      bare.Append(text, pos, view.size());
      break;
    }
    const size_t next = std::min(view.find('<', pos), view.size());
    bare.Append(text, pos, next);
    pos = next;
  }
  CallArgs none;
  const Value words = CallMethod(rt, bare.Build(), "split", none);
  return Join(rt, Str(" ", true), words.list()->items, false);
}

// Breaks lines longer than `width` at spaces, and words longer than it anywhere.
Value WordWrapFilter(Runtime& rt, const Value& v, Args args) {
  const auto bound =
      Bind("wordwrap", args, {"width", "break_long_words", "wrapstring", "break_on_hyphens"});
  const int64_t width = IntArg(bound[0], 79);
  if (width <= 0) FailType("wordwrap: the width must be above zero");
  const bool standard = bound[2] == nullptr || bound[2]->is_none();
  const Str wrap = standard ? Str("\n", true) : StrArg(bound[2], "wordwrap");
  const bool break_words = BoolArg(bound[1], true);
  std::vector<Value> lines;
  for (const Value& line : SplitLines(rt, StrArg(&v, "wordwrap"), false)) {
    Str current;
    CallArgs none;
    const Value words = CallMethod(rt, line, "split", none);
    for (const Value& item : words.list()->items) {
      Str word = *item.str();
      const auto length = [](const Str& s) {
        return static_cast<int64_t>(CountCodePoints(s.view()));
      };
      if (!current.empty() && length(current) + 1 + length(word) > width) {
        lines.emplace_back(std::exchange(current, Str()));
      }
      while (break_words && current.empty() && length(word) > width) {
        const size_t cut = ByteOffset(word.view(), static_cast<size_t>(width));
        rt.NewString(word.size());
        lines.emplace_back(word.Sub(0, cut));
        word = word.Sub(cut);
      }
      current =
          current.empty() ? word : ConcatStr(rt, ConcatStr(rt, current, Str(" ", true)), word);
    }
    lines.emplace_back(current);
  }
  return Join(rt, wrap, lines, false);
}

Value XmlAttrFilter(Runtime& rt, const Value& v, Args args) {
  const bool space = BoolArg(Bind("xmlattr", args, {"autospace"})[0], true);
  if (v.dict() == nullptr) FailType("xmlattr needs a mapping");
  StrBuilder builder;
  for (const auto& [key, value] : v.dict()->entries()) {
    if (value.is_none() || value.is_undefined()) continue;
    const Str name = ToStr(rt, key);
    if (name.view().find_first_of(" \t\n\r\f\v/>=") != std::string_view::npos) {
      FailType("invalid character in attribute name");
    }
    if (builder.size() > 0 || space) builder.Append(" ", true);
    builder.Append(EscapeHtml(rt, name));
    builder.Append("=\"", true);
    builder.Append(EscapeHtml(rt, ToStr(rt, value)));
    builder.Append("\"", true);
    rt.CheckString(builder.size());
  }
  rt.NewString(builder.size());
  return builder.Build();
}

Value Escape(Runtime& rt, const Value& v, Args) { return EscapeHtml(rt, ToStr(rt, v)); }

constexpr NamedFilter kFilters[] = {
    {"abs", AbsFilter},
    {"capitalize",
     [](Runtime& rt, const Value& v, Args) -> Value { return Capitalize(rt, ToStr(rt, v)); }},
    {"center",
     [](Runtime& rt, const Value& v, Args args) -> Value {
       return Justify(rt, ToStr(rt, v), IntArg(Bind("center", args, {"width"})[0], 80),
                      Str(" ", true), Place::kCenter);
     }},
    {"e", Escape},
    {"escape", Escape},
    {"filesizeformat", FileSizeFilter},
    {"float", FloatFilter},
    {"forceescape",
     [](Runtime& rt, const Value& v, Args) -> Value {
       return EscapeHtml(rt, ToStr(rt, v).WithMarkup(false));
     }},
    {"format", FormatFilter},
    {"from_json", FromJsonFilter},
    {"indent", IndentFilter},
    {"int", IntFilter},
    {"lower", [](Runtime& rt, const Value& v, Args) -> Value { return Lower(rt, ToStr(rt, v)); }},
    {"pprint", [](Runtime& rt, const Value& v, Args) -> Value { return Repr(rt, v); }},
    {"replace", ReplaceFilter},
    {"round", RoundFilter},
    {"safe",
     [](Runtime& rt, const Value& v, Args) -> Value { return ToStr(rt, v).WithMarkup(true); }},
    {"string", [](Runtime& rt, const Value& v, Args) -> Value { return ToStr(rt, v); }},
    {"striptags", StripTagsFilter},
    {"title", TitleFilter},
    {"tojson", ToJsonFilter},
    {"trim", TrimFilter},
    {"truncate", TruncateFilter},
    {"upper", [](Runtime& rt, const Value& v, Args) -> Value { return Upper(rt, ToStr(rt, v)); }},
    {"urlencode", UrlEncodeFilter},
    {"wordcount", WordCountFilter},
    {"wordwrap", WordWrapFilter},
    {"xmlattr", XmlAttrFilter},
};

}  // namespace

std::span<const NamedFilter> TextFilters() { return kFilters; }

}  // namespace terrace::jinja
