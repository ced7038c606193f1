// Python's string methods, shared by the methods and the filters of the language. All keep the
// provenance of every byte.
#ifndef TERRACE_TEXT_JINJA_METHODS_H_
#define TERRACE_TEXT_JINJA_METHODS_H_

#include <string_view>
#include <vector>

#include "text/jinja/runtime.h"
#include "text/jinja/value.h"

namespace terrace::jinja {

enum class Side : uint8_t { kBoth, kLeft, kRight };

// str.strip and friends; `chars` null means whitespace.
Str Strip(Runtime& rt, const Str& text, const Str* chars, Side side);
Str Upper(Runtime& rt, const Str& text);
Str Lower(Runtime& rt, const Str& text);
Str Capitalize(Runtime& rt, const Str& text);
// str.replace; `count` < 0 means all.
Str Replace(Runtime& rt, const Str& text, const Str& from, const Str& to, int64_t count);
std::vector<Value> SplitLines(Runtime& rt, const Str& text, bool keep_ends);
Str Center(Runtime& rt, const Str& text, int64_t width);
// Python's int(text, base) and float(text); false if it is not a number.
bool ParseInt(std::string_view text, int base, int64_t* out);
bool ParseFloat(std::string_view text, double* out);
bool IsLowerText(std::string_view text);
bool IsUpperText(std::string_view text);
// The parts of a join, each with str(), between separators.
Str Join(Runtime& rt, const Str& separator, const std::vector<Value>& parts, bool strict);

}  // namespace terrace::jinja

#endif  // TERRACE_TEXT_JINJA_METHODS_H_
