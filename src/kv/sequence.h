// The KV of one sequence: blocks of 16 tokens in device memory, each booked in the ledger, grown as
// tokens arrive. Knows bytes and positions, not heads. Used by one thread at a time.
#ifndef TERRACE_KV_SEQUENCE_H_
#define TERRACE_KV_SEQUENCE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tier/tier_manager.h"

namespace terrace::kv {

inline constexpr int32_t kBlockTokens = 16;

class Sequence {
 public:
  // `block_bytes` of one block of the model; `manager` must outlive the sequence.
  Sequence(tier::TierManager* manager, std::string model, std::string tenant,
           uint64_t block_bytes);

  // Makes room for `tokens` tokens in all. ResourceExhausted if memory cannot be had: then what was
  // there before is untouched.
  absl::Status Reserve(int32_t tokens);
  // Says that the first `tokens` tokens now hold valid KV. REQUIRES: room for them.
  void Commit(int32_t tokens);
  // Forgets the tokens from `tokens` on and gives back blocks that none of the rest needs.
  void Truncate(int32_t tokens);

  int32_t length() const { return length_; }  // committed tokens
  std::span<std::byte* const> blocks() const { return addresses_; }
  uint64_t bytes() const { return addresses_.size() * block_bytes_; }

 private:
  tier::TierManager* manager_;
  tier::Owner owner_;
  uint64_t block_bytes_;
  int32_t length_ = 0;
  std::vector<tier::DeviceBuffer> buffers_;
  std::vector<std::byte*> addresses_;  // of buffers_, as the operators want them
};

}  // namespace terrace::kv

#endif  // TERRACE_KV_SEQUENCE_H_
