// Values as text, exactly as Python writes them: str(), repr(), % formatting, str.format, and
// strftime.
#ifndef TERRACE_TEXT_JINJA_FORMAT_H_
#define TERRACE_TEXT_JINJA_FORMAT_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "text/jinja/runtime.h"
#include "text/jinja/value.h"

namespace terrace::jinja {

// Python's shortest repr of a float: "1.0", "1e+16", "nan".
std::string FormatDouble(double v);
// str(v). Text of a container is untrusted as a whole if any text in it is.
Str ToStr(Runtime& rt, const Value& v);
Str Repr(Runtime& rt, const Value& v);
// format % args.
Str PercentFormat(Runtime& rt, const Str& format, const Value& args);
// format.format(args).
Str FormatMethod(Runtime& rt, const Str& format, const CallArgs& args);
// strftime in the C locale and UTC. Unknown directives stay as they are.
std::string FormatTime(std::string_view format, int64_t unix_seconds);

}  // namespace terrace::jinja

#endif  // TERRACE_TEXT_JINJA_FORMAT_H_
