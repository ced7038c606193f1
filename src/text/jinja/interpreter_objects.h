// The objects that call back into the interpreter: macros and the `loop` variable.
#ifndef TERRACE_TEXT_JINJA_INTERPRETER_OBJECTS_H_
#define TERRACE_TEXT_JINJA_INTERPRETER_OBJECTS_H_

#include <memory>
#include <string_view>
#include <utility>

#include "text/jinja/interpreter.h"
#include "text/jinja/value.h"

namespace terrace::jinja {

class Macro final : public Object {
 public:
  Macro(Interpreter* interpreter, const MacroDef& def, ScopePtr scope)
      : interpreter_(interpreter), def_(def), scope_(std::move(scope)) {}
  std::string_view TypeName() const override { return "Macro"; }
  bool Callable() const override { return true; }
  Value Call(Runtime&, CallArgs& args) override {
    return interpreter_->CallMacro(def_, scope_, args);
  }
  const Value* FindAttr(Runtime& rt, std::string_view name, Value* scratch) override;

 private:
  Interpreter* const interpreter_;
  const MacroDef& def_;
  const ScopePtr scope_;
};

// `loop`: where a for statement is. Callable if the loop is recursive.
class Loop final : public Object, public std::enable_shared_from_this<Loop> {
 public:
  Loop(Interpreter* interpreter, const Stmt& stmt, ScopePtr scope,
       std::shared_ptr<const List> items, int64_t level)
      : interpreter_(interpreter),
        stmt_(stmt),
        scope_(std::move(scope)),
        items_(std::move(items)),
        level_(level) {}

  void MoveTo(size_t index) { index_ = index; }
  std::string_view TypeName() const override { return "LoopContext"; }
  bool Callable() const override { return stmt_.recursive; }
  Value Call(Runtime& rt, CallArgs& args) override;
  const Value* FindAttr(Runtime& rt, std::string_view name, Value* scratch) override;
  // loop.cycle(...) and loop.changed(...).
  Value Cycle(const CallArgs& args) const;
  Value Changed(Runtime& rt, const CallArgs& args);

 private:
  Interpreter* const interpreter_;
  const Stmt& stmt_;
  const ScopePtr scope_;
  const std::shared_ptr<const List> items_;
  const int64_t level_;
  size_t index_ = 0;
  ListPtr last_changed_;
};

}  // namespace terrace::jinja

#endif  // TERRACE_TEXT_JINJA_INTERPRETER_OBJECTS_H_
