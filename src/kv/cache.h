// The prefix cache: KV blocks that are full and will not change, found by key, shared by every
// sequence whose tokens begin alike under the same root. Blocks in device memory are shared as they
// are; blocks that only the disk holds are loaded when the caller finds that worth it.
//
// Blocks nobody uses stay until memory is wanted (Reclaim), least recently used first, children
// before parents. Blocks used at least twice are written to the disk store in the background.
//
// Thread-safe.
#ifndef TERRACE_KV_CACHE_H_
#define TERRACE_KV_CACHE_H_

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "kv/block_key.h"
#include "kv/frequency_sketch.h"
#include "os/worker_pool.h"
#include "storage/disk/block_store.h"
#include "tier/tier_manager.h"

namespace terrace {
class Clock;
}

namespace terrace::kv {

// A full block in device memory. Immutable, shared by the cache, sequences and the writer.
struct Block {
  BlockKey key;
  tier::DeviceBuffer buffer;
};
using BlockRef = std::shared_ptr<const Block>;

struct CacheState {
  uint64_t blocks = 0;         // in device memory
  uint64_t bytes = 0;
  uint64_t idle_bytes = 0;     // of blocks that no sequence uses
  uint64_t device_hits = 0;    // blocks found, since start
  uint64_t disk_hits = 0;      // blocks loaded from disk
  uint64_t misses = 0;         // blocks asked for and nowhere found
  uint64_t evictions = 0;
};

class Cache : public tier::IdleMemory {
 public:
  // `store` may be null: then nothing outlives device memory. All must outlive the cache.
  Cache(tier::TierManager* manager, storage::BlockStore* store, const Clock* clock);
  ~Cache() override;  // drops what is not written yet
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  // The longest known start of `tokens`, whole blocks only: first those in device memory (held by
  // the result), then the keys of those that the disk store holds.
  struct Found {
    std::vector<BlockRef> device;
    std::vector<BlockKey> stored;
  };
  Found Find(const BlockKey& root, std::span<const int32_t> tokens);

  // Loads stored blocks, several at a time, and calls `done` on a worker thread with the longest
  // start of `keys` that could be had (a block that is gone, damaged or finds no memory ends it).
  using LoadDone = std::function<void(std::vector<BlockRef>)>;
  void Load(std::vector<BlockKey> keys, const tier::Owner& owner, uint64_t block_bytes,
            LoadDone done);

  // Makes a full block findable. Returns the block to use from now on: another sequence's if that
  // was first with the same key (then `buffer` is given back).
  BlockRef Publish(const BlockKey& key, tier::DeviceBuffer buffer);

  // Idle blocks for who needs memory more (see tier::IdleMemory).
  uint64_t Reclaim(uint64_t bytes, int64_t used_before_us) override;
  int64_t OldestIdleUs() const override;
  // Drops every idle block.
  void Clear();

  // Waits until everything worth writing is written (tests, orderly shutdown).
  void Flush();
  const storage::BlockStore* store() const { return store_; }
  CacheState State() const;
  absl::Status CheckInvariants() const;

 private:
  struct Entry {
    std::shared_ptr<Block> block;
    int64_t last_used_us = 0;
    std::list<BlockKey>::iterator order;
  };
  void TouchLocked(Entry& entry, int64_t now_us) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ConsiderWritingLocked(const BlockKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Write(const std::shared_ptr<Block>& block);
  BlockRef LoadOne(const BlockKey& key, const tier::Owner& owner, uint64_t block_bytes);

  tier::TierManager* const manager_;
  storage::BlockStore* const store_;
  const Clock* const clock_;

  mutable absl::Mutex mutex_;
  absl::flat_hash_map<BlockKey, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::list<BlockKey> order_ ABSL_GUARDED_BY(mutex_);  // least recently used first
  FrequencySketch sketch_ ABSL_GUARDED_BY(mutex_);
  CacheState counters_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<BlockKey> writing_ ABSL_GUARDED_BY(mutex_);  // queued or under way
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Last, so that their threads end before what they use.
  std::unique_ptr<os::WorkerPool> writer_;
  std::unique_ptr<os::WorkerPool> loaders_;
};

}  // namespace terrace::kv

#endif  // TERRACE_KV_CACHE_H_
