// Finds the spellings of special tokens in text: a trie, longest match at the leftmost place.
// Immutable once filled.
#ifndef TERRACE_TEXT_SPECIAL_MATCHER_H_
#define TERRACE_TEXT_SPECIAL_MATCHER_H_

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace terrace {

class SpecialMatcher {
 public:
  struct Match {
    size_t begin = 0;
    size_t length = 0;
    int32_t id = -1;  // -1: none found.
  };

  // Later spellings replace equal earlier ones. Empty ones are passed over.
  void Add(std::string_view spelling, int32_t id);

  // The first match at or after `from`, the longest there, among those that
  // `allowed(begin, length, id)` admits.
  template <typename Allowed>
  Match Next(std::string_view text, size_t from, const Allowed& allowed) const {
    for (size_t begin = from; begin < text.size(); ++begin) {
      if (!first_[static_cast<uint8_t>(text[begin])]) continue;
      Match best;
      uint32_t node = 0;
      for (size_t at = begin; at < text.size(); ++at) {
        node = Child(node, text[at]);
        if (node == 0) break;
        const int32_t id = ids_[node];
        if (id >= 0 && allowed(begin, at + 1 - begin, id)) best = {begin, at + 1 - begin, id};
      }
      if (best.id >= 0) return best;
    }
    return {};
  }

  size_t bytes() const {
    return children_.capacity() * (sizeof(uint64_t) * 2 + 1) + ids_.capacity() * sizeof(int32_t);
  }

 private:
  static uint64_t Key(uint32_t node, char c) {
    return uint64_t{node} << 8 | static_cast<uint8_t>(c);
  }
  // The child of `node` along `c`, or 0 (the root is nobody's child).
  uint32_t Child(uint32_t node, char c) const {
    auto at = children_.find(Key(node, c));
    return at == children_.end() ? 0 : at->second;
  }

  std::bitset<256> first_;  // Bytes with which some spelling begins.
  absl::flat_hash_map<uint64_t, uint32_t> children_;
  std::vector<int32_t> ids_{-1};  // By node; -1 where no spelling ends.
};

}  // namespace terrace

#endif  // TERRACE_TEXT_SPECIAL_MATCHER_H_
