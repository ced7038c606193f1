// Token ids to text, one token at a time, for streaming. Each piece is well-formed UTF-8 and never
// part of a character: bytes that may yet become one are held back (at most three), and bytes that
// cannot are given as U+FFFD with the next byte that shows it. The pieces and what Finish gives,
// joined, are exactly what Decode gives for all ids at once.
//
// Not thread-safe; one object a stream. The tokenizer must outlive it.
#ifndef TERRACE_TEXT_DETOKENIZER_H_
#define TERRACE_TEXT_DETOKENIZER_H_

#include <cstdint>
#include <span>
#include <string>

#include "text/tokenizer.h"

namespace terrace {

struct DetokenizerOptions {
  // Gives control tokens as their spelling instead of nothing.
  bool render_special = false;
  // Drops the one space that a tokenizer with add_space_prefix() has put before the first token:
  // for turning a whole text back, not for the continuation of a prompt.
  bool strip_space_prefix = false;
};

class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer* tokenizer, DetokenizerOptions options = {})
      : tokenizer_(*tokenizer), options_(options) {}

  // The text that `id` completes; often empty.
  std::string Append(int32_t id);

  // Ends the text: bytes still held back are replaced, once, by one U+FFFD. Afterwards the object
  // is as new.
  std::string Finish();

 private:
  const Tokenizer& tokenizer_;
  const DetokenizerOptions options_;
  std::string held_;
  bool at_start_ = true;
};

// The text of `ids`.
std::string Decode(const Tokenizer& tokenizer, std::span<const int32_t> ids,
                   DetokenizerOptions options = {});

}  // namespace terrace

#endif  // TERRACE_TEXT_DETOKENIZER_H_
