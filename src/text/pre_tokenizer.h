// Splits text into the pieces inside which byte-level BPE merges, by the patterns that each model
// family was trained with. Immutable and thread-safe after Create.
#ifndef TERRACE_TEXT_PRE_TOKENIZER_H_
#define TERRACE_TEXT_PRE_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "text/tokenizer.h"

namespace terrace {

// One family: its patterns are applied in turn, each to the pieces that the ones before it left;
// what a pattern matches becomes a piece, and so does what lies between matches.
struct PrePatterns {
  std::vector<std::string_view> names;
  std::vector<std::string_view> patterns;
  bool ignore_merges = false;  // A piece that is a token as a whole is taken as it is.
  bool add_bos = false;        // Where the file does not say.
};

// The family called `name`, or null.
const PrePatterns* FindPrePatterns(std::string_view name);
// All names, for messages.
std::vector<std::string> PrePatternNames();

class PreTokenizer {
 public:
  // [begin, end) in the text.
  struct Piece {
    uint32_t begin;
    uint32_t end;
  };

  // `family` must outlive the result. Internal if a pattern does not compile.
  static absl::StatusOr<std::unique_ptr<PreTokenizer>> Create(const PrePatterns* family);
  ~PreTokenizer();

  // The pieces of `text` in order; together they are all of it. Ill-formed bytes are pieces of
  // their own. A pattern that needs more than a few steps a byte is given up, and what it was
  // looking at is split in windows. ResourceExhausted if there is no memory for matching.
  // REQUIRES: text.size() < 2^32.
  absl::StatusOr<std::vector<Piece>> Split(std::string_view text, EncodeStats* stats) const;

  bool ignore_merges() const { return family_->ignore_merges; }
  bool add_bos() const { return family_->add_bos; }
  size_t bytes() const;

 private:
  struct Compiled;  // The PCRE2 objects.

  PreTokenizer();

  const PrePatterns* family_ = nullptr;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace terrace

#endif  // TERRACE_TEXT_PRE_TOKENIZER_H_
