// Words of the tier manager: who owns bytes, how urgent a transfer is, and what a model's weights
// look like to a manager that knows bytes and not tensors.
#ifndef TERRACE_TIER_TYPES_H_
#define TERRACE_TIER_TYPES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tier/use_history.h"

namespace terrace::os {
class DirectFile;
}

namespace terrace::tier {

inline constexpr uint64_t kMaxBlockBytes = uint64_t{4} << 20;
inline constexpr uint64_t kBlockAlignment = 4096;

enum class Tier : uint8_t { kDevice, kHost, kDisk, kObject, kRemote };
enum class Kind : uint8_t { kWeights, kKv, kWorkspace, kStaging };

// Who a reservation is booked to.
struct Owner {
  std::string model;
  std::string tenant;
  Kind kind = Kind::kWeights;
};

// Most urgent first. Within a class the earliest asked goes first.
enum class Priority : uint8_t { kDemand, kNextLayer, kPredicted, kWriteBack, kScrub };

// A flag that a waiting caller's owner may set to end the wait. Shared between the thread that
// waits and the one that gives up, hence the shared_ptr at its users.
struct CancelFlag {
  std::atomic<bool> cancelled{false};
  // On the manager's clock: from then on nobody waits for what is not there, as if cancelled; 0:
  // never.
  std::atomic<int64_t> wait_until_us{0};
  // Nor for a store beyond this machine that has given nothing for so long; 0: however long.
  std::atomic<int64_t> most_silence_us{0};
};

// A block of an image file: `bytes` (a multiple of 4 KiB, at most 4 MiB) at `offset` (4
// KiB-aligned) with the XXH3-64 of those bytes.
struct DiskBlock {
  uint64_t offset = 0;
  uint32_t bytes = 0;
  uint64_t checksum = 0;
};

// A store that is waited for.
struct AwaitedStore {
  std::string name;
  int64_t still_us = 0;  // since something came from it
};

// Where a model's segments come from when no tier above disk holds them. Thread-safe.
class SegmentSource {
 public:
  virtual ~SegmentSource() = default;

  // The file and blocks that hold `segment`, in order, back to back in memory; `file` null if the
  // segment must be produced instead (its image is still being written).
  struct OnDisk {
    const os::DirectFile* file = nullptr;
    std::vector<DiskBlock> blocks;
  };
  virtual OnDisk Locate(uint32_t segment) const = 0;

  // Fills `out` (the segment's bytes, in host memory) when Locate() gives no file, or when what it
  // gave could not be read or did not match its checksum: then the bytes are made anew and the file
  // is mended. Called on a worker thread of the manager; may take long; ends early with Cancelled
  // when `cancel` is set.
  virtual absl::Status Produce(uint32_t segment, std::span<std::byte> out,
                               const CancelFlag* cancel) = 0;

  // The store beyond this machine that a Produce under way waits for, and for how long nothing has
  // come from it; an empty name: none. Never waits: the manager may hold its lock.
  virtual AwaitedStore Awaited() const { return {}; }
};

// A model's weights for the manager: segments in execution order.
struct SegmentSpec {
  std::string name;    // "embed", "blk.3.attn" ...
  uint64_t bytes = 0;  // a multiple of 4 KiB
  // One of a run of which execution uses a few each time, and which ones it says only then.
  bool expert = false;
};

struct ModelSpec {
  std::string name;  // unique among registered models, e.g. "qwen3@1"
  std::string tenant;
  // Not evicted before this long after its last use, unless nothing else fits.
  int64_t hot_keep_us = 0;
  // How much more than another's it counts if this model's weights are missing (its SLA class).
  double sla_weight = 1.0;
  // What an earlier process saw of its use.
  UseHistory history;
  std::vector<SegmentSpec> segments;
  // Shared with the importer that still writes the image while the manager already loads from it.
  std::shared_ptr<SegmentSource> source;
};

using ModelId = uint32_t;

// Device memory that its holder could do without: what a cache keeps for later. The manager asks
// for it before it evicts weights that were used more recently, and whenever nothing else is left.
// Thread-safe; called without any lock of the manager's.
class IdleMemory {
 public:
  virtual ~IdleMemory() = default;
  // Gives back buffers of at least `bytes` together if it has them, oldest first, only such as were
  // last used before `used_before_us`. Returns the bytes given back.
  virtual uint64_t Reclaim(uint64_t bytes, int64_t used_before_us) = 0;
  // The same for buffers that are booked to this tenant, however new they are.
  virtual uint64_t ReclaimOf(const std::string& tenant, uint64_t bytes) = 0;
  // When the buffer that would go first was last used; INT64_MAX if there is none.
  virtual int64_t OldestIdleUs() const = 0;
};

// One line of the ledger.
struct LedgerLine {
  Tier tier = Tier::kDevice;
  Owner owner;
  uint64_t bytes = 0;
};

// Of a model's weights: what has not come, and how long its link takes for that.
struct Missing {
  uint64_t bytes = 0;
  int64_t us = 0;
  AwaitedStore store;   // that a load of it waits for
  bool failed = false;  // a load did, and nobody has been told: the next Acquire is
};

struct LinkState {
  std::string name;    // "disk-to-device" ...
  uint64_t bytes = 0;  // moved since start
  uint64_t transfers = 0;
  uint64_t queued = 0;               // now, with those under way
  double bandwidth_bytes_per_s = 0;  // estimate of what the link gives when busy; 0: not known yet
  double latency_us = 0;
};

}  // namespace terrace::tier

#endif  // TERRACE_TIER_TYPES_H_
