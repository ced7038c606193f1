// A compiled pattern that cuts text into what it matches and what lies between. Patterns may come
// from hostile files: matching is given up after a few steps a byte, never runs deep, and still
// gives ranges. Immutable and thread-safe.
#ifndef TERRACE_TEXT_TEXT_PATTERN_H_
#define TERRACE_TEXT_TEXT_PATTERN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "text/tokenizer.h"

namespace terrace {

// [begin, end) of a text.
struct TextRange {
  uint32_t begin = 0;
  uint32_t end = 0;
  bool match = false;
};

class TextPattern {
 public:
  // `pattern` in the syntax of PCRE2, with UTF and UCP. InvalidArgument with what is wrong where.
  static absl::StatusOr<TextPattern> Compile(std::string_view pattern);
  TextPattern(TextPattern&&) noexcept;
  TextPattern& operator=(TextPattern&&) noexcept;
  ~TextPattern();

  // Memory for matching, for one thread; reused from call to call.
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    bool ok() const;  // false: there was no memory for it

   private:
    friend class TextPattern;
    struct State;
    std::unique_ptr<State> state_;
  };

  // Appends the ranges of text[begin, end), which must be well-formed UTF-8, to `out`: in order,
  // together all of it, none empty; offsets are those of `text`. Look-around sees the ends of the
  // range as the ends of the text. A match that needs too many steps is given up, and what it was
  // looking at is cut in windows. REQUIRES: scratch->ok(), text.size() < 2^32.
  void Cut(std::string_view text, uint32_t begin, uint32_t end, Scratch* scratch,
           EncodeStats* stats, std::vector<TextRange>* out) const;

  size_t bytes() const;

 private:
  struct Code;
  explicit TextPattern(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

}  // namespace terrace

#endif  // TERRACE_TEXT_TEXT_PATTERN_H_
