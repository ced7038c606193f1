// The prefix cache: KV blocks that are full and will not change, found by key, shared by every
// sequence whose tokens begin alike under the same root. Nobody writes to a shared block (a
// sequence writes only to its own last blocks), so sharing needs no copies. Blocks in device memory
// are shared as they are; blocks that lie below it are loaded when that is sooner than computing
// them.
//
// Blocks nobody uses stay until memory is wanted (Reclaim), least recently used first, children
// before parents. Blocks used at least twice are written to the stores below in the background.
//
// Thread-safe.
#ifndef TERRACE_KV_CACHE_H_
#define TERRACE_KV_CACHE_H_

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "kv/block.h"
#include "kv/frequency_sketch.h"
#include "kv/host_store.h"
#include "kv/restore.h"
#include "os/worker_pool.h"
#include "storage/disk/block_store.h"
#include "tier/tier_manager.h"

namespace terrace {
class Clock;
}
namespace terrace::storage {
class RemoteStore;
}

namespace terrace::kv {

struct CacheState {
  uint64_t blocks = 0;  // in device memory
  uint64_t bytes = 0;
  uint64_t idle_bytes = 0;   // of blocks that no sequence uses
  uint64_t device_hits = 0;  // blocks found, since start
  uint64_t host_hits = 0;    // blocks copied back from host memory
  uint64_t disk_hits = 0;    // blocks loaded from disk
  uint64_t remote_hits = 0;  // blocks loaded from the remote store
  uint64_t misses = 0;       // blocks asked for and nowhere found
  uint64_t lost = 0;         // blocks that were stored, but gone or damaged when wanted
  uint64_t evictions = 0;
  uint64_t moved = 0;           // blocks written down because their sequence gave way
  double disk_bytes_per_s = 0;  // what whole loads got lately; 0: not known yet
  double remote_bytes_per_s = 0;
  double host_bytes_per_s = 0;  // over the device's link
};

// Whether bytes are had sooner by loading than by computing what they hold.
struct LoadChoice {
  bool load = true;
  std::string why;  // "loaded: 3.1 ms, computing 40.2 ms", for the request's trace
};

class Cache : public tier::IdleMemory {
 public:
  // `store` may be null: then nothing outlives device memory. All must outlive the cache.
  Cache(tier::TierManager* manager, storage::BlockStore* store, const Clock* clock);
  ~Cache() override;  // drops what is not written yet
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  // A store that several servers share, below the disk; null for none. Set before other threads use
  // the cache; must outlive it.
  void SetRemote(storage::RemoteStore* remote);

  // Host memory below a device that has its own: blocks that must leave the device go there. Null
  // for none. Set before other threads use the cache; must outlive it.
  void SetHost(HostStore* host);

  // The longest known start of `tokens`, whole blocks only: first those in device memory (held by
  // the result), then the keys of those that lie in host memory, then of those that the disk store
  // holds, then the keys that follow and that only the remote store could have (empty without one).
  struct Found {
    std::vector<BlockRef> device;
    std::vector<BlockKey> host;
    std::vector<BlockKey> stored;
    std::vector<BlockKey> beyond;
  };
  // `again`: looked for before by the same request, which is not another use of the blocks.
  Found Find(const BlockKey& root, std::span<const int32_t> tokens, bool again = false);

  // Weighs loading `blocks` blocks from disk against computing each in `compute_s` seconds (0: not
  // known), by what loads got lately (before any: by what the disk gives) and the bytes already on
  // their way.
  LoadChoice Weigh(size_t blocks, uint64_t block_bytes, double compute_s) const;
  // The same for blocks in host memory.
  LoadChoice WeighHost(size_t blocks, uint64_t block_bytes, double compute_s) const;
  // What whole loads from disk got lately, bytes/s; 0: not known yet.
  double disk_rate() const;

  // Loads blocks from the disk store, all of them at once and layer by layer (see Restore). Calls
  // back on worker threads: `begun` once the bytes are on their way (a step may begin with them
  // from then on), `done` with the longest start of them that could be had (a block that is gone,
  // damaged or finds no memory ends it). `done` may come without `begun`, or before it.
  struct Loaded {
    std::vector<BlockRef> blocks;
    std::string why;  // what was chosen and why, or what the load got; for the request's trace
    std::string_view tier = "disk";  // where they came from
  };
  using LoadDone = std::function<void(Loaded)>;
  using LoadBegun = std::function<void(std::shared_ptr<Restore>)>;
  void LoadStored(RestoreAsk ask, LoadBegun begun, LoadDone done);

