// Runs a parsed template over one context. One Interpreter renders once, on one thread.
#ifndef TERRACE_TEXT_JINJA_INTERPRETER_H_
#define TERRACE_TEXT_JINJA_INTERPRETER_H_

#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/runtime.h"
#include "text/jinja/value.h"

namespace terrace::jinja {

// The variables of one block. A name that is not here is looked up in `parent`.
struct Scope {
  explicit Scope(std::shared_ptr<Scope> parent_scope) : parent(std::move(parent_scope)) {}
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<int, Value>> vars;  // By symbol.

  void Set(int symbol, Value value);
  const Value* Find(int symbol) const;
};
using ScopePtr = std::shared_ptr<Scope>;

class Interpreter final : public Runtime {
 public:
  // All referenced arguments outlive the interpreter.
  Interpreter(const Ast& ast, const Dict& context, const Limits& limits,
              const std::function<int64_t()>& now);
  ~Interpreter() override;

  // The rendered text with its provenance. Throws Error.
  std::pair<std::string, std::vector<Run>> Execute();

  // For macros and loops, which call back:
  // Runs `macro`, defined in `scope`, and returns what it prints.
  Value CallMacro(const MacroDef& macro, const ScopePtr& scope, const CallArgs& args);
  // Runs the recursive loop `stmt` over `iterable` at nesting `level` and returns what it prints.
  Value CallLoop(const Stmt& stmt, const ScopePtr& scope, const Value& iterable, int64_t level);

 private:
  enum class Flow : uint8_t { kNext, kBreak, kContinue };
  class OutputGuard;

  Flow ExecBody(const Body& body, const ScopePtr& scope);
  Flow Exec(const Stmt& stmt, const ScopePtr& scope);
  Flow ExecIf(const Stmt& stmt, const ScopePtr& scope);
  Flow ExecFor(const Stmt& stmt, const ScopePtr& scope, const Value& iterable, int64_t level);
  Flow ExecSetBlock(const Stmt& stmt, const ScopePtr& scope);
  Flow ExecFilterBlock(const Stmt& stmt, const ScopePtr& scope);
  Flow ExecWith(const Stmt& stmt, const ScopePtr& scope);
  void ExecMacro(const Stmt& stmt, const ScopePtr& scope);
  void ExecCallBlock(const Stmt& stmt, const ScopePtr& scope);
  // Runs `body` in a new scope; what it prints goes to `*printed`.
  Flow Capture(const Body& body, const ScopePtr& scope, Str* printed);
  std::vector<Value> FilterLoop(const Stmt& stmt, const ScopePtr& scope,
                                const std::vector<Value>& items);
  void Assign(const Target& target, Value value, const ScopePtr& scope);
  void AssignAttr(const Target& target, Value value, const ScopePtr& scope);
  void Print(const Str& text);

  Value Eval(const Expr& e, const ScopePtr& scope);
  Value EvalName(const Expr& e, const ScopePtr& scope);
  Value EvalList(const Expr& e, const ScopePtr& scope);
  Value EvalDict(const Expr& e, const ScopePtr& scope);
  Value EvalGetAttr(const Expr& e, const ScopePtr& scope);
  Value EvalGetItem(const Expr& e, const ScopePtr& scope);
  Value EvalSlice(const Expr& e, const ScopePtr& scope);
  Value EvalCall(const Expr& e, const ScopePtr& scope, const Value* caller);
  Value EvalFilter(const Expr& e, const ScopePtr& scope);
  Value EvalTest(const Expr& e, const ScopePtr& scope);
  Value EvalBinary(const Expr& e, const ScopePtr& scope);
  Value EvalCompare(const Expr& e, const ScopePtr& scope);
  Value EvalAndOr(const Expr& e, const ScopePtr& scope);
  Value EvalConcat(const Expr& e, const ScopePtr& scope);
  Value EvalCond(const Expr& e, const ScopePtr& scope);
  CallArgs EvalArgs(const ArgList* list, const ScopePtr& scope);
  Value Call(const Value& callee, CallArgs& args);
  const Value* Lookup(int symbol, const ScopePtr& scope) const;
  void BindParameters(const MacroDef& macro, const CallArgs& args, const ScopePtr& scope);
  void BindExtras(const MacroDef& macro, const CallArgs& args, const ScopePtr& scope);
  int SymbolOf(std::string_view name) const;

  const Ast& ast_;
  std::vector<std::optional<Value>> globals_;  // By symbol: the context, then the functions.
  const int loop_symbol_;
  const int caller_symbol_;
  const int varargs_symbol_;
  const int kwargs_symbol_;
  StrBuilder* out_ = nullptr;
  Value filter_input_;              // Of a filter block that is being applied.
  std::vector<ScopePtr> captured_;  // Scopes that a macro or loop object refers to.
};

}  // namespace terrace::jinja

#endif  // TERRACE_TEXT_JINJA_INTERPRETER_H_
