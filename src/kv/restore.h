// KV blocks on their way from the disk store into device memory, layer by layer: the first layers
// of all blocks are read first, so that a step may compute its first layers while later ones come.
// Each slice of layers is half of what is left, so that reads are large and still little is left to
// compute when the last of them ends. The first block's reads begin while the others' files are
// opened and their memory is brought in.
// On a device with memory of its own they are copied there slice by slice. Bytes are hashed as they
// arrive and compared when a block is whole; a step that has used them waits for that (AwaitAll)
// before it believes anything that it computed. A block that fails is read once more as a whole, to
// another place, as a step may still read the first one; if it fails again it ends the restore, and
// the blocks before it are good.
//
// Thread-safe. Shared by the cache's threads, the callbacks of its reads and the sequence that
// computes with it, hence held by shared_ptr.
#ifndef TERRACE_KV_RESTORE_H_
#define TERRACE_KV_RESTORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/stream_hash.h"
#include "kv/block.h"
#include "os/direct_file.h"
#include "os/mapping.h"
#include "os/worker_pool.h"
#include "storage/disk/block_store.h"
#include "tier/tier_manager.h"

namespace terrace::kv {

struct RestoreAsk {
  std::vector<BlockKey> keys;
  tier::Owner owner;
  uint64_t block_bytes = 0;  // a multiple of 4 KiB
  uint64_t layer_bytes = 0;  // of one layer in a block; layers lie one after the other
  // Share of the layers that a step waits for before it begins: more is read in larger pieces, less
  // lets a step that computes for long begin soon.
  double first_share = 0.5;
};

class Restore : public std::enable_shared_from_this<Restore> {
 public:
  struct Parts {
    tier::TierManager* manager = nullptr;
    storage::BlockStore* store = nullptr;
    os::Executor* workers = nullptr;
    // Makes a block that was checked findable; returns the one to use, and takes the memory unless
    // that is another one with the same key.
    std::function<BlockRef(const BlockKey&, tier::DeviceBuffer*)> publish;
  };
  // `ended` is called on a worker once every read has ended, with the longest good start, already
  // published. All of `parts` must live until then.
  Restore(Parts parts, RestoreAsk ask, std::function<void(Restore&)> ended);

  // Opens the files, takes memory and asks for the reads; on a worker thread. The number of blocks
  // that the restore is then about: those before the first that is gone or finds no memory. With 0
  // it is over, and `ended` is not called.
  size_t Begin();
  // What has not been read yet ends as failed.
  void Cancel();

  size_t size() const { return count_; }
  bool file_gone() const { return gone_; }  // Begin found a block's file gone
  std::byte* address(size_t i) const { return items_[i].device; }
  // Waits until `layer` of every block is in memory. Unavailable if a block cannot be had as it was
  // read (the blocks before it may be); Cancelled.
  absl::Status AwaitLayer(int32_t layer, const tier::CancelFlag* cancel);
  // Waits until all is read and checked. The same errors.
  absl::Status AwaitAll(const tier::CancelFlag* cancel);
  // After the end: the longest good start, published.
  std::vector<BlockRef> blocks() const;

 private:
  // One block: the slices that arrived, and how far they are hashed.
  struct Item {
    BlockKey key;
    std::unique_ptr<os::DirectFile> file;
    // Given to the cache at the end; what it does not take stays for a step that computes with it.
    tier::DeviceBuffer buffer;
    tier::DeviceBuffer spoilt;    // the first one, once the block was read again
    std::byte* device = nullptr;  // where the block was first to lie in device memory
    os::Mapping host;             // on a device with memory of its own, what it passes through
    std::byte* data = nullptr;    // where its bytes are read to: one of the two
    uint32_t arrived = 0;         // bit i: slice i
    uint32_t hashed = 0;          // slices, only touched by the worker that hashes
    bool header = false;
    bool hashing = false;
    bool failed = false;
    bool ended = false;
    StreamHash64 hash;
  };

  // What OnRead is told to be the slice of a block's header.
  static constexpr size_t kHeader = SIZE_MAX;

  void CutSlices();
  bool Open(Item& item, const BlockKey& key);
  // Brings in blocks' memory and asks for their first slices, from several workers; the last of
  // them asks for the other slices.
  void Feed();
  void AskFirst(size_t index);
  void AskRest();
  void Ask(std::vector<tier::FileRange> ranges, tier::TierManager::RangeDone done);
  void OnRead(size_t index, size_t slice, const absl::Status& status);
  void Hash(size_t index);
  // The next slice of `item` to hash, or -1 if there is none now.
  int NextSliceLocked(const Item& item) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // From where they were read to, if that is not the device's memory; false if that fails.
  bool CopyToDevice(const Item& item, uint64_t offset, uint64_t bytes);
  // The whole block, into other memory; false if it cannot be had.
  bool ReadAgain(Item& item);
  void PartOverLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndItem(size_t index, bool good, bool again);
  void End();
  absl::Status AwaitLocked(const std::function<bool()>& there, const tier::CancelFlag* cancel)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Parts parts_;
  RestoreAsk ask_;
  const std::function<void(Restore&)> ended_;
  const bool separate_;         // device memory that the host can't read to
  std::vector<uint64_t> ends_;  // of slices in a block
  os::Mapping headers_;         // a page a block
  std::vector<Item> items_;     // by key; those from count_ on are not used
  size_t count_ = 0;            // set by Begin
  bool gone_ = false;

  mutable absl::Mutex mutex_;
  absl::CondVar changed_;
  std::vector<uint64_t> numbers_ ABSL_GUARDED_BY(mutex_);  // of the reads
  size_t opened_ ABSL_GUARDED_BY(mutex_) = 0;              // blocks
  size_t fed_ ABSL_GUARDED_BY(mutex_) = 0;                 // of those, taken by Feed
  bool all_open_ ABSL_GUARDED_BY(mutex_) = false;          // as many as can be
  int feeders_ ABSL_GUARDED_BY(mutex_) = 0;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<size_t> missing_ ABSL_GUARDED_BY(mutex_);  // blocks without it, for each slice
  size_t left_ ABSL_GUARDED_BY(mutex_) = 0;              // blocks that have not ended, and Feed
  size_t good_ ABSL_GUARDED_BY(mutex_) = 0;              // blocks before the first bad one
  bool spoiled_ ABSL_GUARDED_BY(mutex_) = false;         // some bytes were wrong at first
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<BlockRef> blocks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace::kv

#endif  // TERRACE_KV_RESTORE_H_
