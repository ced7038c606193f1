#include "text/jinja/ops.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "text/jinja/builtins.h"
#include "text/jinja/format.h"
#include "text/jinja/objects.h"
#include "text/jinja/utf8.h"

namespace terrace::jinja {
namespace {

void FailIfUndefined(const Value& v) {
  if (const Undefined* u = v.As<Undefined>()) FailUndefined(*u);
}

bool IsIndexable(const List& list) {
  return list.kind != ListKind::kGenerator && list.kind != ListKind::kView;
}

bool SameSequenceKind(const List& a, const List& b) { return a.kind == b.kind; }

bool EqualLists(Runtime& rt, const List& a, const List& b) {
  if (!SameSequenceKind(a, b) || a.items.size() != b.items.size()) return false;
  for (size_t i = 0; i < a.items.size(); ++i) {
    if (!Equal(rt, a.items[i], b.items[i])) return false;
  }
  return true;
}

bool EqualDicts(Runtime& rt, const Dict& a, const Dict& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [key, value] : a.entries()) {
    const Value* other = b.Find(key);
    if (other == nullptr || !Equal(rt, value, *other)) return false;
  }
  return true;
}

bool IsPlainSequence(const Value& v) {
  const List* list = v.list();
  return list != nullptr && (list->kind == ListKind::kList || list->kind == ListKind::kTuple);
}

// Jinja2's name of the kind of an object in the message of an undefined attribute.
std::string_view OwnerName(const Value& v) {
  if (v.is_none()) return "None";
  if (v.is_bool()) return "bool object";
  if (v.is_int()) return "int object";
  if (v.is_double()) return "float object";
  if (v.is_string()) return "str object";
  if (v.dict() != nullptr) return "dict object";
  if (const List* list = v.list()) {
    return list->kind == ListKind::kList    ? "list object"
           : list->kind == ListKind::kTuple ? "tuple object"
                                            : "iterator object";
  }
  return v.object()->TypeName();
}

bool IsMutator(const Value& object, std::string_view name) {
  constexpr std::string_view kList[] = {"append", "clear", "pop",    "reverse",
                                        "insert", "sort",  "extend", "remove"};
  constexpr std::string_view kDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  if (object.dict() != nullptr)
    return std::find(std::begin(kDict), std::end(kDict), name) != std::end(kDict);
  const List* list = object.list();
  return list != nullptr && list->kind == ListKind::kList &&
         std::find(std::begin(kList), std::end(kList), name) != std::end(kList);
}

// The attribute proper (method, object attribute) or false.
bool FindAttribute(Runtime& rt, const Value& object, std::string_view name, Value* out) {
  if (Object* o = object.object()) {
    Value scratch;
    if (const Value* found = o->FindAttr(rt, name, &scratch)) {
      *out = *found;
      return true;
    }
    return false;
  }
  if (HasMethod(object, name)) {
    *out = ObjectPtr(std::make_shared<BoundMethod>(object, std::string(name)));
    return true;
  }
  if (IsMutator(object, name)) {
    *out = Value::Message(
        fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, object.TypeName()));
    return true;
  }
  return false;
}

Value Missing(const Value& object, const Undefined& missing) {
  if (const Undefined* u = object.As<Undefined>()) FailUndefined(*u);
  return Undefined{missing.name, OwnerName(object)};
}

// The item at `index` (from the end if negative) or false.
bool FindIndex(Runtime& rt, const Value& object, int64_t index, Value* out) {
  if (const List* list = object.list()) {
    if (!IsIndexable(*list)) return false;
    const int64_t size = static_cast<int64_t>(list->items.size());
    if (index < 0) index += size;
    if (index < 0 || index >= size) return false;
    *out = list->items[static_cast<size_t>(index)];
    return true;
  }
  const Str* text = object.str();
  if (text == nullptr) return false;
  rt.Step(text->size() / 64);
  if (index < 0) index += static_cast<int64_t>(CountCodePoints(text->view()));
  if (index < 0) return false;
  const size_t begin = ByteOffset(text->view(), static_cast<size_t>(index));
  if (begin >= text->size()) return false;
  *out = text->Sub(begin, DecodeAt(text->view(), begin).bytes);
  return true;
}

