#include "text/jinja/format.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <fmt/format.h>

#include "text/jinja/ops.h"
#include "text/jinja/utf8.h"

namespace terrace::jinja {
namespace {

constexpr int64_t kMaxPrecision = 400;

// One conversion of % or format(): what to do with one argument.
struct Spec {
  std::string fill = " ";
  char align = '\0';  // < > ^ =
  bool plus = false;
  bool space = false;
  bool alternate = false;
  bool grouped = false;
  int64_t width = 0;
  int64_t precision = -1;
  char type = '\0';
  bool trusted_fill = true;
};

std::string Grouped(const std::string& digits) {
  const size_t point = std::min(digits.find_first_of(".e"), digits.size());
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && i < point && (point - i) % 3 == 0) out.push_back(',');
    out.push_back(digits[i]);
  }
  return out;
}

std::string FormatMagnitude(double v, const Spec& spec) {
  if (std::isinf(v)) return spec.type == 'F' || spec.type == 'E' ? "INF" : "inf";
  if (std::isnan(v)) return spec.type == 'F' || spec.type == 'E' ? "NAN" : "nan";
  const char type = spec.type == '%' ? 'f' : spec.type;
  const std::string format = fmt::format("%{}.*{}", spec.alternate ? "#" : "", type);
  const int precision = static_cast<int>(spec.precision < 0 ? 6 : spec.precision);
  const double value = spec.type == '%' ? v * 100 : v;
  std::string out(static_cast<size_t>(precision) + 350, '\0');
  const int length = std::snprintf(out.data(), out.size(), format.c_str(), precision, value);
  out.resize(static_cast<size_t>(std::max(length, 0)));
  return spec.type == '%' ? out + "%" : out;
}

std::string FormatMagnitude(uint64_t v, const Spec& spec) {
  switch (spec.type) {
    case 'x':
      return fmt::format("{}{:x}", spec.alternate ? "0x" : "", v);
    case 'X':
      return fmt::format("{}{:X}", spec.alternate ? "0X" : "", v);
    case 'o':
      return fmt::format("{}{:o}", spec.alternate ? "0o" : "", v);
    case 'b':
      return fmt::format("{}{:b}", spec.alternate ? "0b" : "", v);
    default:
      return fmt::format("{}", v);
  }
}

// Pads `body` (with its provenance) to the width; `sign` goes before the padding if align is '='.
void AppendPadded(Runtime& rt, const Spec& spec, std::string_view sign, const Str& body,
                  char default_align, StrBuilder* out) {
  const size_t length = sign.size() + CountCodePoints(body.view());
  size_t pad = 0;
  if (spec.width > static_cast<int64_t>(length)) pad = static_cast<size_t>(spec.width) - length;
  rt.CheckString(out->size() + sign.size() + body.size() + pad * spec.fill.size());
  rt.Step(pad / 16);
  const char align = spec.align != '\0' ? spec.align : default_align;
  const size_t before = align == '>' || align == '=' ? pad : align == '^' ? pad / 2 : 0;
  const auto fill = [&](size_t count) {
    for (size_t i = 0; i < count; ++i) out->Append(spec.fill, spec.trusted_fill);
  };
  if (align == '=') out->Append(sign, true);
  fill(before);
  if (align != '=') out->Append(sign, true);
  out->Append(body);
  fill(pad - before);
}

void AppendNumber(Runtime& rt, const Spec& spec, bool negative, std::string magnitude,
                  StrBuilder* out) {
  if (spec.grouped) magnitude = Grouped(magnitude);
  const std::string_view sign = negative ? "-" : spec.plus ? "+" : spec.space ? " " : "";
  AppendPadded(rt, spec, sign, Str(std::move(magnitude), true), '>', out);
}

void AppendInt(Runtime& rt, const Spec& spec, int64_t v, StrBuilder* out) {
  const uint64_t magnitude = v < 0 ? 0 - static_cast<uint64_t>(v) : static_cast<uint64_t>(v);
  std::string digits = FormatMagnitude(magnitude, spec);
  if (spec.precision > static_cast<int64_t>(digits.size())) {
    digits.insert(0, static_cast<size_t>(spec.precision) - digits.size(), '0');
  }
  AppendNumber(rt, spec, v < 0, std::move(digits), out);
}

