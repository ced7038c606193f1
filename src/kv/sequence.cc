#include "kv/sequence.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace terrace::kv {
namespace {

size_t BlocksFor(int32_t tokens) {
  return static_cast<size_t>((tokens + kBlockTokens - 1) / kBlockTokens);
}

}  // namespace

Sequence::Sequence(tier::TierManager* manager, std::string model, std::string tenant,
                   uint64_t block_bytes)
    : manager_(manager),
      owner_{std::move(model), std::move(tenant), tier::Kind::kKv},
      block_bytes_(block_bytes) {}

absl::Status Sequence::Reserve(int32_t tokens) {
  const size_t before = buffers_.size();
  while (buffers_.size() < BlocksFor(tokens)) {
    absl::StatusOr<tier::DeviceBuffer> buffer = manager_->Allocate(owner_, block_bytes_);
    if (!buffer.ok()) {
      buffers_.resize(before);
      addresses_.resize(before);
      return buffer.status();
    }
    addresses_.push_back(buffer->data());
    buffers_.push_back(*std::move(buffer));
  }
  return absl::OkStatus();
}

void Sequence::Commit(int32_t tokens) { length_ = std::max(length_, tokens); }

void Sequence::Truncate(int32_t tokens) {
  length_ = std::min(length_, tokens);
  const size_t keep = std::min(buffers_.size(), BlocksFor(length_));
  buffers_.resize(keep);
  addresses_.resize(keep);
}

}  // namespace terrace::kv
