// UTF-8 sequence lengths, for code that walks bytes that may be ill-formed.
#ifndef TERRACE_TEXT_UTF8_H_
#define TERRACE_TEXT_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace terrace {

// The length (1 to 4) of the well-formed character that begins at `text[at]`, or 0 if none does.
// `*partial`, if not null, is set to true if the text ends inside a character that may yet become
// well-formed. REQUIRES: at < text.size().
size_t Utf8CharLength(std::string_view text, size_t at, bool* partial = nullptr);

// The number of bytes at the end of `text` that begin a character without ending it (0 to 3).
size_t Utf8IncompleteTail(std::string_view text);

// Appends the character `code_point` (at most U+10FFFF) to `*out`.
void AppendUtf8(uint32_t code_point, std::string* out);

}  // namespace terrace

#endif  // TERRACE_TEXT_UTF8_H_
