#include "text/utf8.h"

#include <algorithm>

namespace terrace {

size_t Utf8CharLength(std::string_view text, size_t at, bool* partial) {
  if (partial != nullptr) *partial = false;
  const uint8_t lead = static_cast<uint8_t>(text[at]);
  if (lead < 0x80) return 1;
  size_t length = 0;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
  } else {
    return 0;
  }
  for (size_t i = 1; i < length; ++i) {
    if (at + i >= text.size()) {
      if (partial != nullptr) *partial = true;
      return 0;
    }
    uint8_t low = 0x80, high = 0xBF;
    // No overlong forms, no surrogates, nothing above U+10FFFF: all show in the second byte.
    if (i == 1 && lead == 0xE0) low = 0xA0;
    if (i == 1 && lead == 0xED) high = 0x9F;
    if (i == 1 && lead == 0xF0) low = 0x90;
    if (i == 1 && lead == 0xF4) high = 0x8F;
    const uint8_t byte = static_cast<uint8_t>(text[at + i]);
    if (byte < low || byte > high) return 0;
  }
  return length;
}

size_t Utf8IncompleteTail(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const uint8_t byte = static_cast<uint8_t>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    bool partial = false;
    Utf8CharLength(text, text.size() - back, &partial);
    return partial ? back : 0;
  }
  return 0;
}

void AppendUtf8(uint32_t c, std::string* out) {
  auto put = [out](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

}  // namespace terrace
