// ASCII text helpers over std::string_view (no locale, no copies unless said).
#ifndef TERRACE_BASE_TEXT_H_
#define TERRACE_BASE_TEXT_H_

#include <string>
#include <string_view>
#include <vector>

namespace terrace {

std::string_view StripSpace(std::string_view text);
std::string ToLower(std::string_view text);
// The parts between `separator`s, empty parts included; one part for empty text.
std::vector<std::string_view> Split(std::string_view text, char separator);
// True if `text` is well-formed UTF-8 (no surrogates, no overlong forms, at most U+10FFFF).
bool IsValidUtf8(std::string_view text);
// `text` with each maximal ill-formed part replaced by U+FFFD.
std::string ToValidUtf8(std::string_view text);
// The one of `names` nearest to `name` by edit distance, or "" if none is near (for "did you
// mean").
std::string NearestName(std::string_view name, const std::vector<std::string>& names);

}  // namespace terrace

#endif  // TERRACE_BASE_TEXT_H_
