// JSON in and out: `tojson` exactly as Python's json.dumps, and input data as values.
#ifndef TERRACE_TEXT_JINJA_JSON_H_
#define TERRACE_TEXT_JINJA_JSON_H_

#include <string>

#include <boost/json/value.hpp>

#include "absl/status/statusor.h"
#include "text/jinja/runtime.h"
#include "text/jinja/value.h"

namespace terrace::jinja {

// Input data as a value. All of its strings, keys included, are marked `trusted` or not. Integers
// above 2^63-1 become floats. InvalidArgument if it nests deeper than kMaxValueDepth.
absl::StatusOr<Value> FromJson(const boost::json::value& json, bool trusted = false);

// `v` as the `tojson` filter writes it without arguments.
absl::StatusOr<std::string> ToJson(const Value& v);

// The `tojson` filter: arguments ensure_ascii (False), indent, separators, sort_keys. The result is
// untrusted as a whole if any text in it is.
Value ToJsonFilter(Runtime& rt, const Value& input, const CallArgs& args);
// The `from_json` filter: the value of JSON text, with the trust of the text.
Value FromJsonFilter(Runtime& rt, const Value& input, const CallArgs& args);

}  // namespace terrace::jinja

#endif  // TERRACE_TEXT_JINJA_JSON_H_
