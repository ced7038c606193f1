#include "text/grammar/scanner.h"

namespace terrace::grammar {

uint32_t Scanner::Character() {
  const auto lead = static_cast<uint8_t>(Byte());
  const size_t more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : lead >= 0xC0 ? 1 : 0;
  if (more == 0 || at_ + more > text_.size()) return lead;
  uint32_t point = lead & (0x3Fu >> more);
  for (size_t i = 0; i < more; ++i) {
    const auto byte = static_cast<uint8_t>(text_[at_ + i]);
    if ((byte & 0xC0) != 0x80) return lead;
    point = point << 6 | (byte & 0x3F);
  }
  at_ += more;
  return point;
}

std::optional<uint32_t> Scanner::Hex(int digits) {
  uint32_t value = 0;
  for (int i = 0; i < digits; ++i) {
    const char c = Peek(static_cast<size_t>(i));
    if (c >= '0' && c <= '9') {
      value = value * 16 + static_cast<uint32_t>(c - '0');
    } else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')) {
      value = value * 16 + static_cast<uint32_t>((c | 0x20) - 'a' + 10);
    } else {
      return std::nullopt;
    }
  }
  at_ += static_cast<size_t>(digits);
  return value;
}

std::optional<int32_t> Scanner::Number() {
  int32_t value = 0;
  int digits = 0;
  for (; Peek() >= '0' && Peek() <= '9'; ++digits) {
    if (digits == 9) return std::nullopt;
    value = value * 10 + (Byte() - '0');
  }
  if (digits == 0) return std::nullopt;
  return value;
}

}  // namespace terrace::grammar
