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

  // Tokens that a later token can still see, if no layer looks back further: shared blocks before
  // them are let go (the cache may keep them), and their addresses are null. 0: all are kept.
  void set_window(int32_t window) { window_ = window; }

  // Begins with cached blocks. REQUIRES: an empty sequence, or one that ends where `blocks` begin,
  // at a block's border.
  void Adopt(std::vector<BlockRef> blocks);
  // Begins with blocks that are still on their way, at a block's border. They count as committed;
  // who computes with them waits for each layer (AwaitLayer), and for all of it (Settle) before
  // anything is committed behind them.
  void AdoptArriving(std::shared_ptr<Restore> restore);
  bool arriving() const { return arriving_ != nullptr; }
  // OK at once if nothing is on its way. Unavailable if what comes is no good; Cancelled.
  absl::Status AwaitLayer(int32_t layer, const tier::CancelFlag* cancel) const;
  absl::Status Settle(const tier::CancelFlag* cancel);
  // Forgets what is on its way: the sequence is as before AdoptArriving.
  void DropArriving();
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
  // Of those, the ones whose KV is there: all but what is on its way.
  int32_t ready() const { return arriving() ? shared_tokens() : length_; }
  int32_t shared_tokens() const { return static_cast<int32_t>(shared_.size()) * kBlockTokens; }
  // Without those let go.
  std::span<const BlockRef> shared_blocks() const {
    return std::span<const BlockRef>(shared_).subspan(let_go_);
  }
  std::span<std::byte* const> blocks() const { return addresses_; }
  size_t held_blocks() const { return addresses_.size() - let_go_; }
  // Of the blocks that nobody else pays for.
  uint64_t own_bytes() const { return own_.size() * block_bytes_; }
  uint64_t block_bytes() const { return block_bytes_; }
  const tier::Owner& owner() const { return owner_; }
  const BlockKey& root() const { return root_; }

 private:
  void LetGo();
  // Blocks that are not this sequence's own.
  size_t front() const { return shared_.size() + (arriving_ ? arriving_->size() : 0); }

  tier::TierManager* manager_;
  Cache* cache_;
  BlockKey root_;
  tier::Owner owner_;
  uint64_t used_bytes_;   // of a block; what follows them fills whole pages
  uint64_t block_bytes_;  // with that
  int32_t length_ = 0;
  int32_t window_ = 0;
  size_t let_go_ = 0;             // of shared_, at its beginning: null
  BlockKey chain_;                // key of the last full block, or the root
  std::vector<int32_t> tail_;     // committed tokens of the last, partial block
  std::vector<BlockRef> shared_;  // full blocks, in order
  // Full blocks that follow them; shared with the reads that fill them.
  std::shared_ptr<Restore> arriving_;
  std::vector<tier::DeviceBuffer> own_;  // what follows them
  std::vector<std::byte*> addresses_;    // of all, as the operators want them
};

}  // namespace terrace::kv

#endif  // TERRACE_KV_SEQUENCE_H_
