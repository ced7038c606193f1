// Blocks on disk by key: one file a block, named by its key, with a header that holds the key again
// and a checksum of the bytes. The disk tier of KV. What is read is checked; anything wrong is a
// miss and the file is removed, so a damaged, foreign or half-written block is never served. The
// folder's bytes never pass the cap.
//
// One store at a time uses a folder, whichever process it is in. Thread-safe; Write and Read block
// on the disk and are for worker threads. Files are not synced: a block lost in a crash is
// recomputed.
#ifndef TERRACE_STORAGE_DISK_BLOCK_STORE_H_
#define TERRACE_STORAGE_DISK_BLOCK_STORE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/digest.h"

namespace terrace {
class Clock;
}
namespace terrace::os {
class DirectFile;
}

namespace terrace::storage {

using BlockKey = Digest128;

struct BlockStoreOptions {
  std::string folder;
  uint64_t cap_bytes = 0;     // of files, as the file system counts them
  double watermark = 0.90;    // eviction starts above this share of the cap ...
  double evict_share = 0.05;  // ... and removes this share of it, least recently used first
  // Told once, on a thread that writes, that and why the store has become read-only. May be empty.
  std::function<void(const std::string&)> notice;
};

struct BlockStoreState {
  uint64_t blocks = 0;
  uint64_t bytes = 0;
  uint64_t written = 0;  // blocks since start
  uint64_t read = 0;
  uint64_t damaged = 0;          // blocks that failed a check
  uint64_t refused = 0;          // writes that did not fit or failed
  bool read_only = false;        // after a failed write: reads go on, nothing is written any more
  double write_bytes_per_s = 0;  // moving average of what single writes got; 0: none yet
};

class BlockStore {
 public:
  // Unavailable while another store uses the folder. Creates it, takes over the blocks that lie
  // there and removes what is no block of ours. Oldest files first when they exceed the cap.
  static absl::StatusOr<std::unique_ptr<BlockStore>> Open(const BlockStoreOptions& options,
                                                          const Clock* clock);
  ~BlockStore();
  BlockStore(const BlockStore&) = delete;
  BlockStore& operator=(const BlockStore&) = delete;

  bool Contains(const BlockKey& key) const;
  // Stores `data` (a multiple of 4 KiB). Evicts for it; ResourceExhausted if it cannot fit. A
  // failed write leaves no file; one for want of space or by a failing disk makes the store
  // read-only.
  absl::Status Write(const BlockKey& key, std::span<const std::byte> data);
  // Fills `out`. NotFound for a block that is not there or fails a check (and is removed then).
  absl::Status Read(const BlockKey& key, std::span<std::byte> out);
  // The two halves of Read for who reads by himself, many blocks at a time. Open: the file of a
  // block with `data_bytes` of data, which begin at kDataOffset; it stays readable while it is
  // open, whatever becomes of the block. CheckRead: whether its first kDataOffset bytes and the
  // XXH3-64 of its data are the block's; counts it if so, DataLoss if not (the block is left to
  // Read).
  static constexpr uint64_t kDataOffset = 4096;
  absl::StatusOr<std::unique_ptr<os::DirectFile>> Open(const BlockKey& key, uint64_t data_bytes);
  absl::Status CheckRead(const BlockKey& key, std::span<const std::byte> header,
                         uint64_t data_bytes, uint64_t data_hash);
  void Remove(const BlockKey& key);

  BlockStoreState State() const;
  // Internal if the index and the folder disagree or the cap is passed (for tests: scans the
  // folder).
  absl::Status CheckInvariants() const;

 private:
  struct Entry {
    uint64_t file_bytes = 0;
    std::list<BlockKey>::iterator order;
  };

  BlockStore(const BlockStoreOptions& options, const Clock* clock);
  absl::Status Lock();
  absl::Status Scan();
  std::string PathOf(const BlockKey& key) const;
  bool MakeRoomLocked(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RemoveLocked(const BlockKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What follows from a failed write of `bytes` to the file `partial`; returns `status`.
  absl::Status WriteFailed(const std::string& partial, uint64_t bytes, const absl::Status& status);
  absl::Status ReadChecked(const BlockKey& key, std::span<std::byte> out) const;

  const BlockStoreOptions options_;
  const Clock* const clock_;
  int lock_fd_ = -1;  // of the file whose lock says who uses the folder
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<BlockKey, Entry> index_ ABSL_GUARDED_BY(mutex_);
  std::list<BlockKey> order_ ABSL_GUARDED_BY(mutex_);  // least recently used first
  BlockStoreState state_ ABSL_GUARDED_BY(mutex_);
  uint64_t reserved_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of writes under way
  std::atomic<uint64_t> next_temporary_{0};
};

}  // namespace terrace::storage

#endif  // TERRACE_STORAGE_DISK_BLOCK_STORE_H_