struct SliceRange {
  int64_t start;
  int64_t stop;
  int64_t step;
};

// Python's slice.indices for a sequence of `size`.
SliceRange ResolveSlice(int64_t size, const Value* lower, const Value* upper, const Value* step) {
  const auto given = [](const Value* v) { return v != nullptr && !v->is_none(); };
  SliceRange range{};
  range.step = given(step) ? IntArg(step, 1) : 1;
  if (range.step == 0) FailType("slice step cannot be zero");
  // Steps longer than the sequence all mean "one item"; clamping keeps the sums in range.
  range.step = std::clamp(range.step, -size - 1, size + 1);
  const bool backward = range.step < 0;
  const int64_t lowest = backward ? -1 : 0;
  const int64_t highest = backward ? size - 1 : size;
  const auto resolve = [&](const Value* v, int64_t fallback) {
    if (!given(v)) return fallback;
    int64_t i = IntArg(v, 0);
    if (i < 0) return std::max(i < -size ? lowest : i + size, lowest);
    return std::min(i, highest);
  };
  range.start = resolve(lower, backward ? highest : lowest);
  range.stop = resolve(upper, backward ? lowest : highest);
  return range;
}

Value SliceText(Runtime& rt, const Str& text, const Value* lower, const Value* upper,
                const Value* step) {
  rt.Step(text.size() / 32);
  const std::string_view view = text.view();
  const SliceRange range =
      ResolveSlice(static_cast<int64_t>(CountCodePoints(view)), lower, upper, step);
  rt.NewString(text.size());
  if (range.step == 1) {
    if (range.stop <= range.start) return Str();
    const size_t begin = ByteOffset(view, static_cast<size_t>(range.start));
    const size_t length =
        ByteOffset(view.substr(begin), static_cast<size_t>(range.stop - range.start));
    return text.Sub(begin, length);
  }
  std::vector<size_t> offsets;
  rt.NewItems(view.size() / 4);
  for (size_t pos = 0; pos < view.size(); pos += DecodeAt(view, pos).bytes) offsets.push_back(pos);
  offsets.push_back(view.size());
  StrBuilder builder;
  for (int64_t i = range.start; range.step > 0 ? i < range.stop : i > range.stop; i += range.step) {
    builder.Append(text, offsets[static_cast<size_t>(i)], offsets[static_cast<size_t>(i) + 1]);
  }
  return builder.Build(text.markup());
}

}  // namespace

const int64_t* AsInt(const Value& v, int64_t* scratch) {
  if (const bool* flag = v.As<bool>()) {
    *scratch = *flag ? 1 : 0;
    return scratch;
  }
  return v.As<int64_t>();
}

bool AsDouble(const Value& v, double* out) {
  int64_t scratch = 0;
  if (const int64_t* i = AsInt(v, &scratch)) {
    *out = static_cast<double>(*i);
    return true;
  }
  if (const double* d = v.As<double>()) {
    *out = *d;
    return true;
  }
  return false;
}

bool Equal(Runtime& rt, const Value& a, const Value& b) {
  rt.Step();
  if (const Str* s = a.str()) {
    if (b.str() == nullptr || s->size() != b.str()->size()) return false;
    rt.Step(s->size() / 256);
    return s->view() == b.str()->view();
  }
  int64_t scratch_a = 0, scratch_b = 0;
  const int64_t* int_a = AsInt(a, &scratch_a);
  const int64_t* int_b = AsInt(b, &scratch_b);
  if (int_a != nullptr && int_b != nullptr) return *int_a == *int_b;
  double x = 0, y = 0;
  if (AsDouble(a, &x)) return AsDouble(b, &y) && x == y;
  if (a.is_none()) return b.is_none();
  if (a.is_undefined()) return b.is_undefined();
  if (const List* list = a.list()) return b.list() != nullptr && EqualLists(rt, *list, *b.list());
  if (const Dict* dict = a.dict()) return b.dict() != nullptr && EqualDicts(rt, *dict, *b.dict());
  return a.object() == b.object();
}

