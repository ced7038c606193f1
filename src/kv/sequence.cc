#include "kv/sequence.h"

#include <algorithm>
#include <cstring>
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

// Kernels read keys in pieces of this many tokens, from the one in which the window begins.
constexpr int32_t kSpan = 64;

}  // namespace

Sequence::Sequence(tier::TierManager* manager, Cache* cache, const BlockKey& root,
                   tier::Owner owner, uint64_t block_bytes)
    : manager_(manager),
      cache_(cache),
      root_(root),
      owner_(std::move(owner)),
      used_bytes_(block_bytes),
      block_bytes_(AlignUp(block_bytes, tier::kBlockAlignment)),
      chain_(root) {}

void Sequence::Adopt(std::vector<BlockRef> blocks) {
  for (BlockRef& block : blocks) {
    chain_ = block->key;
    addresses_.push_back(Address(block));
    shared_.push_back(std::move(block));
    length_ += kBlockTokens;
  }
  LetGo();
}

void Sequence::LetGo() {
  if (window_ == 0) return;
  const int32_t first = std::max(length_ - window_ + 1, 0) / kSpan * kSpan;
  const size_t end = std::min(static_cast<size_t>(first / kBlockTokens), shared_.size());
  for (; let_go_ < end; ++let_go_) {
    shared_[let_go_].reset();
    addresses_[let_go_] = nullptr;
  }
}

void Sequence::AdoptArriving(std::shared_ptr<Restore> restore) {
  for (size_t i = 0; i < restore->size(); ++i) addresses_.push_back(restore->address(i));
  length_ += static_cast<int32_t>(restore->size()) * kBlockTokens;
  arriving_ = std::move(restore);
}

absl::Status Sequence::AwaitLayer(int32_t layer, const tier::CancelFlag* cancel) const {
  return arriving_ == nullptr ? absl::OkStatus() : arriving_->AwaitLayer(layer, cancel);
}

absl::Status Sequence::Settle(const tier::CancelFlag* cancel) {
  if (arriving_ == nullptr) return absl::OkStatus();
  RETURN_IF_ERROR(arriving_->AwaitAll(cancel));
  for (BlockRef& block : arriving_->blocks()) {
    chain_ = block->key;
    addresses_[shared_.size()] = Address(block);
    shared_.push_back(std::move(block));
  }
  arriving_.reset();
  LetGo();
  return absl::OkStatus();
}

void Sequence::DropArriving() {
  if (arriving_ == nullptr) return;
  arriving_.reset();
  length_ = static_cast<int32_t>(shared_.size()) * kBlockTokens;
  addresses_.resize(shared_.size());
  own_.clear();
}

absl::Status Sequence::Reserve(int32_t tokens) {
  const size_t own_before = own_.size();
  while (addresses_.size() < BlocksFor(tokens)) {
    absl::StatusOr<tier::DeviceBuffer> buffer = manager_->Allocate(owner_, block_bytes_);
    if (!buffer.ok()) {
      addresses_.resize(front() + own_before);
      own_.resize(own_before);
      return buffer.status();
    }
    // What lay there may be another tenant's, and whole blocks go to files.
    if (block_bytes_ > used_bytes_ && manager_->unified()) {
      std::memset(buffer->data() + used_bytes_, 0, block_bytes_ - used_bytes_);
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
  LetGo();
}

void Sequence::TrimReserve() {
  const size_t keep = std::max(BlocksFor(length_), front());
  if (addresses_.size() <= keep) return;
  addresses_.resize(keep);
  own_.resize(keep - front());
}

void Sequence::Rewind(int32_t tokens) {
  length_ = std::min(length_, tokens);
  TrimReserve();
}

}  // namespace terrace::kv
