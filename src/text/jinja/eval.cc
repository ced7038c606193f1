// The expressions of the interpreter.
#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "text/jinja/format.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/ops.h"

namespace terrace::jinja {

Value Interpreter::Eval(const Expr& e, const ScopePtr& scope) {
  const DepthGuard guard(this);
  Step();
  switch (e.kind) {
    case ExprKind::kConst:
      return e.value;
    case ExprKind::kName:
      return EvalName(e, scope);
    case ExprKind::kList:
    case ExprKind::kTuple:
      return EvalList(e, scope);
    case ExprKind::kDict:
      return EvalDict(e, scope);
    case ExprKind::kGetAttr:
      return EvalGetAttr(e, scope);
    case ExprKind::kGetItem:
      return EvalGetItem(e, scope);
    case ExprKind::kSlice:
      return EvalSlice(e, scope);
    case ExprKind::kCall:
      return EvalCall(e, scope, nullptr);
    case ExprKind::kFilter:
      return EvalFilter(e, scope);
    case ExprKind::kTest:
      return EvalTest(e, scope);
    case ExprKind::kNot:
      return !Eval(*e.kids[0], scope).Truthy();
    case ExprKind::kNeg:
      return Negate(Eval(*e.kids[0], scope));
    case ExprKind::kPos:
      return Positive(Eval(*e.kids[0], scope));
    case ExprKind::kBinary:
      return EvalBinary(e, scope);
    case ExprKind::kCompare:
      return EvalCompare(e, scope);
    case ExprKind::kAnd:
    case ExprKind::kOr:
      return EvalAndOr(e, scope);
    case ExprKind::kConcat:
      return EvalConcat(e, scope);
    case ExprKind::kCond:
      return EvalCond(e, scope);
  }
  return None{};
}

Value Interpreter::EvalName(const Expr& e, const ScopePtr& scope) {
  line = e.line;
  const Value* found = Lookup(e.symbol, scope);
  return found != nullptr ? *found : e.value;
}

Value Interpreter::EvalList(const Expr& e, const ScopePtr& scope) {
  std::vector<Value> items;
  items.reserve(e.kids.size());
  for (const ExprPtr& kid : e.kids) items.push_back(Eval(*kid, scope));
  line = e.line;
  NewItems(items.size());
  return MakeList(std::move(items),
                  e.kind == ExprKind::kTuple ? ListKind::kTuple : ListKind::kList);
}

Value Interpreter::EvalDict(const Expr& e, const ScopePtr& scope) {
  auto dict = std::make_shared<Dict>();
  NewItems(e.kids.size() * 2);
  for (size_t i = 0; i + 1 < e.kids.size(); i += 2) {
    Value key = Eval(*e.kids[i], scope);
    Value value = Eval(*e.kids[i + 1], scope);
    line = e.line;
    dict->Set(std::move(key), std::move(value));
  }
  return dict;
}

Value Interpreter::EvalGetAttr(const Expr& e, const ScopePtr& scope) {
  const Value object = Eval(*e.kids[0], scope);
  line = e.line;
  return GetAttr(*this, object, e.name, *e.value.As<Undefined>());
}

Value Interpreter::EvalGetItem(const Expr& e, const ScopePtr& scope) {
  const Value object = Eval(*e.kids[0], scope);
  const Value key = Eval(*e.kids[1], scope);
  line = e.line;
  return GetItem(*this, object, key);
}

Value Interpreter::EvalSlice(const Expr& e, const ScopePtr& scope) {
  const Value object = Eval(*e.kids[0], scope);
  Value bounds[3];
  const Value* given[3] = {nullptr, nullptr, nullptr};
  for (size_t i = 0; i < 3; ++i) {
    if (e.kids[i + 1] == nullptr) continue;
    bounds[i] = Eval(*e.kids[i + 1], scope);
    given[i] = &bounds[i];
  }
  line = e.line;
  return GetSlice(*this, object, given[0], given[1], given[2]);
}

CallArgs Interpreter::EvalArgs(const ArgList* list, const ScopePtr& scope) {
  CallArgs args;
  if (list == nullptr) return args;
  args.positional.reserve(list->positional.size());
  for (const ExprPtr& arg : list->positional) args.positional.push_back(Eval(*arg, scope));
  for (const auto& [name, arg] : list->named) args.named.emplace_back(name, Eval(*arg, scope));
  if (list->star != nullptr) {
    const auto items = IterItems(*this, Eval(*list->star, scope));
    NewItems(items->items.size());
    args.positional.insert(args.positional.end(), items->items.begin(), items->items.end());
  }
  if (list->star_star != nullptr) {
    const Value more = Eval(*list->star_star, scope);
    if (more.dict() == nullptr) {
      FailType(fmt::format("argument after ** must be a mapping, not {}", more.TypeName()));
    }
    NewItems(more.dict()->size() * 2);
    for (const auto& [key, value] : more.dict()->entries()) {
      const Str& name = StrArg(&key, "a keyword argument");
      args.trusted_names &= !name.any_untrusted();
      args.named.emplace_back(std::string(name.view()), value);
    }
  }
  return args;
}

Value Interpreter::EvalCall(const Expr& e, const ScopePtr& scope, const Value* caller) {
  const Expr& target = *e.kids[0];
  Value callee;
  bool is_method = false;
  if (target.kind == ExprKind::kGetAttr) {
    callee = Eval(*target.kids[0], scope);
    line = target.line;
    is_method = HasMethod(callee, target.name);
    if (!is_method) {
      callee = GetAttr(*this, callee, target.name, *target.value.As<Undefined>());
    }
  } else {
    callee = Eval(target, scope);
  }
  CallArgs args = EvalArgs(e.args.get(), scope);
  if (caller != nullptr) args.named.emplace_back("caller", *caller);
  line = e.line;
  if (is_method) return CallMethod(*this, callee, target.name, args);
  return Call(callee, args);
}

Value Interpreter::EvalFilter(const Expr& e, const ScopePtr& scope) {
  const Value input =
      e.kids[0] != nullptr ? Eval(*e.kids[0], scope) : std::exchange(filter_input_, Value());
  const CallArgs args = EvalArgs(e.args.get(), scope);
  line = e.line;
  if (e.filter == nullptr) FailType(fmt::format("No filter named '{}'.", e.name));
  return e.filter(*this, input, args);
}

Value Interpreter::EvalTest(const Expr& e, const ScopePtr& scope) {
  const Value input = Eval(*e.kids[0], scope);
  const CallArgs args = EvalArgs(e.args.get(), scope);
  line = e.line;
  if (e.test == nullptr) FailType(fmt::format("No test named '{}'.", e.name));
  return e.test(*this, input, args);
}

Value Interpreter::EvalBinary(const Expr& e, const ScopePtr& scope) {
  const Value left = Eval(*e.kids[0], scope);
  const Value right = Eval(*e.kids[1], scope);
  line = e.line;
  return BinaryOp(*this, e.op, left, right);
}

Value Interpreter::EvalCompare(const Expr& e, const ScopePtr& scope) {
  Value left = Eval(*e.kids[0], scope);
  for (size_t i = 0; i < e.ops.size(); ++i) {
    Value right = Eval(*e.kids[i + 1], scope);
    line = e.line;
    if (!Compare(*this, e.ops[i], left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::EvalAndOr(const Expr& e, const ScopePtr& scope) {
  Value value;
  for (const ExprPtr& kid : e.kids) {
    value = Eval(*kid, scope);
    if (value.Truthy() == (e.kind == ExprKind::kOr)) break;
  }
  return value;
}

Value Interpreter::EvalConcat(const Expr& e, const ScopePtr& scope) {
  StrBuilder builder;
  for (const ExprPtr& kid : e.kids) {
    const Str part = ToStr(*this, Eval(*kid, scope));
    CheckString(builder.size() + part.size());
    builder.Append(part);
  }
  line = e.line;
  NewString(builder.size());
  return builder.Build();
}

Value Interpreter::EvalCond(const Expr& e, const ScopePtr& scope) {
  if (Eval(*e.kids[1], scope).Truthy()) return Eval(*e.kids[0], scope);
  if (e.kids[2] != nullptr) return Eval(*e.kids[2], scope);
  return Value::Message(fmt::format(
      "the inline if-expression on line {} evaluated to false and no else section was defined.",
      e.line));
}

}  // namespace terrace::jinja
