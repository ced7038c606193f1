// The built-in filters, tests, functions and methods by name. Every one takes its work out of the
// Runtime's budget.
#ifndef TERRACE_TEXT_JINJA_BUILTINS_H_
#define TERRACE_TEXT_JINJA_BUILTINS_H_

#include <string_view>

#include "text/jinja/value.h"

namespace terrace::jinja {

using Filter = Value (*)(Runtime& rt, const Value& input, const CallArgs& args);
using Test = bool (*)(Runtime& rt, const Value& input, const CallArgs& args);
using Function = Value (*)(Runtime& rt, const CallArgs& args);

// Null if there is none of that name.
Filter FindFilter(std::string_view name);
Test FindTest(std::string_view name);
Function FindFunction(std::string_view name);

// Whether values of this kind (str, list, dict) have the Python method `name`.
bool HasMethod(const Value& object, std::string_view name);
// Calls `object.name(args)`. REQUIRES: HasMethod.
Value CallMethod(Runtime& rt, const Value& object, std::string_view name, const CallArgs& args);

}  // namespace terrace::jinja

#endif  // TERRACE_TEXT_JINJA_BUILTINS_H_
