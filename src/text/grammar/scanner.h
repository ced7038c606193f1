// Characters of a grammar's or pattern's source text, one at a time. Not thread-safe.
#ifndef TERRACE_TEXT_GRAMMAR_SCANNER_H_
#define TERRACE_TEXT_GRAMMAR_SCANNER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace terrace::grammar {

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  size_t position() const { return at_; }
  void Seek(size_t position) { at_ = position; }
  bool AtEnd() const { return at_ >= text_.size(); }
  // The byte `ahead` of here; 0 past the end.
  char Peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool StartsWith(std::string_view word) const { return text_.substr(at_).starts_with(word); }
  bool Take(std::string_view word) {
    if (!StartsWith(word)) return false;
    at_ += word.size();
    return true;
  }
  char Byte() { return text_[at_++]; }
  // The next character, read as UTF-8; a byte that is not is taken as its value.
  uint32_t Character();
  // `digits` hexadecimal digits; nothing, and the place stays, if they are not there.
  std::optional<uint32_t> Hex(int digits);
  // A decimal number of at most nine digits.
  std::optional<int32_t> Number();

 private:
  const std::string_view text_;
  size_t at_ = 0;
};

}  // namespace terrace::grammar

#endif  // TERRACE_TEXT_GRAMMAR_SCANNER_H_