bool Less(Runtime& rt, const Value& a, const Value& b) {
  rt.Step();
  int64_t scratch_a = 0, scratch_b = 0;
  const int64_t* int_a = AsInt(a, &scratch_a);
  const int64_t* int_b = AsInt(b, &scratch_b);
  if (int_a != nullptr && int_b != nullptr) return *int_a < *int_b;
  double x = 0, y = 0;
  if (AsDouble(a, &x) && AsDouble(b, &y)) return x < y;
  if (a.str() != nullptr && b.str() != nullptr) {
    rt.Step(std::min(a.str()->size(), b.str()->size()) / 256);
    return a.str()->view() < b.str()->view();
  }
  if (IsPlainSequence(a) && IsPlainSequence(b) && a.list()->kind == b.list()->kind) {
    const std::vector<Value>& left = a.list()->items;
    const std::vector<Value>& right = b.list()->items;
    for (size_t i = 0; i < left.size() && i < right.size(); ++i) {
      if (!Equal(rt, left[i], right[i])) return Less(rt, left[i], right[i]);
    }
    return left.size() < right.size();
  }
  FailIfUndefined(a);
  FailIfUndefined(b);
  FailType(fmt::format("'<' not supported between instances of '{}' and '{}'", a.TypeName(),
                       b.TypeName()));
}

bool Compare(Runtime& rt, Op op, const Value& a, const Value& b) {
  double x = 0, y = 0;
  switch (op) {
    case Op::kEq:
      return Equal(rt, a, b);
    case Op::kNe:
      return !Equal(rt, a, b);
    case Op::kLt:
      return Less(rt, a, b);
    case Op::kGt:
      return Less(rt, b, a);
    case Op::kIn:
      return Contains(rt, b, a);
    case Op::kNotIn:
      return !Contains(rt, b, a);
    default:
      break;
  }
  // a <= b is not (b < a) where a NaN is about.
  if (AsDouble(a, &x) && AsDouble(b, &y) && (std::isnan(x) || std::isnan(y))) return false;
  return op == Op::kLe ? !Less(rt, b, a) : !Less(rt, a, b);
}

bool Contains(Runtime& rt, const Value& container, const Value& item) {
  rt.Step();
  if (const Str* text = container.str()) {
    const Str* part = item.str();
    if (part == nullptr) {
      FailIfUndefined(item);
      FailType(
          fmt::format("'in <string>' requires string as left operand, not {}", item.TypeName()));
    }
    rt.Step(text->size() / 64);
    return text->view().find(part->view()) != std::string_view::npos;
  }
  if (const Dict* dict = container.dict()) {
    if (item.list() != nullptr || item.dict() != nullptr) {
      FailType(fmt::format("unhashable type: '{}'", item.TypeName()));
    }
    return dict->Find(item) != nullptr;
  }
  if (container.list() != nullptr || container.is_undefined()) {
    const auto list = IterItems(rt, container);
    for (const Value& candidate : list->items) {
      if (Equal(rt, candidate, item)) return true;
    }
    return false;
  }
  FailType(fmt::format("argument of type '{}' is not iterable", container.TypeName()));
}

Value GetAttr(Runtime& rt, const Value& object, std::string_view name, const Undefined& missing) {
  Value found;
  if (FindAttribute(rt, object, name, &found)) return found;
  if (const Dict* dict = object.dict()) {
    if (const Value* item = dict->Find(name)) return *item;
  }
  return Missing(object, missing);
}

Value GetItem(Runtime& rt, const Value& object, const Value& key) {
  if (const Dict* dict = object.dict()) {
    if (const Value* item = dict->Find(key)) return *item;
  } else {
    int64_t scratch = 0;
    Value found;
    const int64_t* index = AsInt(key, &scratch);
    if (index != nullptr && FindIndex(rt, object, *index, &found)) return found;
  }
  if (const Str* name = key.str()) {
    Value found;
    if (FindAttribute(rt, object, name->view(), &found)) return found;
    return Missing(object, Undefined{std::make_shared<const std::string>(name->view()), {}});
  }
  if (const Undefined* u = object.As<Undefined>()) FailUndefined(*u);
  return Value::Message(
      fmt::format("{} has no element {}", OwnerName(object), Repr(rt, key).view()));
}

