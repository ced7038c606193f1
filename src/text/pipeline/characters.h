// Classes of characters as the steps of a tokenizer pipeline name them, and walking text whose
// bytes may be ill-formed.
#ifndef TERRACE_TEXT_PIPELINE_CHARACTERS_H_
#define TERRACE_TEXT_PIPELINE_CHARACTERS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "text/jinja/utf8.h"
#include "text/utf8.h"

namespace terrace {

bool IsWhiteSpace(uint32_t c);   // Unicode's White_Space
bool IsNumber(uint32_t c);       // categories Nd, Nl, No
bool IsPunctuation(uint32_t c);  // categories P*, and the ASCII symbols
bool IsMark(uint32_t c);         // categories M*
bool IsNonSpacingMark(uint32_t c);
bool IsOther(uint32_t c);        // categories C*
bool IsChineseChar(uint32_t c);  // the ideograph blocks that BERT sets apart

// Calls each(offset, character) for every character of `text`; an ill-formed byte is one that is
// not valid.
template <typename Each>
void ForEachCharacter(std::string_view text, const Each& each) {
  for (size_t at = 0; at < text.size();) {
    const jinja::CodePoint c = jinja::DecodeAt(text, at);
    each(at, c);
    at += c.bytes;
  }
}

// `text` with every run of well-formed characters passed through `change(run)`, which gives a
// string; ill-formed bytes stay as they are.
template <typename Change>
std::string ChangeWellFormed(std::string_view text, const Change& change) {
  std::string out;
  size_t begin = 0;
  auto flush = [&](size_t end) {
    if (end > begin) out += change(text.substr(begin, end - begin));
  };
  ForEachCharacter(text, [&](size_t at, jinja::CodePoint c) {
    if (c.valid) return;
    flush(at);
    out += text[at];
    begin = at + 1;
  });
  flush(text.size());
  return out;
}

}  // namespace terrace

#endif  // TERRACE_TEXT_PIPELINE_CHARACTERS_H_
