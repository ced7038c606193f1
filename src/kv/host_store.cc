#include "kv/host_store.h"

#include <utility>

#include <fmt/format.h>

#include "base/status.h"
#include "base/units.h"

namespace terrace::kv {

bool HostStore::Contains(const BlockKey& key) const {
  absl::MutexLock lock(&mutex_);
  return entries_.contains(key);
}

void HostStore::DropOldestLocked() {
  auto entry = entries_.find(order_.front());
  state_.bytes -= entry->second.memory->bytes();
  --state_.blocks;
  entries_.erase(entry);
  order_.pop_front();
}

absl::Status HostStore::Keep(const Block& block, const tier::Owner& owner) {
  const uint64_t bytes = block.buffer.bytes();
  {
    absl::MutexLock lock(&mutex_);
    auto entry = entries_.find(block.key);
    if (entry != entries_.end()) {
      order_.splice(order_.end(), order_, entry->second.order);
      return absl::OkStatus();
    }
    while (state_.bytes + bytes > cap_bytes_ && !order_.empty()) DropOldestLocked();
    if (state_.bytes + bytes > cap_bytes_) {
      ++state_.refused;
      return absl::ResourceExhaustedError(fmt::format("a KV block of {} does not fit the cap of {}",
                                                      FormatBytes(bytes), FormatBytes(cap_bytes_)));
    }
    state_.bytes += bytes;  // taken while the bytes are on their way
  }
  absl::StatusOr<tier::HostBuffer> memory = manager_->AllocateHost(owner, bytes);
  absl::Status status = memory.status();
  if (status.ok()) {
    status = manager_->CopyToHost(block.buffer.data(), {memory->data(), bytes});
  }
  absl::MutexLock lock(&mutex_);
  if (!status.ok() || entries_.contains(block.key)) {  // or another thread copied it meanwhile
    state_.bytes -= bytes;
    state_.refused += !status.ok();
    return status;
  }
  order_.push_back(block.key);
  entries_[block.key] = {std::make_shared<tier::HostBuffer>(*std::move(memory)),
                         std::prev(order_.end())};
  ++state_.blocks;
  ++state_.kept;
  return absl::OkStatus();
}

absl::Status HostStore::Read(const BlockKey& key, std::byte* to, uint64_t bytes) {
  std::shared_ptr<tier::HostBuffer> memory;
  {
    absl::MutexLock lock(&mutex_);
    auto entry = entries_.find(key);
    if (entry == entries_.end() || entry->second.memory->bytes() != bytes) {
      return absl::NotFoundError("the block is not in host memory");
    }
    order_.splice(order_.end(), order_, entry->second.order);
    memory = entry->second.memory;
  }
  return manager_->CopyToDevice({memory->data(), bytes}, to);
}

void HostStore::Clear() {
  absl::MutexLock lock(&mutex_);
  while (!order_.empty()) DropOldestLocked();
}

HostStoreState HostStore::State() const {
  absl::MutexLock lock(&mutex_);
  return state_;
}

absl::Status HostStore::CheckInvariants() const {
  absl::MutexLock lock(&mutex_);
  uint64_t bytes = 0;
  for (const auto& [key, entry] : entries_) bytes += entry.memory->bytes();
  if (entries_.size() != order_.size() || entries_.size() != state_.blocks ||
      bytes > state_.bytes || state_.bytes > cap_bytes_) {
    return absl::InternalError(fmt::format("KV in host memory: {} bytes are held, {} counted of {}",
                                           bytes, state_.bytes, cap_bytes_));
  }
  return absl::OkStatus();
}

}  // namespace terrace::kv
