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

std::string_view OpText(Op op) {
  constexpr std::string_view kText[] = {
      "+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};
  return kText[static_cast<size_t>(op)];
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

[[noreturn]] void FailOverflow() { FailType("an integer is out of range (64 bits)"); }

int64_t FloorDivide(int64_t a, int64_t b) {
  if (b == 0) FailType("integer division or modulo by zero");
  if (b == -1) {
    if (a == INT64_MIN) FailOverflow();
    return -a;
  }
  const int64_t quotient = a / b;
  return quotient - ((a % b != 0) && ((a < 0) != (b < 0)) ? 1 : 0);
}

int64_t FloorModulo(int64_t a, int64_t b) {
  if (b == 0) FailType("integer division or modulo by zero");
  if (b == -1) return 0;
  const int64_t rest = a % b;
  return rest != 0 && ((rest < 0) != (b < 0)) ? rest + b : rest;
}

double FloorModulo(double a, double b) {
  if (b == 0) FailType("float modulo");
  const double rest = std::fmod(a, b);
  return rest != 0 && ((rest < 0) != (b < 0)) ? rest + b : rest;
}

Value IntPower(Runtime& rt, int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) FailType("0.0 cannot be raised to a negative power");
    return std::pow(static_cast<double>(base), static_cast<double>(exponent));
  }
  int64_t result = 1;
  if (base == 1 || base == 0 || base == -1) {
    return base == -1 && exponent % 2 == 0 ? int64_t{1} : exponent == 0 ? int64_t{1} : base;
  }
  for (; exponent > 0; --exponent) {
    rt.Step();
    if (__builtin_mul_overflow(result, base, &result)) FailOverflow();
  }
  return result;
}

Value IntArithmetic(Runtime& rt, Op op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case Op::kAdd:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case Op::kSub:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case Op::kMul:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case Op::kDiv:
      if (b == 0) FailType("division by zero");
      return static_cast<double>(a) / static_cast<double>(b);
    case Op::kFloorDiv:
      return FloorDivide(a, b);
    case Op::kMod:
      return FloorModulo(a, b);
    default:
      return IntPower(rt, a, b);
  }
  if (overflow) FailOverflow();
  return result;
}

Value FloatArithmetic(Op op, double a, double b) {
  switch (op) {
    case Op::kAdd:
      return a + b;
    case Op::kSub:
      return a - b;
    case Op::kMul:
      return a * b;
    case Op::kDiv:
      if (b == 0) FailType("float division by zero");
      return a / b;
    case Op::kFloorDiv:
      if (b == 0) FailType("float floor division by zero");
      return std::floor(a / b);
    case Op::kMod:
      return FloorModulo(a, b);
    default: {
      const double power = std::pow(a, b);
      if (std::isnan(power) && !std::isnan(a) && !std::isnan(b)) FailType("complex power");
      return power;
    }
  }
}

Value AddSequences(Runtime& rt, const List& a, const List& b) {
  rt.NewItems(a.items.size() + b.items.size());
  std::vector<Value> items = a.items;
  items.insert(items.end(), b.items.begin(), b.items.end());
  return MakeList(std::move(items), a.kind);
}

Value RepeatList(Runtime& rt, const List& list, int64_t times) {
  std::vector<Value> items;
  if (times > 0 && !list.items.empty()) {
    const size_t count = static_cast<size_t>(times);
    if (count > rt.limits().max_total_bytes / list.items.size()) rt.NewItems(SIZE_MAX);
    rt.NewItems(count * list.items.size());
    items.reserve(count * list.items.size());
    for (size_t i = 0; i < count; ++i) {
      items.insert(items.end(), list.items.begin(), list.items.end());
    }
  }
  return MakeList(std::move(items), list.kind);
}

bool IsPlainSequence(const Value& v) {
  const List* list = v.list();
  return list != nullptr && (list->kind == ListKind::kList || list->kind == ListKind::kTuple);
}

[[noreturn]] void FailOperands(Op op, const Value& a, const Value& b) {
  FailIfUndefined(a);
  FailIfUndefined(b);
  if (op == Op::kAdd && a.is_string()) {
    FailType(fmt::format("can only concatenate str (not \"{}\") to str", b.TypeName()));
  }
  if (op == Op::kAdd && IsPlainSequence(a)) {
    FailType(
        fmt::format("can only concatenate {0} (not \"{1}\") to {0}", a.TypeName(), b.TypeName()));
  }
  FailType(fmt::format("unsupported operand type(s) for {}: '{}' and '{}'", OpText(op),
                       a.TypeName(), b.TypeName()));
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

Value BinaryOp(Runtime& rt, Op op, const Value& a, const Value& b) {
  int64_t scratch_a = 0, scratch_b = 0;
  const int64_t* int_a = AsInt(a, &scratch_a);
  const int64_t* int_b = AsInt(b, &scratch_b);
  if (int_a != nullptr && int_b != nullptr) return IntArithmetic(rt, op, *int_a, *int_b);
  double x = 0, y = 0;
  if (AsDouble(a, &x) && AsDouble(b, &y)) return FloatArithmetic(op, x, y);
  if (op == Op::kAdd) {
    if (a.str() != nullptr && b.str() != nullptr) return ConcatStr(rt, *a.str(), *b.str());
    if (IsPlainSequence(a) && IsPlainSequence(b) && a.list()->kind == b.list()->kind) {
      return AddSequences(rt, *a.list(), *b.list());
    }
  } else if (op == Op::kMul) {
    if (a.str() != nullptr && int_b != nullptr) return Repeat(rt, *a.str(), *int_b);
    if (b.str() != nullptr && int_a != nullptr) return Repeat(rt, *b.str(), *int_a);
    if (IsPlainSequence(a) && int_b != nullptr) return RepeatList(rt, *a.list(), *int_b);
    if (IsPlainSequence(b) && int_a != nullptr) return RepeatList(rt, *b.list(), *int_a);
  } else if (op == Op::kMod && a.str() != nullptr) {
    return PercentFormat(rt, *a.str(), b);
  }
  FailOperands(op, a, b);
}

Value Negate(const Value& v) {
  int64_t scratch = 0;
  if (const int64_t* i = AsInt(v, &scratch)) {
    if (*i == INT64_MIN) FailOverflow();
    return -*i;
  }
  if (const double* d = v.As<double>()) return -*d;
  FailIfUndefined(v);
  FailType(fmt::format("bad operand type for unary -: '{}'", v.TypeName()));
}

Value Positive(const Value& v) {
  int64_t scratch = 0;
  if (const int64_t* i = AsInt(v, &scratch)) return *i;
  if (const double* d = v.As<double>()) return *d;
  FailIfUndefined(v);
  FailType(fmt::format("bad operand type for unary +: '{}'", v.TypeName()));
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
    return Value::Message(fmt::format("{} can't be sliced", OwnerName(object)));
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
