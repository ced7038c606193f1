// SentencePiece's precompiled map of characters ("nmt_nfkc" and the like): a double-array trie of
// what is replaced, and the replacements. The bytes are taken as hostile. Immutable, thread-safe.
#ifndef TERRACE_TEXT_PIPELINE_CHARACTER_MAP_H_
#define TERRACE_TEXT_PIPELINE_CHARACTER_MAP_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace terrace {

class CharacterMap {
 public:
  // From the map's bytes as a SentencePiece model or (in base64) a tokenizer.json holds them:
  // the trie's size in bytes, the trie, and the replacements, each ended by a zero byte.
  // InvalidArgument if they do not fit together.
  static absl::StatusOr<CharacterMap> Create(std::string_view bytes);

  // Replaces grapheme by grapheme where the map knows a whole one of at most 5 bytes, else
  // character by character.
  std::string Apply(std::string_view well_formed) const;

  size_t bytes() const { return units_.capacity() * sizeof(uint32_t) + replacements_.capacity(); }

 private:
  // The replacement for the whole of `key` or of a beginning of it; false if there is none.
  bool Find(std::string_view key, std::string_view* replacement) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

// The bytes that base64 `text` stands for; InvalidArgument if it is none.
absl::StatusOr<std::string> DecodeBase64(std::string_view text);

}  // namespace terrace

#endif  // TERRACE_TEXT_PIPELINE_CHARACTER_MAP_H_
