#include "text/byte_level.h"

#include "text/utf8.h"

namespace terrace {

ByteLevelAlphabet::ByteLevelAlphabet() {
  byte_of_.fill(-1);
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const uint32_t code_point = printable ? byte : next++;
    AppendUtf8(code_point, &spelling_[byte]);
    byte_of_[code_point] = static_cast<int16_t>(byte);
  }
}

std::string ByteLevelAlphabet::Decode(std::string_view text) const {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const uint8_t lead = static_cast<uint8_t>(text[at]);
    size_t length = Utf8CharLength(text, at);
    if (length == 0) length = 1;
    uint32_t code_point = lead;
    if (length == 2)
      code_point = (lead & 0x1Fu) << 6 | (static_cast<uint8_t>(text[at + 1]) & 0x3Fu);
    if (length <= 2 && code_point < byte_of_.size() && byte_of_[code_point] >= 0) {
      out.push_back(static_cast<char>(byte_of_[code_point]));
    } else {
      out += text.substr(at, length);
    }
    at += length;
  }
  return out;
}

}  // namespace terrace
