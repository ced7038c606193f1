// The tests of `is`.
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "text/jinja/builtins.h"
#include "text/jinja/format.h"
#include "text/jinja/ops.h"
#include "text/jinja/runtime.h"
#include "text/jinja/strings.h"

namespace terrace::jinja {
namespace {

const Value& OneArg(std::string_view name, const CallArgs& args) {
  const auto bound = Bind(name, args, {"other"});
  if (bound[0] == nullptr) FailType(fmt::format("test '{}' needs an argument", name));
  return *bound[0];
}

template <Op kOp>
bool CompareTest(Runtime& rt, const Value& v, const CallArgs& args) {
  return Compare(rt, kOp, v, OneArg("compare", args));
}

int64_t Modulo(Runtime& rt, const Value& v, int64_t by) {
  const Value rest = BinaryOp(rt, Op::kMod, v, Value(by));
  if (rest.is_string()) return 1;  // A string is no number: neither odd nor even.
  double number = 0;
  AsDouble(rest, &number);
  return number == 0 ? 0 : number == 1 ? 1 : 2;
}

bool IsSequence(const Value& v) {
  if (v.is_string() || v.dict() != nullptr || v.is_undefined()) return true;
  const List* list = v.list();
  return list != nullptr && list->kind != ListKind::kGenerator && list->kind != ListKind::kView;
}

bool IsSame(Runtime& rt, const Value& a, const Value& b) {
  if (a.list() != nullptr || b.list() != nullptr) return a.list() == b.list();
  if (a.dict() != nullptr || b.dict() != nullptr) return a.dict() == b.dict();
  return a.TypeName() == b.TypeName() && Equal(rt, a, b);
}

using Args = const CallArgs&;
constexpr std::pair<std::string_view, Test> kTests[] = {
    {"defined", [](Runtime&, const Value& v, Args) { return !v.is_undefined(); }},
    {"undefined", [](Runtime&, const Value& v, Args) { return v.is_undefined(); }},
    {"none", [](Runtime&, const Value& v, Args) { return v.is_none(); }},
    {"string", [](Runtime&, const Value& v, Args) { return v.is_string(); }},
    {"mapping", [](Runtime&, const Value& v, Args) { return v.dict() != nullptr; }},
    {"iterable", [](Runtime&, const Value& v, Args) { return IsIterable(v); }},
    {"sequence", [](Runtime&, const Value& v, Args) { return IsSequence(v); }},
    {"number", [](Runtime&, const Value& v, Args) { return v.is_number(); }},
    {"integer", [](Runtime&, const Value& v, Args) { return v.is_int(); }},
    {"float", [](Runtime&, const Value& v, Args) { return v.is_double(); }},
    {"boolean", [](Runtime&, const Value& v, Args) { return v.is_bool(); }},
    {"true", [](Runtime&, const Value& v, Args) { return v.is_bool() && v.Truthy(); }},
    {"false", [](Runtime&, const Value& v, Args) { return v.is_bool() && !v.Truthy(); }},
    {"callable", [](Runtime&, const Value& v,
                    Args) { return v.object() != nullptr && v.object()->Callable(); }},
    {"escaped",
     [](Runtime&, const Value& v, Args) { return v.str() != nullptr && v.str()->markup(); }},
    {"lower", [](Runtime& rt, const Value& v, Args) { return IsLowerText(ToStr(rt, v).view()); }},
    {"upper", [](Runtime& rt, const Value& v, Args) { return IsUpperText(ToStr(rt, v).view()); }},
    {"odd", [](Runtime& rt, const Value& v, Args) { return Modulo(rt, v, 2) == 1; }},
    {"even", [](Runtime& rt, const Value& v, Args) { return Modulo(rt, v, 2) == 0; }},
    {"divisibleby",
     [](Runtime& rt, const Value& v, Args args) {
       return !BinaryOp(rt, Op::kMod, v, OneArg("divisibleby", args)).Truthy();
     }},
    {"sameas",
     [](Runtime& rt, const Value& v, Args args) { return IsSame(rt, v, OneArg("sameas", args)); }},
    {"in",
     [](Runtime& rt, const Value& v, Args args) { return Contains(rt, OneArg("in", args), v); }},
    {"filter", [](Runtime&, const Value& v,
                  Args) { return FindFilter(StrArg(&v, "filter").view()) != nullptr; }},
    {"test",
     [](Runtime&, const Value& v, Args) { return FindTest(StrArg(&v, "test").view()) != nullptr; }},
    {"==", CompareTest<Op::kEq>},
    {"eq", CompareTest<Op::kEq>},
    {"equalto", CompareTest<Op::kEq>},
    {"!=", CompareTest<Op::kNe>},
    {"ne", CompareTest<Op::kNe>},
    {">", CompareTest<Op::kGt>},
    {"gt", CompareTest<Op::kGt>},
    {"greaterthan", CompareTest<Op::kGt>},
    {">=", CompareTest<Op::kGe>},
    {"ge", CompareTest<Op::kGe>},
    {"<", CompareTest<Op::kLt>},
    {"lt", CompareTest<Op::kLt>},
    {"lessthan", CompareTest<Op::kLt>},
    {"<=", CompareTest<Op::kLe>},
    {"le", CompareTest<Op::kLe>},
};

}  // namespace

Test FindTest(std::string_view name) {
  for (const auto& [known, test] : kTests) {
    if (known == name) return test;
  }
  return nullptr;
}

}  // namespace terrace::jinja
