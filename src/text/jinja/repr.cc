// str(), repr() and strftime.
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <ctime>

#include <fmt/format.h>
#include <utf8proc.h>

#include "text/jinja/format.h"
#include "text/jinja/utf8.h"

namespace terrace::jinja {
namespace {

// Collects text, and whether any of it came from the input.
struct ReprWriter {
  Runtime& rt;
  std::string text;
  bool untrusted = false;

  void Write(const Value& v);
  void WriteString(const Str& s);
  void WriteList(const List& list);
  void WriteDict(const Dict& dict);
};

bool IsPrintable(uint32_t c) {
  if (c == ' ') return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

void ReprWriter::WriteString(const Str& s) {
  const std::string_view view = s.view();
  untrusted |= s.any_untrusted();
  const bool has_single = view.find('\'') != std::string_view::npos;
  const bool has_double = view.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  rt.Step(view.size() / 16);
  text.push_back(quote);
  for (size_t pos = 0; pos < view.size();) {
    const CodePoint c = DecodeAt(view, pos);
    const std::string_view bytes = view.substr(pos, c.bytes);
    pos += c.bytes;
    if (c.value == static_cast<uint32_t>(quote) || c.value == '\\') {
      text.push_back('\\');
      text.append(bytes);
    } else if (c.value == '\n') {
      text.append("\\n");
    } else if (c.value == '\r') {
      text.append("\\r");
    } else if (c.value == '\t') {
      text.append("\\t");
    } else if (c.valid && IsPrintable(c.value)) {
      text.append(bytes);
    } else if (c.value < 0x100) {
      text.append(fmt::format("\\x{:02x}", c.value));
    } else if (c.value < 0x10000) {
      text.append(fmt::format("\\u{:04x}", c.value));
    } else {
      text.append(fmt::format("\\U{:08x}", c.value));
    }
  }
  text.push_back(quote);
}

void ReprWriter::WriteList(const List& list) {
  if (list.kind == ListKind::kGenerator) {
    text.append("<generator object>");
    return;
  }
  const bool tuple = list.kind == ListKind::kTuple;
  if (list.kind == ListKind::kView) text.append("dict_view(");
  text.push_back(tuple ? '(' : '[');
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) text.append(", ");
    Write(list.items[i]);
  }
  if (tuple && list.items.size() == 1) text.push_back(',');
  text.push_back(tuple ? ')' : ']');
  if (list.kind == ListKind::kView) text.push_back(')');
}

void ReprWriter::WriteDict(const Dict& dict) {
  text.push_back('{');
  bool first = true;
  for (const auto& [key, value] : dict.entries()) {
    if (!first) text.append(", ");
    first = false;
    Write(key);
    text.append(": ");
    Write(value);
  }
  text.push_back('}');
}

void ReprWriter::Write(const Value& v) {
  rt.Step();
  rt.CheckString(text.size());
  if (const Str* s = v.str()) {
    if (s->markup()) text.append("Markup(");
    WriteString(*s);
    if (s->markup()) text.push_back(')');
  } else if (v.is_none()) {
    text.append("None");
  } else if (v.is_undefined()) {
    text.append("Undefined");
  } else if (const bool* flag = v.As<bool>()) {
    text.append(*flag ? "True" : "False");
  } else if (const int64_t* i = v.As<int64_t>()) {
    text.append(fmt::format("{}", *i));
  } else if (const double* d = v.As<double>()) {
    text.append(FormatDouble(*d));
  } else if (const List* list = v.list()) {
    WriteList(*list);
  } else if (const Dict* dict = v.dict()) {
    WriteDict(*dict);
  } else {
    text.append(fmt::format("<{}>", v.TypeName()));
  }
}

}  // namespace

std::string FormatDouble(double v) {
  if (std::isnan(v)) return "nan";
  if (std::isinf(v)) return v < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto result =
      std::to_chars(buffer, buffer + sizeof(buffer), v, std::chars_format::scientific);
  const std::string_view text(buffer, static_cast<size_t>(result.ptr - buffer));
  const size_t e = text.find('e');
  int exponent = 0;
  const size_t exponent_at = text[e + 1] == '+' ? e + 2 : e + 1;
  std::from_chars(text.data() + exponent_at, text.data() + text.size(), exponent);
  if (exponent < -4 || exponent >= 16) {
    return fmt::format("{}e{}{:02}", text.substr(0, e), exponent < 0 ? '-' : '+',
                       std::abs(exponent));
  }
  const auto fixed = std::to_chars(buffer, buffer + sizeof(buffer), v, std::chars_format::fixed);
  std::string out(buffer, static_cast<size_t>(fixed.ptr - buffer));
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

Str Repr(Runtime& rt, const Value& v) {
  ReprWriter writer{rt, {}};
  writer.Write(v);
  rt.NewString(writer.text.size());
  return Str(std::move(writer.text), !writer.untrusted);
}

Str ToStr(Runtime& rt, const Value& v) {
  if (const Str* s = v.str()) return *s;
  if (v.is_undefined()) return Str();
  return Repr(rt, v);
}

std::string FormatTime(std::string_view format, int64_t unix_seconds) {
  const std::time_t seconds = static_cast<std::time_t>(unix_seconds);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  std::string out;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 >= format.size()) {
      out.push_back(format[i]);
      continue;
    }
    std::string directive = "%";
    if (format[i + 1] == '-' && i + 2 < format.size()) directive.push_back(format[++i]);
    directive.push_back(format[++i]);
    constexpr std::string_view kKnown = "aAbBcCdDeFgGhHIjklmMnpPrRsStTuUVwWxXyYzZ%";
    char buffer[128];
    if (directive.back() == 'f') {
      out.append("000000");
    } else if (kKnown.find(directive.back()) == std::string_view::npos) {
      out.append(directive);
    } else {
      out.append(buffer, std::strftime(buffer, sizeof(buffer), directive.c_str(), &parts));
    }
  }
  return out;
}

}  // namespace terrace::jinja
