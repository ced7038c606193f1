// Where every segment is: the tier manager's records of models, segments and loads under way. Plain
// data guarded by the manager's lock.
//
// A segment is absent, loading or resident. Loading and resident segments own a range of device
// memory and its reservation. Only resident segments are pinned.
#ifndef TERRACE_TIER_PAGE_TABLE_H_
#define TERRACE_TIER_PAGE_TABLE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "device/pinned_range.h"
#include "os/mapping.h"
#include "tier/ledger.h"
#include "tier/link_class.h"
#include "tier/policy.h"
#include "tier/types.h"

namespace terrace::tier {

enum class Residence : uint8_t { kAbsent, kLoading, kResident };

// A range of device memory with the budget it is booked on.
struct DeviceRange {
  std::byte* data = nullptr;
  uint64_t bytes = 0;  // as allocated: a multiple of the device's granularity
  Reservation reservation;
};

// A segment's bytes on the host tier, for a device with memory of its own.
struct HostCopy {
  os::Mapping memory;
  device::PinnedRange pin;  // of all of `memory`, which must outlive it
  Reservation reservation;
  uint32_t users = 0;     // loads that fill it or copy from it
  bool complete = false;  // read in full and checked
};

struct Load;

struct Segment {
  SegmentSpec spec;
  Residence residence = Residence::kAbsent;
  DeviceRange range;
  const std::byte* place = nullptr;  // where it is or was last; on its device only a hint
  HostCopy host;
  uint32_t pins = 0;
  int64_t last_used_us = 0;
  std::shared_ptr<Load> load;  // under way
  // Of experts.
  uint32_t run_left = 0;   // experts from this one to the end of its run; 0: not an expert
  uint64_t last_pass = 0;  // of the model, in which it was asked for
  double heat = 0;         // uses, each halved every so many passes; as of heat_pass
  uint64_t heat_pass = 0;
  bool passing = false;  // brought in beyond a pass's share: the first to go
};

struct Model {
  ModelId id = 0;
  ModelSpec spec;
  uint64_t bytes = 0;
  std::vector<Segment> segments;
  uint64_t resident_bytes = 0;
  uint64_t host_bytes = 0;
  bool has_experts = false;
  uint64_t pass = 1;          // counts passes of execution
  uint64_t expert_bytes = 0;  // of experts brought in in this pass
  uint64_t loaded_bytes = 0;
  uint64_t loads = 0;
  uint64_t loads_from_host = 0;
  uint64_t evictions = 0;
  UseHistory history;
  int64_t leased_until_us = 0;
  bool at_work = false;  // has requests, between whose steps it is not pinned
  LinkClass link_class = LinkClass::kStandard;  // of those requests
  absl::Status unreported;  // why a load failed that only requests between steps waited for
  // A pass of execution over the resident model, measured: how much of a load its head could hide.
  int64_t pass_began_us = -1;  // -1: none under way, or a load got in its way
  double pass_us = 0;          // 0: not measured yet
  // The segment acquired last; what follows it is fetched ahead while `reading_ahead`.
  uint32_t position = 0;
  bool reading_ahead = false;
  bool leaving = false;  // Unregister has begun
  uint32_t loads_under_way = 0;
  // Of those loads the ones that execution waits for or comes to next: how many, and their bytes.
  uint32_t soon_loads = 0;
  uint64_t soon_bytes = 0;
  uint64_t coming_bytes = 0;   // its part of ComingBytes
  uint64_t bytes_to_read = 0;  // of loads under way

  // What its loads under way wait for that the source has to fetch.
  AwaitedStore Awaited() const;
  int64_t HotUntilUs() const { return history.last_us + spec.hot_keep_us; }
  // How many segments execution passes before it comes to `segment` (again): 0 for the next one.
  uint32_t StepsAhead(uint32_t segment) const {
    const auto count = static_cast<uint32_t>(segments.size());
    return (segment + count - position - 1) % count;
  }
};

// Neighbouring blocks of a load that travel as one transfer of at most kMaxBlockBytes: read,
// checked block by block, and copied where the device has its own memory.
struct Run {
  uint32_t first_block = 0;
  uint32_t block_count = 0;
  uint64_t file_offset = 0;
  uint64_t offset = 0;  // in the segment
  uint64_t bytes = 0;
  uint8_t reads = 0;  // tries so far
  uint8_t copies = 0;
  int32_t slot = -1;  // of the staging ring, while it holds one
};

// One attempt to bring a segment in. Shared between the manager's table and the threads that wait
// for it, which may wake after it has left the table.
struct Load {
  uint64_t id = 0;
  Model* model = nullptr;  // stays: a model leaves only after its loads
  uint32_t segment = 0;
  Priority priority = Priority::kDemand;
  uint32_t waiters = 0;  // each gets a pin when the load ends well
  DeviceRange range;
  std::shared_ptr<SegmentSource> source;
  SegmentSource::OnDisk place;
  std::vector<Run> runs;
  size_t runs_left = 0;
  uint64_t bytes_to_read = 0;
  uint32_t active = 1;      // steps under way outside the queues; the first one is to locate it
  bool from_host = false;   // the host tier has it: only the copy to the device is left to do
  bool fills_host = false;  // what is read stays on the host tier
  os::Mapping produced;     // host copy of a produced segment on its way to the device
  Reservation produced_reservation;
  CancelFlag cancel;
  // Why its blocks on disk will not do. Once nothing of it is under way any more, the source is
  // asked for the segment instead (`remade`).
  absl::Status damage;
  bool remade = false;
  absl::Status status;  // first failure
  bool done = false;
};

// What is still to come of models on their way and nobody has asked for so far; experts may never
// be. Counted as it changes.
class ComingBytes {
 public:
  // A load that has its range, with the priority that it has.
  void Add(const Load& load);
  void Remove(const Load& load);
  // After what is resident of a model has changed.
  void Update(Model& model);
  uint64_t bytes() const { return bytes_; }
  // Counts anew: Internal if anything else comes of it.
  absl::Status Check(const std::map<ModelId, std::unique_ptr<Model>>& models) const;

 private:
  uint64_t bytes_ = 0;
};

}  // namespace terrace::tier

#endif  // TERRACE_TIER_PAGE_TABLE_H_
