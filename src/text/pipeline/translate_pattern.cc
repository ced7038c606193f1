#include <algorithm>
#include <array>

#include "text/pipeline/pipeline_json.h"

namespace terrace {
namespace {

// Oniguruma's \p{Han} is the script; PCRE2's would be its extensions, which hold more characters.
constexpr std::array<std::string_view, 24> kScripts = {
    "Han",    "Hiragana", "Katakana",  "Hangul",   "Bopomofo", "Latin",    "Greek",      "Cyrillic",
    "Arabic", "Hebrew",   "Thai",      "Lao",      "Tibetan",  "Bengali",  "Devanagari", "Tamil",
    "Telugu", "Kannada",  "Malayalam", "Gujarati", "Gurmukhi", "Georgian", "Armenian",   "Khmer"};

bool IsHex(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

// The length of the escape that begins at pattern[at], and its translation.
size_t TranslateEscape(std::string_view pattern, size_t at, std::string* out) {
  const std::string_view rest = pattern.substr(at);
  if (rest.size() >= 6 && rest[1] == 'u' &&
      std::all_of(rest.begin() + 2, rest.begin() + 6, IsHex)) {
    out->append("\\x{").append(rest.substr(2, 4)).append("}");
    return 6;
  }
  if (rest.size() >= 4 && (rest[1] == 'p' || rest[1] == 'P') && rest[2] == '{') {
    const size_t close = rest.find('}');
    if (close != std::string_view::npos) {
      const std::string_view name = rest.substr(3, close - 3);
      out->append(rest.substr(0, 3));
      if (std::ranges::find(kScripts, name) != kScripts.end()) out->append("sc:");
      out->append(name).append("}");
      return close + 1;
    }
  }
  const size_t length = std::min<size_t>(rest.size(), 2);
  out->append(rest.substr(0, length));
  return length;
}

// The end (behind the bracket) of the class that begins at pattern[at], or npos.
size_t ClassEnd(std::string_view pattern, size_t at) {
  int depth = 0;
  for (size_t i = at; i < pattern.size(); ++i) {
    if (pattern[i] == '\\') {
      ++i;
    } else if (pattern[i] == '[') {
      ++depth;
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') ++i;
      if (i + 1 < pattern.size() && pattern[i + 1] == ']') ++i;
    } else if (pattern[i] == ']' && --depth == 0) {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

std::string TranslateEscapes(std::string_view pattern) {
  std::string out;
  for (size_t at = 0; at < pattern.size();) {
    if (pattern[at] == '\\') {
      at += TranslateEscape(pattern, at, &out);
    } else {
      out.push_back(pattern[at++]);
    }
  }
  return out;
}

// "[a&&[^b]]" as "(?:(?=[^b])[a])": a look-ahead for each further part.
std::string TranslateClass(std::string_view text) {
  const std::string_view inside = text.substr(1, text.size() - 2);
  std::vector<std::string_view> parts;
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i + 1 < inside.size(); ++i) {
    if (inside[i] == '\\') {
      ++i;
    } else if (inside[i] == '[') {
      ++depth;
    } else if (inside[i] == ']') {
      --depth;
    } else if (depth == 0 && inside[i] == '&' && inside[i + 1] == '&') {
      parts.push_back(inside.substr(begin, i - begin));
      begin = ++i + 1;
    }
  }
  parts.push_back(inside.substr(begin));
  if (parts.size() == 1 || inside.starts_with('^')) return TranslateEscapes(text);
  auto bracketed = [](std::string_view part) {
    const std::string translated = TranslateEscapes(part);
    return part.starts_with('[') && ClassEnd(part, 0) == part.size() ? translated
                                                                     : "[" + translated + "]";
  };
  std::string out = "(?:";
  for (size_t i = 1; i < parts.size(); ++i) out += "(?=" + bracketed(parts[i]) + ")";
  return out + bracketed(parts[0]) + ")";
}

}  // namespace

std::string TranslatePattern(std::string_view pattern) {
  std::string out;
  for (size_t at = 0; at < pattern.size();) {
    if (pattern[at] == '\\') {
      at += TranslateEscape(pattern, at, &out);
      continue;
    }
    const size_t end = pattern[at] == '[' ? ClassEnd(pattern, at) : std::string_view::npos;
    if (end == std::string_view::npos) {
      out.push_back(pattern[at++]);
    } else {
      out += TranslateClass(pattern.substr(at, end - at));
      at = end;
    }
  }
  return out;
}

}  // namespace terrace