void AppendFloat(Runtime& rt, const Spec& spec, double v, StrBuilder* out) {
  AppendNumber(rt, spec, std::signbit(v) && !std::isnan(v), FormatMagnitude(std::fabs(v), spec),
               out);
}

void AppendText(Runtime& rt, const Spec& spec, Str text, StrBuilder* out) {
  if (spec.precision >= 0) {
    text = text.Sub(0, ByteOffset(text.view(), static_cast<size_t>(spec.precision)));
  }
  AppendPadded(rt, spec, "", text, '<', out);
}

bool IsFloatType(char type) {
  return std::string_view("eEfFgG").find(type) != std::string_view::npos;
}

void CheckSpec(Runtime& rt, const Spec& spec) {
  rt.CheckString(static_cast<size_t>(spec.width));
  if (spec.precision > kMaxPrecision && spec.type != 's') {
    Fail(absl::StatusCode::kResourceExhausted, "a format's precision is too large");
  }
}

int64_t ReadNumber(std::string_view text, size_t* pos) {
  int64_t value = 0;
  while (*pos < text.size() && text[*pos] >= '0' && text[*pos] <= '9') {
    value = std::min<int64_t>(value * 10 + (text[*pos] - '0'), int64_t{1} << 40);
    ++*pos;
  }
  return value;
}

// The arguments of a % format: a tuple, one dict by name, or one value.
class PercentArgs {
 public:
  explicit PercentArgs(const Value& args) : args_(args), tuple_(args.list()) {
    if (tuple_ != nullptr && tuple_->kind != ListKind::kTuple) tuple_ = nullptr;
  }

  const Value& Next() {
    const size_t count = tuple_ != nullptr ? tuple_->items.size() : 1;
    if (next_ >= count) FailType("not enough arguments for format string");
    return tuple_ != nullptr ? tuple_->items[next_++] : (++next_, args_);
  }

  const Value& Named(std::string_view name) {
    if (args_.dict() == nullptr) FailType("format requires a mapping");
    const Value* found = args_.dict()->Find(name);
    if (found == nullptr) FailType(fmt::format("KeyError: '{}'", name));
    next_ = 1;
    return *found;
  }

  // Python lets what could be looked up by name (lists and undefined values too) go unused.
  void CheckAllUsed() const {
    const bool may_stay =
        args_.dict() != nullptr || args_.list() != nullptr || args_.is_undefined();
    if (tuple_ != nullptr ? next_ < tuple_->items.size() : next_ == 0 && !may_stay) {
      FailType("not all arguments converted during string formatting");
    }
  }

 private:
  const Value& args_;
  const List* tuple_;
  size_t next_ = 0;
};

void AppendPercent(Runtime& rt, const Spec& given, const Value& arg, StrBuilder* out) {
  Spec spec = given;
  CheckSpec(rt, spec);
  if (spec.type == 's' || spec.type == 'r' || spec.type == 'a') {
    if (spec.align != '<') spec.align = '>';
    spec.fill = " ";
    AppendText(rt, spec, spec.type == 's' ? ToStr(rt, arg) : Repr(rt, arg), out);
    return;
  }
  if (const Undefined* u = arg.As<Undefined>()) FailUndefined(*u);
  if (spec.type == 'c') {
    const int64_t* code = arg.As<int64_t>();
    std::string text;
    if (code != nullptr && *code >= 0 && *code <= 0x10ffff && (*code < 0xd800 || *code > 0xdfff)) {
      AppendUtf8(static_cast<uint32_t>(*code), &text);
      AppendText(rt, spec, Str(std::move(text), false), out);
    } else if (arg.str() != nullptr && CountCodePoints(arg.str()->view()) == 1) {
      AppendText(rt, spec, *arg.str(), out);
    } else {
      FailType("%c requires int or char");
    }
    return;
  }
  double number = 0;
  if (!AsDouble(arg, &number)) {
    FailType(
        fmt::format("%{} format: a real number is required, not {}", spec.type, arg.TypeName()));
  }
  if (IsFloatType(spec.type)) {
    AppendFloat(rt, spec, number, out);
    return;
  }
  int64_t scratch = 0;
  if (const int64_t* i = AsInt(arg, &scratch)) {
    AppendInt(rt, spec, *i, out);
  } else if (std::fabs(number) < 9e18) {
    AppendInt(rt, spec, static_cast<int64_t>(number), out);
  } else {
    FailType("%d format: the number is out of range");
  }
}

