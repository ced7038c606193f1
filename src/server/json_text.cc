#include "server/json_text.h"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>

namespace terrace::server {

void AppendJsonString(std::string_view text, std::string* out) {
  out->push_back('"');
  size_t clean = 0;  // text[clean, i) needs no escape and has not been copied yet
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c != '"' && c != '\\' && c != 0x7f) continue;
    out->append(text.substr(clean, i - clean));
    clean = i + 1;
    switch (c) {
      case '"':
        out->append("\\\"");
        break;
      case '\\':
        out->append("\\\\");
        break;
      case '\n':
        out->append("\\n");
        break;
      case '\r':
        out->append("\\r");
        break;
      case '\t':
        out->append("\\t");
        break;
      default:
        fmt::format_to(std::back_inserter(*out), "\\u{:04x}", c);
    }
  }
  out->append(text.substr(clean));
  out->push_back('"');
}

void AppendJsonNumber(float value, std::string* out) {
  if (std::isnan(value)) {
    out->append("null");
  } else if (std::isinf(value)) {
    out->append(value > 0 ? "9999.0" : "-9999.0");
  } else {
    fmt::format_to(std::back_inserter(*out), "{}", value);
  }
}

}  // namespace terrace::server
