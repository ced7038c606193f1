// The KV of one sequence: whole blocks shared with the prefix cache, then blocks of its own, each
// booked in the ledger, grown as tokens arrive. Knows bytes and positions, not heads. Used by one
// thread at a time.
#ifndef TERRACE_KV_SEQUENCE_H_
#define TERRACE_KV_SEQUENCE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kv/block_key.h"
#include "kv/cache.h"
#include "tier/tier_manager.h"

namespace terrace::kv {

class Sequence {
 public:
  // `block_bytes` of one block of the model; `root` of its key chain. `cache` may be null: then
  // nothing is shared. Both `manager` and `cache` must outlive the sequence.
  Sequence(tier::TierManager* manager, Cache* cache, const BlockKey& root, tier::Owner owner,
           uint64_t block_bytes);

  // Begins with cached blocks. REQUIRES: an empty sequence, or one that ends where `blocks` begin,
  // at a block's border.
  void Adopt(std::vector<BlockRef> blocks);
  // Makes room for `tokens` tokens in all. ResourceExhausted if memory cannot be had: then what was
  // there before is untouched.
  absl::Status Reserve(int32_t tokens);
  // Says that `tokens`, next after those committed before, now have valid KV. Blocks that are full
  // by that are published to the cache. REQUIRES: room for them.
  void Commit(std::span<const int32_t> tokens);
  // Gives back room that Reserve made and no committed token needs.
  void TrimReserve();
  // Forgets committed tokens from `tokens` on (guesses that were wrong). REQUIRES: no cache.
  void Rewind(int32_t tokens);

  int32_t length() const { return length_; }  // committed tokens
  int32_t shared_tokens() const { return static_cast<int32_t>(shared_.size()) * kBlockTokens; }
  std::span<const BlockRef> shared_blocks() const { return shared_; }
  std::span<std::byte* const> blocks() const { return addresses_; }
  // Of the blocks that nobody else pays for.
  uint64_t own_bytes() const { return own_.size() * block_bytes_; }
  uint64_t block_bytes() const { return block_bytes_; }
  const tier::Owner& owner() const { return owner_; }
  const BlockKey& root() const { return root_; }

 private:
  tier::TierManager* manager_;
  Cache* cache_;
  BlockKey root_;
  tier::Owner owner_;
  uint64_t block_bytes_;
  int32_t length_ = 0;
  BlockKey chain_;                       // key of the last full block, or the root
  std::vector<int32_t> tail_;            // committed tokens of the last, partial block
  std::vector<BlockRef> shared_;         // full blocks, in order
  std::vector<tier::DeviceBuffer> own_;  // what follows them
  std::vector<std::byte*> addresses_;    // of both, as the operators want them
};

}  // namespace terrace::kv

#endif  // TERRACE_KV_SEQUENCE_H_
