#include "engine/ngram_index.h"

#include <algorithm>

#include "base/hash.h"

namespace terrace::engine {
namespace {

uint64_t HashOf(std::span<const int32_t> gram) { return Hash64(gram.data(), gram.size_bytes()); }

}  // namespace

std::vector<int32_t> NgramIndex::Guess(std::span<const int32_t> tokens, int32_t count) {
  // The n-gram at the very end is not indexed yet: it would only find itself.
  for (; indexed_ + 1 < tokens.size(); ++indexed_) {
    for (size_t i = 0; i < kLengths.size(); ++i) {
      const size_t length = kLengths[i];
      if (indexed_ + 1 < length) continue;
      const uint64_t hash = HashOf(tokens.subspan(indexed_ + 1 - length, length));
      after_[i][hash] = static_cast<uint32_t>(indexed_ + 1);
    }
  }
  for (size_t i = 0; i < kLengths.size(); ++i) {
    const size_t length = kLengths[i];
    if (tokens.size() <= length) continue;
    const std::span<const int32_t> gram = tokens.last(length);
    auto it = after_[i].find(HashOf(gram));
    if (it == after_[i].end()) continue;
    const size_t at = it->second;
    // Hashes may collide; a wrong guess costs time only, but a cheap look avoids it.
    if (!std::equal(gram.begin(), gram.end(),
                    tokens.begin() + static_cast<ptrdiff_t>(at - length))) {
      continue;
    }
    const size_t end = std::min(tokens.size(), at + static_cast<size_t>(std::max(count, 0)));
    return {tokens.begin() + static_cast<ptrdiff_t>(at),
            tokens.begin() + static_cast<ptrdiff_t>(end)};
  }
  return {};
}

}  // namespace terrace::engine
