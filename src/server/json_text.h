// Writing JSON by hand where a tree of values would cost too much: once a token.
#ifndef TERRACE_SERVER_JSON_TEXT_H_
#define TERRACE_SERVER_JSON_TEXT_H_

#include <string>
#include <string_view>

namespace terrace::server {

// Appends `text` as a JSON string with its quotes. REQUIRES: `text` is valid UTF-8.
void AppendJsonString(std::string_view text, std::string* out);

// The shortest text that reads back as `value`; infinities become +-9999 and NaN null, as JSON has
// neither.
void AppendJsonNumber(float value, std::string* out);

inline std::string JsonString(std::string_view text) {
  std::string out;
  AppendJsonString(text, &out);
  return out;
}

}  // namespace terrace::server

#endif  // TERRACE_SERVER_JSON_TEXT_H_
