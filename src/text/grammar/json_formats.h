// The patterns of the string formats that JSON schemas name.
#ifndef TERRACE_TEXT_GRAMMAR_JSON_FORMATS_H_
#define TERRACE_TEXT_GRAMMAR_JSON_FORMATS_H_

#include <optional>
#include <string_view>

namespace terrace::grammar {

// A regular expression for the whole text; nothing for formats that are not known.
std::optional<std::string_view> FormatPattern(std::string_view format);

}  // namespace terrace::grammar

#endif  // TERRACE_TEXT_GRAMMAR_JSON_FORMATS_H_
