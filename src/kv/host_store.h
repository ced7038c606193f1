// KV blocks in host memory, below a device with memory of its own: what has to leave the device is
// copied here and comes back over the device's link, without the disk. Booked in the ledger's host
// tier; within a cap of its own the least recently used goes first.
//
// Thread-safe. The manager must outlive it. Bytes never leave memory, so they carry no checksum.
#ifndef TERRACE_KV_HOST_STORE_H_
#define TERRACE_KV_HOST_STORE_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "kv/block.h"
#include "tier/tier_manager.h"

namespace terrace::kv {

struct HostStoreState {
  uint64_t blocks = 0;
  uint64_t bytes = 0;
  uint64_t kept = 0;     // blocks copied here since start
  uint64_t refused = 0;  // that found no room
};

class HostStore {
 public:
  HostStore(tier::TierManager* manager, uint64_t cap_bytes)
      : manager_(manager), cap_bytes_(cap_bytes) {}

  bool Contains(const BlockKey& key) const;
  // Copies `block` here, unless it is here, at the cost of older ones. ResourceExhausted if it does
  // not fit; the copy's errors. Waits for the device's link.
  absl::Status Keep(const Block& block, const tier::Owner& owner);
  // Copies the block to device memory at `to`. NotFound if it is gone or has another size.
  absl::Status Read(const BlockKey& key, std::byte* to, uint64_t bytes);
  void Clear();

  HostStoreState State() const;
  absl::Status CheckInvariants() const;

 private:
  struct Entry {
    // Shared with reads under way, which may outlast the entry.
    std::shared_ptr<tier::HostBuffer> memory;
    std::list<BlockKey>::iterator order;
  };
  void DropOldestLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  tier::TierManager* const manager_;
  const uint64_t cap_bytes_;
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<BlockKey, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::list<BlockKey> order_ ABSL_GUARDED_BY(mutex_);  // least recently used first
  HostStoreState state_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace::kv

#endif  // TERRACE_KV_HOST_STORE_H_
