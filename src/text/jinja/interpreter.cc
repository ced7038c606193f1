#include "text/jinja/interpreter.h"

#include <algorithm>

#include <fmt/format.h>

#include "text/jinja/format.h"
#include "text/jinja/interpreter_objects.h"
#include "text/jinja/objects.h"
#include "text/jinja/ops.h"

namespace terrace::jinja {

// Sends what is printed to another builder while it lives.
class Interpreter::OutputGuard {
 public:
  OutputGuard(Interpreter* interpreter, StrBuilder* builder)
      : interpreter_(interpreter), saved_(interpreter->out_) {
    interpreter_->out_ = builder;
  }
  ~OutputGuard() { interpreter_->out_ = saved_; }
  OutputGuard(const OutputGuard&) = delete;
  OutputGuard& operator=(const OutputGuard&) = delete;

 private:
  Interpreter* const interpreter_;
  StrBuilder* const saved_;
};

void Scope::Set(int symbol, Value value) {
  for (auto& [known, slot] : vars) {
    if (known == symbol) {
      slot = std::move(value);
      return;
    }
  }
  vars.emplace_back(symbol, std::move(value));
}

const Value* Scope::Find(int symbol) const {
  for (const auto& [known, slot] : vars) {
    if (known == symbol) return &slot;
  }
  return nullptr;
}

Interpreter::Interpreter(const Ast& ast, const Dict& context, const Limits& limits,
                         const std::function<int64_t()>& now)
    : Runtime(limits, now),
      ast_(ast),
      globals_(ast.symbols.size()),
      loop_symbol_(SymbolOf("loop")),
      caller_symbol_(SymbolOf("caller")),
      varargs_symbol_(SymbolOf("varargs")),
      kwargs_symbol_(SymbolOf("kwargs")) {
  for (size_t i = 0; i < ast.symbols.size(); ++i) {
    if (const Value* given = context.Find(ast.symbols[i])) {
      globals_[i] = *given;
    } else if (const Function function = FindFunction(ast.symbols[i])) {
      globals_[i] = ObjectPtr(std::make_shared<BuiltinFunction>(function));
    }
  }
}

Interpreter::~Interpreter() {
  for (const ScopePtr& scope : captured_) scope->vars.clear();
}

int Interpreter::SymbolOf(std::string_view name) const {
  const auto found = std::find(ast_.symbols.begin(), ast_.symbols.end(), name);
  return found == ast_.symbols.end() ? -1 : static_cast<int>(found - ast_.symbols.begin());
}

std::pair<std::string, std::vector<Run>> Interpreter::Execute() {
  StrBuilder builder;
  const OutputGuard guard(this, &builder);
  ExecBody(ast_.body, std::make_shared<Scope>(nullptr));
  return builder.Take();
}

void Interpreter::Print(const Str& text) {
  if (text.size() > limits().max_output_bytes - std::min(out_->size(), limits().max_output_bytes)) {
    Fail(absl::StatusCode::kResourceExhausted,
         fmt::format("the template prints more than {} bytes", limits().max_output_bytes));
  }
  NewString(text.size());
  out_->Append(text);
}

const Value* Interpreter::Lookup(int symbol, const ScopePtr& scope) const {
  for (const Scope* s = scope.get(); s != nullptr; s = s->parent.get()) {
    if (const Value* found = s->Find(symbol)) return found;
  }
  const std::optional<Value>& global = globals_[static_cast<size_t>(symbol)];
  return global ? &*global : nullptr;
}

// --- statements ---

Interpreter::Flow Interpreter::ExecBody(const Body& body, const ScopePtr& scope) {
  for (const StmtPtr& stmt : body) {
    const Flow flow = Exec(*stmt, scope);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::Exec(const Stmt& stmt, const ScopePtr& scope) {
  const DepthGuard guard(this);
  Step();
  line = stmt.line;
  switch (stmt.kind) {
    case StmtKind::kText:
      Print(stmt.text);
      break;
    case StmtKind::kOutput:
      Print(ToStr(*this, Eval(*stmt.expr, scope)));
      break;
    case StmtKind::kFor:
      return ExecFor(stmt, scope, Eval(*stmt.expr, scope), 0);
    case StmtKind::kIf:
      return ExecIf(stmt, scope);
    case StmtKind::kSet:
      Assign(stmt.target, Eval(*stmt.expr, scope), scope);
      break;
    case StmtKind::kSetBlock:
      return ExecSetBlock(stmt, scope);
    case StmtKind::kMacro:
      ExecMacro(stmt, scope);
      break;
    case StmtKind::kCallBlock:
      ExecCallBlock(stmt, scope);
      break;
    case StmtKind::kFilterBlock:
      return ExecFilterBlock(stmt, scope);
    case StmtKind::kWith:
      return ExecWith(stmt, scope);
    case StmtKind::kScope:
      return ExecBody(stmt.body, std::make_shared<Scope>(scope));
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::ExecIf(const Stmt& stmt, const ScopePtr& scope) {
  for (const Branch& branch : stmt.branches) {
    if (Eval(*branch.condition, scope).Truthy()) return ExecBody(branch.body, scope);
  }
  return ExecBody(stmt.other, scope);
}

std::vector<Value> Interpreter::FilterLoop(const Stmt& stmt, const ScopePtr& scope,
                                           const std::vector<Value>& items) {
  std::vector<Value> kept;
  for (const Value& item : items) {
    const auto inner = std::make_shared<Scope>(scope);
    Assign(stmt.target, item, inner);
    if (Eval(*stmt.test, inner).Truthy()) kept.push_back(item);
  }
  NewItems(kept.size());
  return kept;
}

Interpreter::Flow Interpreter::ExecFor(const Stmt& stmt, const ScopePtr& scope,
                                       const Value& iterable, int64_t level) {
  line = stmt.line;
  std::shared_ptr<const List> list = IterItems(*this, iterable);
  if (stmt.test != nullptr) list = MakeList(FilterLoop(stmt, scope, list->items));
  if (list->items.empty()) return ExecBody(stmt.other, std::make_shared<Scope>(scope));
  const auto loop = std::make_shared<Loop>(this, stmt, scope, list, level);
  if (stmt.recursive) captured_.push_back(scope);
  ScopePtr inner;
  for (size_t i = 0; i < list->items.size(); ++i) {
    Step();
    loop->MoveTo(i);
    // A scope that nothing refers to any more serves again.
    if (inner == nullptr || inner.use_count() > 1) {
      inner = std::make_shared<Scope>(scope);
    } else {
      inner->vars.clear();
    }
    inner->Set(loop_symbol_, ObjectPtr(loop));
    Assign(stmt.target, list->items[i], inner);
    if (ExecBody(stmt.body, inner) == Flow::kBreak) break;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::Capture(const Body& body, const ScopePtr& scope, Str* printed) {
  StrBuilder builder;
  const OutputGuard guard(this, &builder);
  const Flow flow = ExecBody(body, std::make_shared<Scope>(scope));
  *printed = builder.Build();
  return flow;
}

Interpreter::Flow Interpreter::ExecSetBlock(const Stmt& stmt, const ScopePtr& scope) {
  Str printed;
  const Flow flow = Capture(stmt.body, scope, &printed);
  if (flow != Flow::kNext) return flow;
  Value value = std::move(printed);
  if (stmt.expr != nullptr) {
    filter_input_ = std::move(value);
    value = Eval(*stmt.expr, scope);
  }
  Assign(stmt.target, std::move(value), scope);
  return Flow::kNext;
}

Interpreter::Flow Interpreter::ExecFilterBlock(const Stmt& stmt, const ScopePtr& scope) {
  Str printed;
  const Flow flow = Capture(stmt.body, scope, &printed);
  if (flow != Flow::kNext) return flow;
  filter_input_ = std::move(printed);
  Print(ToStr(*this, Eval(*stmt.expr, scope)));
  return Flow::kNext;
}

Interpreter::Flow Interpreter::ExecWith(const Stmt& stmt, const ScopePtr& scope) {
  const auto inner = std::make_shared<Scope>(scope);
  std::vector<Value> values;
  for (const ExprPtr& value : stmt.values) values.push_back(Eval(*value, scope));
  for (size_t i = 0; i < values.size(); ++i) Assign(stmt.targets[i], values[i], inner);
  return ExecBody(stmt.body, inner);
}

void Interpreter::ExecMacro(const Stmt& stmt, const ScopePtr& scope) {
  captured_.push_back(scope);
  NewItems(4);
  scope->Set(stmt.target.symbol, ObjectPtr(std::make_shared<Macro>(this, *stmt.macro, scope)));
}

void Interpreter::ExecCallBlock(const Stmt& stmt, const ScopePtr& scope) {
  captured_.push_back(scope);
  NewItems(4);
  const Value caller = ObjectPtr(std::make_shared<Macro>(this, *stmt.macro, scope));
  Print(ToStr(*this, EvalCall(*stmt.expr, scope, &caller)));
}

void Interpreter::Assign(const Target& target, Value value, const ScopePtr& scope) {
  switch (target.kind) {
    case Target::Kind::kName:
      scope->Set(target.symbol, std::move(value));
      return;
    case Target::Kind::kAttr:
      AssignAttr(target, std::move(value), scope);
      return;
    case Target::Kind::kTuple:
      break;
  }
  line = target.line;
  const auto parts = IterItems(*this, value);
  if (parts->items.size() != target.parts.size()) {
    FailType(
        fmt::format("{} values to unpack into {} names", parts->items.size(), target.parts.size()));
  }
  for (size_t i = 0; i < target.parts.size(); ++i) Assign(target.parts[i], parts->items[i], scope);
}

void Interpreter::AssignAttr(const Target& target, Value value, const ScopePtr& scope) {
  line = target.line;
  const Value* found = Lookup(target.symbol, scope);
  auto* space = found != nullptr ? dynamic_cast<Namespace*>(found->object()) : nullptr;
  if (space == nullptr) {
    FailType(fmt::format("cannot assign attribute '{}' on non-namespace object '{}'", target.attr,
                         target.name));
  }
  NewItems(2);
  space->values.Set(Value::Trusted(target.attr), std::move(value));
}

// --- calls ---

Value Interpreter::Call(const Value& callee, CallArgs& args) {
  if (const Undefined* u = callee.As<Undefined>()) FailUndefined(*u);
  Object* object = callee.object();
  if (object == nullptr) FailType(fmt::format("'{}' object is not callable", callee.TypeName()));
  const ObjectPtr keep = *callee.As<ObjectPtr>();
  return keep->Call(*this, args);
}

Value Interpreter::CallLoop(const Stmt& stmt, const ScopePtr& scope, const Value& iterable,
                            int64_t level) {
  const DepthGuard depth(this);
  StrBuilder builder;
  const OutputGuard guard(this, &builder);
  ExecFor(stmt, scope, iterable, level);
  return builder.Build();
}

Value Interpreter::CallMacro(const MacroDef& macro, const ScopePtr& scope, const CallArgs& args) {
  const DepthGuard depth(this);
  StrBuilder builder;
  const OutputGuard guard(this, &builder);
  const auto inner = std::make_shared<Scope>(scope);
  BindExtras(macro, args, inner);
  BindParameters(macro, args, inner);
  ExecBody(macro.body, inner);
  return builder.Build();
}

// What the macro's parameters don't take: varargs, kwargs, caller.
void Interpreter::BindExtras(const MacroDef& macro, const CallArgs& args, const ScopePtr& scope) {
  const size_t count = macro.parameters.size();
  if (macro.uses_varargs) {
    std::vector<Value> rest(args.positional.begin() + static_cast<std::ptrdiff_t>(
                                                          std::min(count, args.positional.size())),
                            args.positional.end());
    scope->Set(varargs_symbol_, MakeList(std::move(rest), ListKind::kTuple));
  } else if (args.positional.size() > count) {
    FailType(fmt::format("macro '{}' takes not more than {} argument(s)", macro.name, count));
  }
  auto kwargs = std::make_shared<Dict>();
  bool has_caller = false;
  for (const auto& [name, value] : args.named) {
    const auto& names = macro.parameter_names;
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    if (name == "caller" && macro.uses_caller) {
      scope->Set(caller_symbol_, value);
      has_caller = true;
    } else if (macro.uses_kwargs) {
      kwargs->Set(Str(name, args.trusted_names), value);
    } else {
      FailType(fmt::format("macro '{}' takes no keyword argument '{}'", macro.name, name));
    }
  }
  if (macro.uses_kwargs) scope->Set(kwargs_symbol_, kwargs);
  if (macro.uses_caller && !has_caller) {
    scope->Set(caller_symbol_, Value::Message("No caller defined"));
  }
}

void Interpreter::BindParameters(const MacroDef& macro, const CallArgs& args,
                                 const ScopePtr& scope) {
  const size_t count = macro.parameters.size();
  std::vector<const Value*> bound(count, nullptr);
  for (size_t i = 0; i < count && i < args.positional.size(); ++i) bound[i] = &args.positional[i];
  for (const auto& [name, value] : args.named) {
    const auto& names = macro.parameter_names;
    const size_t i =
        static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
    if (i == count) continue;
    if (bound[i] != nullptr) {
      FailType(fmt::format("macro '{}' got multiple values for argument '{}'", macro.name, name));
    }
    bound[i] = &value;
  }
  // A default may refer to the parameters before it.
  const size_t first_default = count - macro.defaults.size();
  for (size_t i = 0; i < count; ++i) {
    if (bound[i] != nullptr) {
      scope->Set(macro.parameters[i], *bound[i]);
    } else if (i >= first_default) {
      scope->Set(macro.parameters[i], Eval(*macro.defaults[i - first_default], scope));
    } else {
      scope->Set(macro.parameters[i], Value::Message(fmt::format("parameter '{}' was not provided",
                                                                 macro.parameter_names[i])));
    }
  }
}

}  // namespace terrace::jinja