// Reads one conversion after '%'; `args` gives '*' widths.
Spec ReadPercentSpec(std::string_view text, size_t* pos, PercentArgs* args) {
  Spec spec;
  for (; *pos < text.size(); ++*pos) {
    const char c = text[*pos];
    if (c == '-')
      spec.align = '<';
    else if (c == '0')
      spec.fill = "0";
    else if (c == '+')
      spec.plus = true;
    else if (c == ' ')
      spec.space = true;
    else if (c == '#')
      spec.alternate = true;
    else
      break;
  }
  const auto number = [&] {
    if (*pos < text.size() && text[*pos] == '*') {
      ++*pos;
      return IntArg(&args->Next(), 0);
    }
    return ReadNumber(text, pos);
  };
  spec.width = number();
  if (spec.width < 0) {
    spec.align = '<';
    spec.width = -std::max<int64_t>(spec.width, -(int64_t{1} << 40));
  }
  if (*pos < text.size() && text[*pos] == '.') {
    ++*pos;
    spec.precision = std::max<int64_t>(number(), 0);
  }
  if (spec.fill == "0" && spec.align != '<') spec.align = '=';
  if (spec.align == '<') spec.fill = " ";
  while (*pos < text.size() && (text[*pos] == 'h' || text[*pos] == 'l' || text[*pos] == 'L')) {
    ++*pos;
  }
  if (*pos >= text.size()) FailType("incomplete format");
  spec.type = text[(*pos)++];
  return spec;
}

// format()'s mini-language: [[fill]align][sign][#][0][width][,][.precision][type].
Spec ReadFormatSpec(std::string_view text) {
  Spec spec;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  size_t pos = 0;
  const size_t first = text.empty() ? 0 : DecodeAt(text, 0).bytes;
  if (first > 0 && first < text.size() && is_align(text[first])) {
    spec.fill = std::string(text.substr(0, first));
    spec.align = text[first];
    pos = first + 1;
  } else if (first > 0 && is_align(text[0])) {
    spec.align = text[0];
    pos = 1;
  }
  const auto skip = [&](char c) {
    return pos < text.size() && text[pos] == c ? (++pos, true) : false;
  };
  spec.plus = skip('+');
  spec.space = !spec.plus && skip(' ');
  if (!spec.plus && !spec.space) skip('-');
  spec.alternate = skip('#');
  if (skip('0') && spec.align == '\0') {
    spec.fill = "0";
    spec.align = '=';
  }
  spec.width = ReadNumber(text, &pos);
  spec.grouped = skip(',');
  if (skip('.')) spec.precision = ReadNumber(text, &pos);
  if (pos < text.size()) spec.type = text[pos++];
  if (pos != text.size())
    FailType(fmt::format("Invalid format specifier '{}'", text.substr(0, 80)));
  return spec;
}

void AppendFormatted(Runtime& rt, Spec spec, const Value& arg, StrBuilder* out) {
  CheckSpec(rt, spec);
  int64_t scratch = 0;
  const bool plain_bool = arg.is_bool() && (spec.type == '\0' || spec.type == 's');
  const int64_t* i = plain_bool ? nullptr : AsInt(arg, &scratch);
  double number = 0;
  if (i != nullptr && std::string_view("\0bdoxX", 6).find(spec.type) != std::string_view::npos) {
    AppendInt(rt, spec, *i, out);
  } else if (!plain_bool && AsDouble(arg, &number) &&
             (IsFloatType(spec.type) || spec.type == '%')) {
    AppendFloat(rt, spec, number, out);
  } else if (arg.is_double() && spec.type == '\0') {
    if (spec.precision >= 0) {
      spec.type = 'g';
      AppendFloat(rt, spec, number, out);
    } else {
      AppendNumber(rt, spec, std::signbit(number), FormatDouble(std::fabs(number)), out);
    }
  } else if (spec.type == '\0' || spec.type == 's') {
    if (spec.align == '=') spec.align = '<';
    AppendText(rt, spec, ToStr(rt, arg), out);
  } else {
    FailType(
        fmt::format("Unknown format code '{}' for object of type '{}'", spec.type, arg.TypeName()));
  }
}

