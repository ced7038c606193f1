// The ranked merges of a BPE vocabulary over symbol ids: which two symbols may join, how early, and
// into what. Symbols are the vocabulary's tokens, and beyond them the strings that occur only
// inside merges. Immutable after Create.
#ifndef TERRACE_TEXT_MERGE_TABLE_H_
#define TERRACE_TEXT_MERGE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "base/hash.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

namespace terrace {

class MergeTable {
 public:
  // From config.merges or config.merge_pairs. InvalidArgument if both or neither are given, or an
  // entry cannot be split into two parts.
  static absl::StatusOr<std::unique_ptr<MergeTable>> Create(const TokenizerConfig& config,
                                                            const Vocab& vocab);
  MergeTable(const MergeTable&) = delete;
  MergeTable& operator=(const MergeTable&) = delete;

  // The id of the symbol spelled `text`, or -1: below vocab.size() a token.
  int32_t FindSymbol(const Vocab& vocab, std::string_view text) const;
  // True if `left` and `right` may join; a lower rank joins earlier.
  bool Find(int32_t left, int32_t right, uint32_t* rank, int32_t* id) const {
    auto at = ranks_.find(std::pair(left, right));
    if (at == ranks_.end()) return false;
    *rank = *at;
    *id = entries_[*at].joined;
    return true;
  }
  size_t size() const { return entries_.size(); }
  size_t bytes() const;

 private:
  struct Entry {
    int32_t left, right, joined;
  };
  // The set holds ranks, and finds them by the pair of ids in the entry.
  struct PairHash {
    using is_transparent = void;
    const MergeTable* table;
    size_t operator()(const std::pair<int32_t, int32_t>& pair) const {
      return Mix(pair.first, pair.second);
    }
    size_t operator()(uint32_t rank) const {
      return Mix(table->entries_[rank].left, table->entries_[rank].right);
    }
    static size_t Mix(int32_t left, int32_t right) {
      uint64_t x = (uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right)) *
                   0x9e3779b97f4a7c15ull;
      return x ^ x >> 29;
    }
  };
  struct PairEqual {
    using is_transparent = void;
    const MergeTable* table;
    bool operator()(uint32_t rank, const std::pair<int32_t, int32_t>& pair) const {
      return table->entries_[rank].left == pair.first && table->entries_[rank].right == pair.second;
    }
    bool operator()(const std::pair<int32_t, int32_t>& pair, uint32_t rank) const {
      return (*this)(rank, pair);
    }
    bool operator()(uint32_t a, uint32_t b) const {
      return (*this)(a, std::pair(table->entries_[b].left, table->entries_[b].right));
    }
  };

  MergeTable() = default;
  void Add(const Vocab& vocab, std::string_view left, std::string_view right);
  int32_t Intern(const Vocab& vocab, std::string_view text);

  std::vector<Entry> entries_;  // By rank.
  absl::flat_hash_set<uint32_t, PairHash, PairEqual> ranks_{0, PairHash{this}, PairEqual{this}};
  absl::flat_hash_map<std::string, int32_t> extra_;  // Symbols that are no tokens.
  int32_t next_extra_ = 0;
  std::string continuing_prefix_;  // stands before `right`, and not in what the merge makes
};

}  // namespace terrace

#endif  // TERRACE_TEXT_MERGE_TABLE_H_
