#include "text/jinja/strings.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include <fmt/format.h>

#include "text/jinja/format.h"
#include "text/jinja/ops.h"

namespace terrace::jinja {

Str Strip(Runtime& rt, const Str& text, const Str* chars, Side side) {
  const std::string_view view = text.view();
  rt.Step(view.size() / 256);
  size_t begin = 0, end = view.size();
  if (chars == nullptr) {
    if (side != Side::kRight) begin = LeadingSpace(view);
    if (side != Side::kLeft) end -= TrailingSpace(view.substr(begin));
  } else {
    const auto strips = [&](size_t pos) {
      rt.Step(1 + chars->size() / 32);
      const std::string_view c = view.substr(pos, DecodeAt(view, pos).bytes);
      return chars->view().find(c) != std::string_view::npos;
    };
    if (side != Side::kRight) {
      while (begin < end && strips(begin)) begin += DecodeAt(view, begin).bytes;
    }
    if (side != Side::kLeft) {
      while (end > begin && strips(PreviousAt(view, end))) end = PreviousAt(view, end);
    }
  }
  if (begin == 0 && end == view.size()) return text;
  rt.NewString(end - begin);
  return text.Sub(begin, end - begin).WithMarkup(text.markup());
}

Str Upper(Runtime& rt, const Str& text) { return MapText(rt, text, AppendUpper); }
Str Lower(Runtime& rt, const Str& text) { return MapText(rt, text, AppendLower); }

Str Capitalize(Runtime& rt, const Str& text) {
  bool first = true;
  return MapText(rt, text, [&](uint32_t c, std::string* out) {
    first ? AppendUpper(c, out) : AppendLower(c, out);
    first = false;
  });
}

Str Replace(Runtime& rt, const Str& text, const Str& from, const Str& to, int64_t count) {
  const std::string_view view = text.view();
  rt.Step(view.size() / 32);
  StrBuilder builder;
  size_t pos = 0;
  size_t done = 0;
  const size_t limit = count < 0 ? SIZE_MAX : static_cast<size_t>(count);
  const auto put = [&] {
    rt.Step();
    rt.CheckString(builder.size() + to.size());
    builder.Append(to);
    ++done;
  };
  if (from.empty()) {  // Before each code point, and at the end.
    while (done < limit && pos < view.size()) {
      put();
      const size_t next = pos + DecodeAt(view, pos).bytes;
      builder.Append(text, pos, next);
      pos = next;
    }
    if (done < limit) put();
  } else {
    while (done < limit) {
      const size_t at = view.find(from.view(), pos);
      if (at == std::string_view::npos) break;
      builder.Append(text, pos, at);
      put();
      pos = at + from.size();
    }
    if (done == 0) return text;
  }
  builder.Append(text, pos, view.size());
  rt.NewString(builder.size());
  return builder.Build(text.markup());
}

std::vector<Value> SplitLines(Runtime& rt, const Str& text, bool keep_ends) {
  const std::string_view view = text.view();
  rt.Step(view.size() / 32);
  std::vector<Value> lines;
  size_t begin = 0;
  const auto add = [&](size_t end) {
    rt.Step();
    rt.NewString(end - begin + sizeof(Value));
    lines.push_back(text.Sub(begin, end - begin).WithMarkup(text.markup()));
  };
  for (size_t pos = 0; pos < view.size();) {
    const size_t length = LineBreakAt(view, pos);
    if (length == 0) {
      pos += DecodeAt(view, pos).bytes;
      continue;
    }
    add(keep_ends ? pos + length : pos);
    pos += length;
    begin = pos;
  }
  if (begin < view.size()) add(view.size());
  return lines;
}

Str Justify(Runtime& rt, const Str& text, int64_t width, const Str& fill, Place place) {
  if (CountCodePoints(fill.view()) != 1) {
    FailType("The fill character must be exactly one character long");
  }
  const int64_t size = static_cast<int64_t>(CountCodePoints(text.view()));
  const int64_t pad = std::max(width, size) - size;
  int64_t left = place == Place::kRight ? pad : 0;
  // CPython puts the odd one on the left if both the padding and the width are odd.
  if (place == Place::kCenter) left = pad / 2 + (pad & (pad + size) & 1);
  const auto padding = [&](int64_t count) {
    return Repeat(rt, fill, count).WithMarkup(text.markup());
  };
  return ConcatStr(rt, ConcatStr(rt, padding(left), text), padding(pad - left));
}

bool ParseInt(std::string_view text, int base, int64_t* out) {
  text.remove_prefix(LeadingSpace(text));
  text.remove_suffix(TrailingSpace(text));
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  if (text.size() > 2 && text[0] == '0') {
    const char marker = static_cast<char>(text[1] | 0x20);
    const int marked = marker == 'x' ? 16 : marker == 'o' ? 8 : marker == 'b' ? 2 : 0;
    if (marked != 0 && (base == marked || base == 0)) {
      base = marked;
      text.remove_prefix(2);
    }
  }
  if (base == 0) base = 10;
  if (base < 2 || base > 36) return false;
  std::string digits(negative ? "-" : "");
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      digits.push_back(text[i]);
    } else if (i == 0 || i + 1 == text.size() || text[i + 1] == '_') {
      return false;
    }
  }
  if (text.starts_with('-')) return false;
  const char* end = digits.data() + digits.size();
  const auto result = std::from_chars(digits.data(), end, *out, base);
  if (result.ec == std::errc::result_out_of_range) {
    FailType("an integer is out of range (64 bits)");
  }
  return result.ec == std::errc() && result.ptr == end;
}

bool ParseFloat(std::string_view text, double* out) {
  text.remove_prefix(LeadingSpace(text));
  text.remove_suffix(TrailingSpace(text));
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  if (text.empty() || text[0] == '-' || text.find('(') != std::string_view::npos) return false;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), *out);
  if (result.ptr != text.data() + text.size()) return false;
  if (result.ec == std::errc::result_out_of_range) {
    // Python gives infinity for what is too large and zero for what is too small.
    const size_t e = text.find_first_of("eE");
    const bool small = e != std::string_view::npos && e + 1 < text.size() && text[e + 1] == '-';
    *out = small ? 0.0 : std::numeric_limits<double>::infinity();
  } else if (result.ec != std::errc()) {
    return false;
  }
  if (negative) *out = -*out;
  return true;
}

bool IsLowerText(std::string_view text) {
  bool any = false;
  for (size_t pos = 0; pos < text.size();) {
    const CodePoint c = DecodeAt(text, pos);
    if (IsUpper(c.value)) return false;
    any |= IsLower(c.value);
    pos += c.bytes;
  }
  return any;
}

bool IsUpperText(std::string_view text) {
  bool any = false;
  for (size_t pos = 0; pos < text.size();) {
    const CodePoint c = DecodeAt(text, pos);
    if (IsLower(c.value)) return false;
    any |= IsUpper(c.value);
    pos += c.bytes;
  }
  return any;
}

Str Join(Runtime& rt, const Str& separator, const std::vector<Value>& parts, bool strict) {
  StrBuilder builder;
  for (size_t i = 0; i < parts.size(); ++i) {
    rt.Step();
    if (strict && parts[i].str() == nullptr) {
      FailType(
          fmt::format("sequence item {}: expected str instance, {} found", i, parts[i].TypeName()));
    }
    const Str part = ToStr(rt, parts[i]);
    rt.CheckString(builder.size() + separator.size() + part.size());
    if (i > 0) builder.Append(separator);
    builder.Append(part);
  }
  rt.NewString(builder.size());
  return builder.Build();
}

}  // namespace terrace::jinja
