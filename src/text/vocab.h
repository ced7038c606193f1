// The token table: spellings in one arena, types, scores, and a look-up by spelling. Immutable
// after Create, safe to read from many threads.
#ifndef TERRACE_TEXT_VOCAB_H_
#define TERRACE_TEXT_VOCAB_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "base/hash.h"
#include "text/tokenizer.h"

namespace terrace {

class Vocab {
 public:
  // Checks tokens, scores and types of `config`, and the special ids, and copies them.
  static absl::StatusOr<std::unique_ptr<Vocab>> Create(const TokenizerConfig& config);

  Vocab(const Vocab&) = delete;
  Vocab& operator=(const Vocab&) = delete;

  int32_t size() const { return static_cast<int32_t>(types_.size()); }
  bool Contains(int32_t id) const { return id >= 0 && id < size(); }
  // REQUIRES of these: Contains(id).
  std::string_view Text(int32_t id) const { return View(static_cast<uint32_t>(id)); }
  TokenType Type(int32_t id) const { return types_[id]; }
  float Score(int32_t id) const { return scores_.empty() ? 0 : scores_[id]; }
  bool IsEndOfGeneration(int32_t id) const { return end_of_generation_[id]; }

  // The id with this spelling, or -1. Of several the last.
  int32_t Find(std::string_view text) const;
  // Like Find, but only what ordinary text may become: normal and user-defined tokens.
  int32_t FindOrdinary(std::string_view text) const;
  // The token for one raw byte ("<0x41>"), or -1.
  int32_t ByteToken(uint8_t byte) const { return byte_tokens_[byte]; }
  // The byte that a token of type kByte stands for.
  uint8_t ByteValue(int32_t id) const;
  size_t max_token_bytes() const { return max_token_bytes_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  size_t bytes() const;

 private:
  struct IdHash {
    using is_transparent = void;
    const Vocab* vocab;
    size_t operator()(uint32_t id) const { return Hash64(vocab->View(id)); }
    size_t operator()(std::string_view text) const { return Hash64(text); }
  };
  struct IdEqual {
    using is_transparent = void;
    const Vocab* vocab;
    bool operator()(uint32_t a, uint32_t b) const { return vocab->View(a) == vocab->View(b); }
    bool operator()(uint32_t a, std::string_view b) const { return vocab->View(a) == b; }
    bool operator()(std::string_view a, uint32_t b) const { return a == vocab->View(b); }
  };

  Vocab() = default;
  absl::Status Load(const TokenizerConfig& config);
  void MarkEndOfGeneration(const TokenizerConfig& config);
  void FillByteTokens(bool by_spelling);
  std::string_view View(uint32_t id) const {
    return {arena_.data() + offsets_[id], offsets_[id + 1] - offsets_[id]};
  }

  std::string arena_;
  std::vector<uint32_t> offsets_;
  std::vector<TokenType> types_;
  std::vector<float> scores_;
  std::vector<bool> end_of_generation_;
  std::array<int32_t, 256> byte_tokens_;
  absl::flat_hash_set<uint32_t, IdHash, IdEqual> ids_{0, IdHash{this}, IdEqual{this}};
  size_t max_token_bytes_ = 0;
  std::vector<std::string> warnings_;
};

// User-defined tokens that a template writes to part turns and tool results are markers. Other
// user-defined tokens (runs of spaces, HTML tags) are ordinary text whoever wrote them.
bool IsMarkerSpelling(std::string_view text);

}  // namespace terrace

#endif  // TERRACE_TEXT_VOCAB_H_