Value GetSlice(Runtime& rt, const Value& object, const Value* lower, const Value* upper,
               const Value* step) {
  if (const Str* text = object.str()) return SliceText(rt, *text, lower, upper, step);
  const List* list = object.list();
  if (list == nullptr || !IsIndexable(*list)) {
    FailIfUndefined(object);
    FailType(fmt::format("'{}' object is not subscriptable", object.TypeName()));
  }
  const SliceRange range =
      ResolveSlice(static_cast<int64_t>(list->items.size()), lower, upper, step);
  std::vector<Value> items;
  for (int64_t i = range.start; range.step > 0 ? i < range.stop : i > range.stop; i += range.step) {
    items.push_back(list->items[static_cast<size_t>(i)]);
  }
  rt.NewItems(items.size());
  return MakeList(std::move(items), list->kind);
}

std::shared_ptr<const List> IterItems(Runtime& rt, const Value& v) {
  if (const ListPtr* list = v.As<ListPtr>()) {
    rt.Step((*list)->items.size() / 8);
    if ((*list)->kind != ListKind::kGenerator) return *list;
    if ((*list)->consumed) return std::make_shared<const List>();
    (*list)->consumed = true;
    return *list;
  }
  auto result = std::make_shared<List>();
  if (const Dict* dict = v.dict()) {
    rt.NewItems(dict->size());
    for (const Dict::Entry& entry : dict->entries()) result->items.push_back(entry.first);
  } else if (const Str* text = v.str()) {
    const std::string_view view = text->view();
    for (size_t pos = 0; pos < view.size();) {
      const size_t bytes = DecodeAt(view, pos).bytes;
      rt.Step();
      rt.NewString(bytes + 2 * sizeof(Value));
      result->items.push_back(text->Sub(pos, bytes));
      pos += bytes;
    }
  } else if (!v.is_undefined()) {
    FailType(fmt::format("'{}' object is not iterable", v.TypeName()));
  }
  return result;
}

bool IsIterable(const Value& v) {
  return v.list() != nullptr || v.dict() != nullptr || v.is_string() || v.is_undefined();
}

int64_t Length(const Value& v) {
  if (const Str* text = v.str()) return static_cast<int64_t>(CountCodePoints(text->view()));
  if (const Dict* dict = v.dict()) return static_cast<int64_t>(dict->size());
  if (v.is_undefined()) return 0;
  const List* list = v.list();
  if (list == nullptr || list->kind == ListKind::kGenerator) {
    FailType(fmt::format("object of type '{}' has no len()", v.TypeName()));
  }
  return static_cast<int64_t>(list->items.size());
}

Str ConcatStr(Runtime& rt, const Str& a, const Str& b) {
  if (a.markup() != b.markup()) return ConcatStr(rt, EscapeHtml(rt, a), EscapeHtml(rt, b));
  if (a.empty()) return b;
  if (b.empty()) return a;
  rt.NewString(a.size() + b.size());
  StrBuilder builder;
  builder.Reserve(a.size() + b.size());
  builder.Append(a);
  builder.Append(b);
  return builder.Build(a.markup());
}

Str Repeat(Runtime& rt, const Str& text, int64_t times) {
  if (times <= 0 || text.empty()) return Str().WithMarkup(text.markup());
  const size_t count = static_cast<size_t>(times);
  rt.NewString(count > SIZE_MAX / text.size() ? SIZE_MAX : count * text.size());
  rt.Step(count / 16);
  StrBuilder builder;
  builder.Reserve(count * text.size());
  for (size_t i = 0; i < count; ++i) builder.Append(text);
  return builder.Build(text.markup());
}

Str EscapeHtml(Runtime& rt, const Str& text) {
  if (text.markup()) return text;
  if (text.view().find_first_of("&<>'\"") == std::string_view::npos) return text.WithMarkup(true);
  StrBuilder builder;
  text.ForEachRun(0, text.size(), [&](size_t begin, size_t end, bool trusted) {
    for (size_t i = begin; i < end; ++i) {
      const std::string_view c = text.view().substr(i, 1);
      builder.Append(c == "&"    ? "&amp;"
                     : c == "<"  ? "&lt;"
                     : c == ">"  ? "&gt;"
                     : c == "'"  ? "&#39;"
                     : c == "\"" ? "&#34;"
                                 : c,
                     trusted);
    }
  });
  rt.NewString(builder.size());
  return builder.Build(/*markup=*/true);
}

}  // namespace terrace::jinja
