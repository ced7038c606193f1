#include "kv/sequence.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "base/units.h"

namespace terrace::kv {
namespace {

size_t BlocksFor(int32_t tokens) {
  return static_cast<size_t>((tokens + kBlockTokens - 1) / kBlockTokens);
}

// Kernels only read a block that is shared; they take one array of addresses for both kinds.
std::byte* Address(const BlockRef& block) { return block->buffer.data(); }

}  // namespace

Sequence::Sequence(tier::TierManager* manager, Cache* cache, const BlockKey& root,
                   tier::Owner owner, uint64_t block_bytes)
    : manager_(manager),
      cache_(cache),
      root_(root),
      owner_(std::move(owner)),
      block_bytes_(AlignUp(block_bytes, tier::kBlockAlignment)),
      chain_(root) {}

void Sequence::Adopt(std::vector<BlockRef> blocks) {
  for (BlockRef& block : blocks) {
    chain_ = block->key;
    addresses_.push_back(Address(block));
    shared_.push_back(std::move(block));
    length_ += kBlockTokens;
  }
}

absl::Status Sequence::Reserve(int32_t tokens) {
  const size_t own_before = own_.size();
  while (addresses_.size() < BlocksFor(tokens)) {
    absl::StatusOr<tier::DeviceBuffer> buffer = manager_->Allocate(owner_, block_bytes_);
    if (!buffer.ok()) {
      addresses_.resize(shared_.size() + own_before);
      own_.resize(own_before);
      return buffer.status();
    }
    addresses_.push_back(buffer->data());
    own_.push_back(*std::move(buffer));
  }
  return absl::OkStatus();
}

void Sequence::Commit(std::span<const int32_t> tokens) {
  length_ += static_cast<int32_t>(tokens.size());
  if (cache_ == nullptr) return;
  size_t published = 0;
  for (int32_t token : tokens) {
    tail_.push_back(token);
    if (tail_.size() < kBlockTokens) continue;
    chain_ = ChildKey(chain_, tail_);
    tail_.clear();
    BlockRef block = cache_->Publish(chain_, std::move(own_[published++]));
    addresses_[shared_.size()] = Address(block);
    shared_.push_back(std::move(block));
  }
  own_.erase(own_.begin(), own_.begin() + static_cast<ptrdiff_t>(published));
}

void Sequence::TrimReserve() {
  const size_t keep = std::max(BlocksFor(length_), shared_.size());
  if (addresses_.size() <= keep) return;
  addresses_.resize(keep);
  own_.resize(keep - shared_.size());
}

void Sequence::Rewind(int32_t tokens) {
  length_ = std::min(length_, tokens);
  TrimReserve();
}

}  // namespace terrace::kv
