// Code-point access to UTF-8 text for Python's string semantics (indexing, slicing and case by code
// point). Ill-formed bytes never fail: each one counts as one code point of its own value.
#ifndef TERRACE_TEXT_JINJA_UTF8_H_
#define TERRACE_TEXT_JINJA_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace terrace::jinja {

struct CodePoint {
  uint32_t value;
  uint32_t bytes;  // 1 to 4
  bool valid;
};

// The code point that starts at `pos` (< text.size()).
CodePoint DecodeAt(std::string_view text, size_t pos);
// The byte position of the code point that ends at `end` (> 0).
size_t PreviousAt(std::string_view text, size_t end);
size_t CountCodePoints(std::string_view text);
// Byte offset of code point `index`; text.size() if there are fewer.
size_t ByteOffset(std::string_view text, size_t index);
void AppendUtf8(uint32_t code_point, std::string* out);

// Python's str.isspace for one code point.
bool IsSpace(uint32_t code_point);
// Length in bytes of the whitespace at the start or end of `text`.
size_t LeadingSpace(std::string_view text);
size_t TrailingSpace(std::string_view text);
// The line boundary of str.splitlines at `pos`: its length in bytes (2 for CR LF), or 0.
size_t LineBreakAt(std::string_view text, size_t pos);

bool IsLower(uint32_t code_point);
bool IsUpper(uint32_t code_point);
bool IsAlpha(uint32_t code_point);
bool IsDecimal(uint32_t code_point);
// Appends the full case mapping of `code_point` ("ß" becomes "SS").
void AppendUpper(uint32_t code_point, std::string* out);
void AppendLower(uint32_t code_point, std::string* out);

}  // namespace terrace::jinja

#endif  // TERRACE_TEXT_JINJA_UTF8_H_
