// The arithmetic half of ops.h.
#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "text/jinja/format.h"
#include "text/jinja/ops.h"

namespace terrace::jinja {
namespace {

void FailIfUndefined(const Value& v) {
  if (const Undefined* u = v.As<Undefined>()) FailUndefined(*u);
}

bool IsPlainSequence(const Value& v) {
  const List* list = v.list();
  return list != nullptr && (list->kind == ListKind::kList || list->kind == ListKind::kTuple);
}

std::string_view OpText(Op op) {
  constexpr std::string_view kText[] = {
      "+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};
  return kText[static_cast<size_t>(op)];
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

}  // namespace

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

}  // namespace terrace::jinja