// The argument that a replacement field names: "", "0", "name", each with .attr or [item] parts.
Value FieldValue(Runtime& rt, std::string_view field, const CallArgs& args, size_t* automatic) {
  const size_t head_end = std::min(field.find_first_of(".["), field.size());
  const std::string_view head = field.substr(0, head_end);
  Value value;
  if (head.empty() || (head[0] >= '0' && head[0] <= '9')) {
    size_t pos = 0;
    const size_t index =
        head.empty() ? (*automatic)++ : static_cast<size_t>(ReadNumber(head, &pos));
    if (index >= args.positional.size()) {
      FailType("Replacement index out of range for positional args tuple");
    }
    value = args.positional[index];
  } else {
    const auto found = std::find_if(args.named.begin(), args.named.end(),
                                    [&](const auto& arg) { return arg.first == head; });
    if (found == args.named.end()) FailType(fmt::format("KeyError: '{}'", head));
    value = found->second;
  }
  for (size_t pos = head_end; pos < field.size();) {
    const bool item = field[pos] == '[';
    const size_t end =
        std::min(item ? field.find(']', pos) : field.find_first_of(".[", pos + 1), field.size());
    const std::string_view part = field.substr(pos + 1, end - pos - 1);
    size_t digits = 0;
    const int64_t index = ReadNumber(part, &digits);
    const bool is_index = item && digits == part.size() && !part.empty();
    value = GetItem(rt, value, is_index ? Value(index) : Value::Trusted(part));
    if (const Undefined* u = value.As<Undefined>()) FailUndefined(*u);
    pos = end + (item ? 1 : 0);
  }
  return value;
}

}  // namespace

Str PercentFormat(Runtime& rt, const Str& format, const Value& value) {
  PercentArgs args(value);
  StrBuilder out;
  const std::string_view text = format.view();
  for (size_t pos = 0; pos < text.size();) {
    const size_t percent = std::min(text.find('%', pos), text.size());
    out.Append(format, pos, percent);
    if (percent == text.size()) break;
    rt.Step();
    pos = percent + 1;
    if (pos < text.size() && text[pos] == '%') {
      out.Append(format, pos, pos + 1);
      ++pos;
      continue;
    }
    const Value* named = nullptr;
    if (pos < text.size() && text[pos] == '(') {
      const size_t close = text.find(')', pos);
      if (close == std::string_view::npos) FailType("incomplete format key");
      named = &args.Named(text.substr(pos + 1, close - pos - 1));
      pos = close + 1;
    }
    const Spec spec = ReadPercentSpec(text, &pos, &args);
    if (std::string_view("diuoxXeEfFgGcrsa").find(spec.type) == std::string_view::npos) {
      FailType(fmt::format("unsupported format character at index {}", pos - 1));
    }
    AppendPercent(rt, spec, named != nullptr ? *named : args.Next(), &out);
  }
  args.CheckAllUsed();
  rt.NewString(out.size());
  return out.Build(format.markup());
}

Str FormatMethod(Runtime& rt, const Str& format, const CallArgs& args) {
  StrBuilder out;
  size_t automatic = 0;
  const std::string_view text = format.view();
  for (size_t pos = 0; pos < text.size();) {
    const size_t brace = std::min(text.find_first_of("{}", pos), text.size());
    out.Append(format, pos, brace);
    if (brace == text.size()) break;
    rt.Step();
    if (brace + 1 < text.size() && text[brace + 1] == text[brace]) {
      out.Append(format, brace, brace + 1);
      pos = brace + 2;
      continue;
    }
    const size_t close = text.find('}', brace);
    if (text[brace] == '}') FailType("Single '}' encountered in format string");
    if (close == std::string_view::npos) FailType("Single '{' encountered in format string");
    std::string_view field = text.substr(brace + 1, close - brace - 1);
    const size_t colon = std::min(field.find(':'), field.size());
    const std::string_view spec_text = colon < field.size() ? field.substr(colon + 1) : "";
    field = field.substr(0, colon);
    char conversion = '\0';
    if (field.size() >= 2 && field[field.size() - 2] == '!') {
      conversion = field.back();
      field.remove_suffix(2);
    }
    Value value = FieldValue(rt, field, args, &automatic);
    if (conversion == 'r') value = Repr(rt, value);
    if (conversion == 's') value = ToStr(rt, value);
    Spec spec = ReadFormatSpec(spec_text);
    spec.trusted_fill = !format.any_untrusted();
    AppendFormatted(rt, std::move(spec), value, &out);
    pos = close + 1;
  }
  rt.NewString(out.size());
  return out.Build(format.markup());
}

}  // namespace terrace::jinja
