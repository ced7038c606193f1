// Guesses what follows by looking up what followed the last few tokens when they stood together
// before (prompt lookup): right often where answers quote their prompts. Belongs to one sequence;
// used by one thread.
#ifndef TERRACE_ENGINE_NGRAM_INDEX_H_
#define TERRACE_ENGINE_NGRAM_INDEX_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace terrace::engine {

class NgramIndex {
 public:
  // Up to `count` guesses of what follows `tokens`, which must begin with those of the calls
  // before. Empty if its last two tokens never stood together earlier.
  std::vector<int32_t> Guess(std::span<const int32_t> tokens, int32_t count);

 private:
  static constexpr std::array<size_t, 2> kLengths = {4, 2};  // longer matches are surer: first
  // For each length: from a hash of the n-gram to where the token after it stands.
  std::array<absl::flat_hash_map<uint64_t, uint32_t>, kLengths.size()> after_;
  size_t indexed_ = 0;  // n-grams that end before this position are in after_
};

}  // namespace terrace::engine

#endif  // TERRACE_ENGINE_NGRAM_INDEX_H_