  // Copies blocks back from host memory, in their order; as LoadStored, without `begun`.
  void LoadHost(RestoreAsk ask, LoadDone done);

  // Loads those blocks that the remote store has, if that is worth it, several at a time.
  // `compute_s`: of one block; 0: not known.
  void LoadRemote(RestoreAsk ask, double compute_s, LoadDone done);

  // Writes `blocks` to the disk store soon, however seldom they were used: their sequence gives way
  // and returns. Until that is done they keep their memory (moving() says whether some do).
  void MoveDown(std::span<const BlockRef> blocks);
  bool moving() const;

  // Makes a full block findable. Returns the block to use from now on: another sequence's if that
  // was first with the same key (then `buffer` is given back).
  BlockRef Publish(const BlockKey& key, tier::DeviceBuffer buffer);
  // The same; takes `buffer` only if it is the first.
  BlockRef PublishIfNew(const BlockKey& key, tier::DeviceBuffer* buffer);

  // Their sequence has ended: this was their last use, however long ago they were found.
  void Touch(std::span<const BlockRef> blocks);

  // Idle blocks for who needs memory more (see tier::IdleMemory).
  uint64_t Reclaim(uint64_t bytes, int64_t used_before_us) override;
  uint64_t ReclaimOf(const std::string& tenant, uint64_t bytes) override;
  int64_t OldestIdleUs() const override;
  // Drops every idle block of device memory.
  void Clear();

  // Waits until everything worth writing is written (tests, orderly shutdown).
  void Flush();
  const storage::BlockStore* store() const { return store_; }
  CacheState State() const;
  absl::Status CheckInvariants() const;

 private:
  // Idle blocks last used before then, of `tenant` only if one is given, oldest first. With
  // `keep_on_host` they go to the host tier where there is one.
  uint64_t Drop(uint64_t bytes, int64_t used_before_us, const std::string* tenant,
                bool keep_on_host);
  struct Entry {
    std::shared_ptr<Block> block;
    int64_t last_used_us = 0;
    std::list<BlockKey>::iterator order;
  };
  struct Batch;
  void TouchLocked(Entry& entry, int64_t now_us) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ConsiderWritingLocked(const BlockKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteUsed(const BlockKey& key);
  void Write(const Block& block);
  void StartPools();
  Loaded CopyBack(const RestoreAsk& ask);
  void StartBatch(std::shared_ptr<Batch> batch);
  void LoadInto(Batch& batch, size_t index);
  void FinishBatch(Batch& batch);
  void RestoreEnded(Restore& restore, int64_t start_us, const LoadDone& done);
  void LoadOverLocked(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  LoadChoice WeighAt(double rate, uint64_t bytes, double compute_s) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  tier::TierManager* const manager_;
  storage::BlockStore* const store_;
  storage::RemoteStore* remote_ = nullptr;
  HostStore* host_ = nullptr;
  const Clock* const clock_;

  mutable absl::Mutex mutex_;
  absl::flat_hash_map<BlockKey, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  std::list<BlockKey> order_ ABSL_GUARDED_BY(mutex_);  // least recently used first
  FrequencySketch sketch_ ABSL_GUARDED_BY(mutex_);
  CacheState counters_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<BlockKey> writing_ ABSL_GUARDED_BY(mutex_);  // queued or under way
  absl::flat_hash_set<BlockKey> sent_ ABSL_GUARDED_BY(mutex_);     // written to the remote store
  size_t moving_ ABSL_GUARDED_BY(mutex_) = 0;                      // blocks whose sequence gave way
  uint64_t loading_bytes_ ABSL_GUARDED_BY(mutex_) = 0;             // of loads under way
  size_t loads_ ABSL_GUARDED_BY(mutex_) = 0;                       // under way
  absl::flat_hash_set<Restore*> restores_ ABSL_GUARDED_BY(mutex_);  // of those, from disk and begun
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Last, so that their threads end before what they use.
  std::unique_ptr<os::WorkerPool> writer_;
  std::unique_ptr<os::WorkerPool> loaders_;
};

}  // namespace terrace::kv

#endif  // TERRACE_KV_CACHE_H_
