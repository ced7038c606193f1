// The byte-level alphabet of GPT-2: each of the 256 bytes is spelled as one printable character, so
// that vocabularies and merges are plain text. Printable Latin-1 stands for itself, the other 68
// bytes for U+0100 onwards. Immutable after construction.
#ifndef TERRACE_TEXT_BYTE_LEVEL_H_
#define TERRACE_TEXT_BYTE_LEVEL_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace terrace {

class ByteLevelAlphabet {
 public:
  ByteLevelAlphabet();

  // The spelling of one byte, a character of one or two UTF-8 bytes.
  const std::string& Spelling(uint8_t byte) const { return spelling_[byte]; }
  // The bytes that `text` spells; characters outside the alphabet are copied as they are.
  std::string Decode(std::string_view text) const;

 private:
  std::array<std::string, 256> spelling_;
  std::array<int16_t, 0x144> byte_of_;  // By code point; -1 where none.
};

}  // namespace terrace

#endif  // TERRACE_TEXT_BYTE_LEVEL_H_
