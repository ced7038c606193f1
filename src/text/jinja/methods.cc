// The Python methods of strings, lists and dicts.
#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "text/jinja/builtins.h"
#include "text/jinja/format.h"
#include "text/jinja/ops.h"
#include "text/jinja/strings.h"
#include "text/jinja/utf8.h"

namespace terrace::jinja {
namespace {

Str TitleCase(Runtime& rt, const Str& text) {
  bool in_word = false;
  return MapText(rt, text, [&](uint32_t c, std::string* out) {
    in_word ? AppendLower(c, out) : AppendUpper(c, out);
    in_word = IsAlpha(c);
  });
}

Str SwapCase(Runtime& rt, const Str& text) {
  return MapText(rt, text, [](uint32_t c, std::string* out) {
    IsUpper(c) ? AppendLower(c, out) : AppendUpper(c, out);
  });
}

using Ranges = std::vector<std::pair<size_t, size_t>>;

// The parts of `text` in [begin, end) ranges.
Value MakeParts(Runtime& rt, const Str& text, const Ranges& ranges) {
  std::vector<Value> parts;
  parts.reserve(ranges.size());
  rt.NewItems(ranges.size() * 2);
  rt.Step(ranges.size());
  for (const auto& [begin, end] : ranges) {
    rt.NewString(end - begin);
    parts.push_back(text.Sub(begin, end - begin));
  }
  return MakeList(std::move(parts));
}

Value SplitAt(Runtime& rt, const Str& text, const Str& separator, int64_t most, bool from_right) {
  if (separator.empty()) FailType("empty separator");
  rt.Step(text.size() / 32);
  const std::string_view view = text.view();
  Ranges parts;
  const size_t limit = most < 0 ? SIZE_MAX : static_cast<size_t>(most);
  if (!from_right) {
    size_t begin = 0;
    while (parts.size() < limit) {
      const size_t at = view.find(separator.view(), begin);
      if (at == std::string_view::npos) break;
      parts.emplace_back(begin, at);
      begin = at + separator.size();
    }
    parts.emplace_back(begin, view.size());
  } else {
    size_t end = view.size();
    while (parts.size() < limit && end >= separator.size()) {
      const size_t at = view.rfind(separator.view(), end - separator.size());
      if (at == std::string_view::npos) break;
      parts.emplace_back(at + separator.size(), end);
      end = at;
    }
    parts.emplace_back(0, end);
    std::reverse(parts.begin(), parts.end());
  }
  return MakeParts(rt, text, parts);
}

// Splits at runs of whitespace.
Value SplitSpace(Runtime& rt, const Str& text, int64_t most, bool from_right) {
  rt.Step(text.size() / 32);
  const std::string_view view = text.view();
  Ranges parts;
  const size_t limit = most < 0 ? SIZE_MAX : static_cast<size_t>(most);
  const auto is_space = [&](size_t pos) {
    const CodePoint c = DecodeAt(view, pos);
    return c.valid && IsSpace(c.value);
  };
  if (!from_right) {
    size_t pos = LeadingSpace(view);
    while (pos < view.size()) {
      size_t end = pos;
      if (parts.size() == limit) {
        end = view.size();  // The rest as it is, with the space that ends it.
      } else {
        while (end < view.size() && !is_space(end)) end += DecodeAt(view, end).bytes;
      }
      parts.emplace_back(pos, end);
      pos = end + LeadingSpace(view.substr(end));
    }
  } else {
    size_t end = view.size() - TrailingSpace(view);
    while (end > 0) {
      size_t begin = end;
      if (parts.size() == limit) {
        begin = 0;
      } else {
        while (begin > 0 && !is_space(PreviousAt(view, begin))) begin = PreviousAt(view, begin);
      }
      parts.emplace_back(begin, end);
      end = parts.size() > limit ? 0 : begin - TrailingSpace(view.substr(0, begin));
    }
    std::reverse(parts.begin(), parts.end());
  }
  return MakeParts(rt, text, parts);
}

Value Split(Runtime& rt, const Str& text, const CallArgs& args, bool from_right) {
  const auto bound = Bind("split", args, {"sep", "maxsplit"});
  const int64_t most = IntArg(bound[1], -1);
  if (bound[0] == nullptr || bound[0]->is_none()) return SplitSpace(rt, text, most, from_right);
  return SplitAt(rt, text, StrArg(bound[0], "split"), most, from_right);
}

Value Partition(Runtime& rt, const Str& text, const CallArgs& args, bool from_right) {
  const Str separator = StrArg(Bind("partition", args, {"sep"})[0], "partition");
  if (separator.empty()) FailType("empty separator");
  rt.Step(text.size() / 32);
  rt.NewString(text.size() + 3 * sizeof(Value));
  const size_t at =
      from_right ? text.view().rfind(separator.view()) : text.view().find(separator.view());
  if (at == std::string_view::npos) {
    if (from_right) return MakeList({Str(), Str(), text}, ListKind::kTuple);
    return MakeList({text, Str(), Str()}, ListKind::kTuple);
  }
  return MakeList({text.Sub(0, at), separator, text.Sub(at + separator.size())}, ListKind::kTuple);
}

// The part of `text` that optional start and end (code points) select; null if start is past it.
struct Window {
  std::string_view text;
  size_t begin = 0;  // In bytes.
  bool valid = true;
};

Window SelectWindow(const Str& text, const Value* start, const Value* end) {
  const bool plain = (start == nullptr || start->is_none()) && (end == nullptr || end->is_none());
  if (plain) return {text.view(), 0, true};
  const int64_t size = static_cast<int64_t>(CountCodePoints(text.view()));
  const auto resolve = [&](const Value* v, int64_t fallback) {
    int64_t i = v == nullptr || v->is_none() ? fallback : IntArg(v, 0);
    if (i < 0) i = std::max<int64_t>(i < -size ? 0 : i + size, 0);
    return i;
  };
  const int64_t from = resolve(start, 0);
  const int64_t to = std::min(resolve(end, size), size);
  if (from > size || to < from) return {{}, 0, false};
  const size_t begin = ByteOffset(text.view(), static_cast<size_t>(from));
  const size_t length = ByteOffset(text.view().substr(begin), static_cast<size_t>(to - from));
  return {text.view().substr(begin, length), begin, true};
}

Value FindText(Runtime& rt, const Str& text, const CallArgs& args, bool from_right, bool strict) {
  const auto bound = Bind("find", args, {"sub", "start", "end"});
  const Str& part = StrArg(bound[0], "find");
  rt.Step(text.size() / 32);
  const Window window = SelectWindow(text, bound[1], bound[2]);
  size_t at = std::string_view::npos;
  if (window.valid) {
    at = from_right ? window.text.rfind(part.view()) : window.text.find(part.view());
  }
  if (at == std::string_view::npos) {
    if (strict) FailType("substring not found");
    return int64_t{-1};
  }
  return Value::Int(CountCodePoints(text.view().substr(0, window.begin + at)));
}

Value CountText(Runtime& rt, const Str& text, const CallArgs& args) {
  const auto bound = Bind("count", args, {"sub", "start", "end"});
  const Str& part = StrArg(bound[0], "count");
  rt.Step(text.size() / 32);
  const Window window = SelectWindow(text, bound[1], bound[2]);
  if (!window.valid) return int64_t{0};
  if (part.empty()) return Value::Int(CountCodePoints(window.text) + 1);
  size_t count = 0;
  for (size_t at = window.text.find(part.view()); at != std::string_view::npos;
       at = window.text.find(part.view(), at + part.size())) {
    ++count;
  }
  return Value::Int(count);
}

Value HasAffix(const Str& text, const CallArgs& args, bool prefix) {
  const std::string_view name = prefix ? "startswith" : "endswith";
  const auto bound = Bind(name, args, {"prefix", "start", "end"});
  if (bound[0] == nullptr) FailType(fmt::format("{}: an argument is missing", name));
  const Window window = SelectWindow(text, bound[1], bound[2]);
  const auto matches = [&](const Value& v) {
    const std::string_view affix = StrArg(&v, name).view();
    if (!window.valid) return false;
    return prefix ? window.text.starts_with(affix) : window.text.ends_with(affix);
  };
  const List* list = bound[0]->list();
  if (list == nullptr || list->kind != ListKind::kTuple) return matches(*bound[0]);
  return std::any_of(list->items.begin(), list->items.end(), matches);
}

Value RemoveAffix(const Str& text, const CallArgs& args, bool prefix) {
  const std::string_view name = prefix ? "removeprefix" : "removesuffix";
  const std::string_view affix = StrArg(Bind(name, args, {"affix"})[0], name).view();
  if (prefix && text.view().starts_with(affix)) return text.Sub(affix.size());
  if (!prefix && text.view().ends_with(affix)) return text.Sub(0, text.size() - affix.size());
  return text;
}

Value JustifyMethod(Runtime& rt, const Str& text, const CallArgs& args, Place place) {
  const auto bound = Bind("center", args, {"width", "fillchar"});
  if (bound[0] == nullptr) FailType("center: a width is missing");
  const Str fill = bound[1] != nullptr ? StrArg(bound[1], "center") : Str(" ", true);
  return Justify(rt, text, IntArg(bound[0], 0), fill, place);
}

Value ZeroFill(Runtime& rt, const Str& text, const CallArgs& args) {
  const auto bound = Bind("zfill", args, {"width"});
  if (bound[0] == nullptr) FailType("zfill: a width is missing");
  const int64_t width = IntArg(bound[0], 0);
  const int64_t pad = width - static_cast<int64_t>(CountCodePoints(text.view()));
  if (pad <= 0) return text;
  const bool sign = !text.empty() && (text.view()[0] == '-' || text.view()[0] == '+');
  const Str zeros = Repeat(rt, Str("0", true), pad);
  return ConcatStr(rt, ConcatStr(rt, text.Sub(0, sign ? 1 : 0), zeros), text.Sub(sign ? 1 : 0));
}

Value ExpandTabs(Runtime& rt, const Str& text, const CallArgs& args) {
  const int64_t size = std::max<int64_t>(IntArg(Bind("expandtabs", args, {"tabsize"})[0], 8), 0);
  int64_t column = 0;
  size_t total = 0;
  return MapText(rt, text, [&](uint32_t c, std::string* out) {
    if (c != '\t') {
      AppendUtf8(c, out);
      column = c == '\n' || c == '\r' ? 0 : column + 1;
      return;
    }
    const int64_t pad = size == 0 ? 0 : size - column % size;
    total += static_cast<size_t>(pad);
    rt.CheckString(total);
    out->append(static_cast<size_t>(pad), ' ');
    column += pad;
  });
}

// True if there is text and `f` holds for all of its code points.
template <typename F>
bool AllOf(std::string_view text, F&& f) {
  for (size_t pos = 0; pos < text.size();) {
    const CodePoint c = DecodeAt(text, pos);
    if (!c.valid || !f(c.value)) return false;
    pos += c.bytes;
  }
  return !text.empty();
}

bool IsTitle(std::string_view text) {
  bool in_word = false, any = false;
  for (size_t pos = 0; pos < text.size();) {
    const CodePoint c = DecodeAt(text, pos);
    pos += c.bytes;
    if (IsUpper(c.value) ? in_word : IsLower(c.value) && !in_word) return false;
    in_word = IsUpper(c.value) || IsLower(c.value);
    any |= in_word;
  }
  return any;
}

using StrMethod = Value (*)(Runtime&, const Str&, const CallArgs&);
struct NamedMethod {
  std::string_view name;
  StrMethod method;
};

Value StripMethod(Runtime& rt, const Str& s, const CallArgs& args, Side side) {
  const auto bound = Bind("strip", args, {"chars"});
  const bool plain = bound[0] == nullptr || bound[0]->is_none();
  return Strip(rt, s, plain ? nullptr : &StrArg(bound[0], "strip"), side);
}

Value ReplaceMethod(Runtime& rt, const Str& s, const CallArgs& args) {
  const auto bound = Bind("replace", args, {"old", "new", "count"});
  return Replace(rt, s, StrArg(bound[0], "replace"), StrArg(bound[1], "replace"),
                 IntArg(bound[2], -1));
}

Value JoinMethod(Runtime& rt, const Str& s, const CallArgs& args) {
  const auto bound = Bind("join", args, {"iterable"});
  if (bound[0] == nullptr) FailType("join: an argument is missing");
  return Join(rt, s, IterItems(rt, *bound[0])->items, /*strict=*/true);
}

// Sorted by name.
constexpr NamedMethod kStrMethods[] = {
    {"capitalize",
     [](Runtime& rt, const Str& s, const CallArgs&) -> Value { return Capitalize(rt, s); }},
    {"casefold", [](Runtime& rt, const Str& s, const CallArgs&) -> Value { return Lower(rt, s); }},
    {"center", [](Runtime& rt, const Str& s,
                  const CallArgs& a) { return JustifyMethod(rt, s, a, Place::kCenter); }},
    {"count", CountText},
    {"endswith", [](Runtime&, const Str& s, const CallArgs& a) { return HasAffix(s, a, false); }},
    {"expandtabs", ExpandTabs},
    {"find",
     [](Runtime& rt, const Str& s, const CallArgs& a) { return FindText(rt, s, a, false, false); }},
    {"format",
     [](Runtime& rt, const Str& s, const CallArgs& a) -> Value { return FormatMethod(rt, s, a); }},
    {"index",
     [](Runtime& rt, const Str& s, const CallArgs& a) { return FindText(rt, s, a, false, true); }},
    {"isalnum",
     [](Runtime&, const Str& s, const CallArgs&) -> Value {
       return AllOf(s.view(), [](uint32_t c) { return IsAlpha(c) || IsDecimal(c); });
     }},
    {"isalpha",
     [](Runtime&, const Str& s, const CallArgs&) -> Value { return AllOf(s.view(), IsAlpha); }},
    {"isascii",
     [](Runtime&, const Str& s, const CallArgs&) -> Value {
       return s.empty() || AllOf(s.view(), [](uint32_t c) { return c < 0x80; });
     }},
    {"isdecimal",
     [](Runtime&, const Str& s, const CallArgs&) -> Value { return AllOf(s.view(), IsDecimal); }},
    {"isdigit",
     [](Runtime&, const Str& s, const CallArgs&) -> Value { return AllOf(s.view(), IsDecimal); }},
    {"islower",
     [](Runtime&, const Str& s, const CallArgs&) -> Value { return IsLowerText(s.view()); }},
    {"isnumeric",
     [](Runtime&, const Str& s, const CallArgs&) -> Value { return AllOf(s.view(), IsDecimal); }},
    {"isspace",
     [](Runtime&, const Str& s, const CallArgs&) -> Value { return AllOf(s.view(), IsSpace); }},
    {"istitle", [](Runtime&, const Str& s, const CallArgs&) -> Value { return IsTitle(s.view()); }},
    {"isupper",
     [](Runtime&, const Str& s, const CallArgs&) -> Value { return IsUpperText(s.view()); }},
    {"join", JoinMethod},
    {"ljust", [](Runtime& rt, const Str& s,
                 const CallArgs& a) { return JustifyMethod(rt, s, a, Place::kLeft); }},
    {"lower", [](Runtime& rt, const Str& s, const CallArgs&) -> Value { return Lower(rt, s); }},
    {"lstrip", [](Runtime& rt, const Str& s,
                  const CallArgs& a) { return StripMethod(rt, s, a, Side::kLeft); }},
    {"partition",
     [](Runtime& rt, const Str& s, const CallArgs& a) { return Partition(rt, s, a, false); }},
    {"removeprefix",
     [](Runtime&, const Str& s, const CallArgs& a) { return RemoveAffix(s, a, true); }},
    {"removesuffix",
     [](Runtime&, const Str& s, const CallArgs& a) { return RemoveAffix(s, a, false); }},
    {"replace", ReplaceMethod},
    {"rfind",
     [](Runtime& rt, const Str& s, const CallArgs& a) { return FindText(rt, s, a, true, false); }},
    {"rindex",
     [](Runtime& rt, const Str& s, const CallArgs& a) { return FindText(rt, s, a, true, true); }},
    {"rjust", [](Runtime& rt, const Str& s,
                 const CallArgs& a) { return JustifyMethod(rt, s, a, Place::kRight); }},
    {"rpartition",
     [](Runtime& rt, const Str& s, const CallArgs& a) { return Partition(rt, s, a, true); }},
    {"rsplit", [](Runtime& rt, const Str& s, const CallArgs& a) { return Split(rt, s, a, true); }},
    {"rstrip", [](Runtime& rt, const Str& s,
                  const CallArgs& a) { return StripMethod(rt, s, a, Side::kRight); }},
    {"split", [](Runtime& rt, const Str& s, const CallArgs& a) { return Split(rt, s, a, false); }},
    {"splitlines",
     [](Runtime& rt, const Str& s, const CallArgs& a) -> Value {
       return MakeList(SplitLines(rt, s, BoolArg(Bind("splitlines", a, {"keepends"})[0], false)));
     }},
    {"startswith", [](Runtime&, const Str& s, const CallArgs& a) { return HasAffix(s, a, true); }},
    {"strip", [](Runtime& rt, const Str& s,
                 const CallArgs& a) { return StripMethod(rt, s, a, Side::kBoth); }},
    {"swapcase",
     [](Runtime& rt, const Str& s, const CallArgs&) -> Value { return SwapCase(rt, s); }},
    {"title", [](Runtime& rt, const Str& s, const CallArgs&) -> Value { return TitleCase(rt, s); }},
    {"upper", [](Runtime& rt, const Str& s, const CallArgs&) -> Value { return Upper(rt, s); }},
    {"zfill", ZeroFill},
};

StrMethod FindStrMethod(std::string_view name) {
  const auto* end = std::end(kStrMethods);
  const auto* found =
      std::lower_bound(std::begin(kStrMethods), end, name,
                       [](const NamedMethod& row, std::string_view v) { return row.name < v; });
  return found != end && found->name == name ? found->method : nullptr;
}

bool IsOneOf(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Value CallDictMethod(Runtime& rt, const Value& object, std::string_view name,
                     const CallArgs& args) {
  const Dict& dict = *object.dict();
  if (name == "get") {
    const auto bound = Bind("get", args, {"key", "default"});
    if (bound[0] == nullptr) FailType("get: an argument is missing");
    const Value* found = dict.Find(*bound[0]);
    return found != nullptr ? *found : bound[1] != nullptr ? *bound[1] : Value();
  }
  Bind(name, args, {});
  if (name == "copy") return object;
  rt.NewItems(dict.size());
  std::vector<Value> items;
  items.reserve(dict.size());
  for (const auto& [key, value] : dict.entries()) {
    if (name == "keys") {
      items.push_back(key);
    } else if (name == "values") {
      items.push_back(value);
    } else {
      rt.NewItems(2);
      items.push_back(MakeList({key, value}, ListKind::kTuple));
    }
  }
  return MakeList(std::move(items), ListKind::kView);
}

Value CallListMethod(Runtime& rt, const Value& object, std::string_view name,
                     const CallArgs& args) {
  if (name == "copy") return object;
  const auto bound = Bind(name, args, {"value"});
  if (bound[0] == nullptr) FailType(fmt::format("{}: an argument is missing", name));
  const std::vector<Value>& items = object.list()->items;
  int64_t count = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!Equal(rt, items[i], *bound[0])) continue;
    if (name == "index") return Value::Int(i);
    ++count;
  }
  if (name == "index") FailType("the value is not in the list");
  return count;
}

}  // namespace

bool HasMethod(const Value& object, std::string_view name) {
  if (object.is_string()) return FindStrMethod(name) != nullptr;
  if (object.dict() != nullptr) return IsOneOf(name, {"get", "items", "keys", "values", "copy"});
  const List* list = object.list();
  if (list == nullptr) return false;
  if (list->kind == ListKind::kList && name == "copy") return true;
  const bool sequence = list->kind != ListKind::kGenerator && list->kind != ListKind::kView;
  return sequence && IsOneOf(name, {"count", "index"});
}

Value CallMethod(Runtime& rt, const Value& object, std::string_view name, const CallArgs& args) {
  rt.Step();
  if (const Str* text = object.str()) {
    const bool has_args = !args.positional.empty() || !args.named.empty();
    if (has_args && (name.starts_with("is") || IsOneOf(name, {"capitalize", "casefold", "lower",
                                                              "swapcase", "title", "upper"}))) {
      Bind(name, args, {});
    }
    return FindStrMethod(name)(rt, *text, args);
  }
  if (object.dict() != nullptr) return CallDictMethod(rt, object, name, args);
  return CallListMethod(rt, object, name, args);
}

}  // namespace terrace::jinja
