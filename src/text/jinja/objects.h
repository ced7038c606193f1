// The small objects of the language: bound methods, functions and namespaces. (Macros and loops
// belong to the interpreter.)
#ifndef TERRACE_TEXT_JINJA_OBJECTS_H_
#define TERRACE_TEXT_JINJA_OBJECTS_H_

#include <string>
#include <string_view>
#include <utility>

#include "text/jinja/builtins.h"
#include "text/jinja/value.h"

namespace terrace::jinja {

// `object.name` of a str, list or dict, not yet called.
class BoundMethod final : public Object {
 public:
  BoundMethod(Value object, std::string name)
      : object_(std::move(object)), name_(std::move(name)) {}
  std::string_view TypeName() const override { return "builtin_function_or_method"; }
  bool Callable() const override { return true; }
  Value Call(Runtime& rt, CallArgs& args) override { return CallMethod(rt, object_, name_, args); }

 private:
  const Value object_;
  const std::string name_;
};

// A global function.
class BuiltinFunction final : public Object {
 public:
  explicit BuiltinFunction(Function function) : function_(function) {}
  std::string_view TypeName() const override { return "function"; }
  bool Callable() const override { return true; }
  Value Call(Runtime& rt, CallArgs& args) override { return function_(rt, args); }

 private:
  const Function function_;
};

// The only value that a template can change: {% set ns.name = value %}.
class Namespace final : public Object {
 public:
  std::string_view TypeName() const override { return "Namespace"; }
  const Value* FindAttr(Runtime&, std::string_view name, Value*) override {
    return values.Find(name);
  }
  void DropReferences() override { values.Clear(); }

  Dict values;
};

}  // namespace terrace::jinja

#endif  // TERRACE_TEXT_JINJA_OBJECTS_H_
