// The tier manager: the one place that decides where each byte of weights, KV and workspace lies.
// It owns the ledger and the transfer queues, loads segments from disk in execution order, evicts
// by policy, and hands out pins and buffers. It knows bytes and segments, not tensors.
//
// Thread-safe. Blocking calls (Acquire, Allocate) may be made from any thread that is not one of
// the manager's own.
#ifndef TERRACE_TIER_TIER_MANAGER_H_
#define TERRACE_TIER_TIER_MANAGER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tier/compute_step.h"
#include "tier/handles.h"
#include "tier/link_class.h"
#include "tier/snapshot.h"
#include "tier/types.h"

namespace terrace {
class Clock;
}
namespace terrace::device {
class Device;
}

namespace terrace::tier {

class TierManagerImpl;
struct TierManagerParts;

struct TierManagerOptions {
  uint64_t device_budget_bytes = 0;
  // For devices with memory of their own: what the host may hold (staging, and copies of segments
  // from which they come back without the disk). 0: nothing but staging, without a cap.
  uint64_t host_budget_bytes = 0;
  // When more than this share of the budget is booked, segments that nobody has used for their
  // model's hot_keep_us (if it has one) are let go, and guesses (kPredicted) load no more.
  double swap_threshold = 0.90;
  // Reads in flight and the bounded staging ring for devices with memory of their own.
  uint32_t read_depth = 8;
  uint64_t staging_bytes = uint64_t{32} << 20;
  // Which segments go first: "lru", "lru-k", "lfu" or "cost".
  std::string eviction_policy = "lru";
  // How long a caller that needs room waits for pins of others to be released before it gets
  // ResourceExhausted. This bounds any wait of threads that hold pins for each other.
  int64_t pin_wait_us = 2'000'000;
  // Reads back what was copied to a device with memory of its own, and compares.
  bool strict_check = false;
  // Of a model with experts that does not fit: how many bytes of experts a pass may exchange. What
  // comes beyond is used and is the first to go again, so that one long prompt, which needs nearly
  // all of them, does not push out those that are needed all the time.
  uint64_t expert_upload_bytes = UINT64_MAX;
  // By which share of its time a step of streams may grow because weights of other models move
  // meanwhile; 0: they move as fast as they can.
  double decode_slowdown = 0.08;
  // How classes of requests divide a link among them.
  LinkShares link_shares = {};
  // Told, on any thread, the address of each piece of memory that Allocate gave, before anyone else
  // may have it. May be empty.
  std::function<void(const std::byte*)> freed;
};

// Where a registered model's segments come from.
struct ModelSource {
  ModelId id = 0;
  std::string name;
  uint64_t bytes = 0;  // of all segments
  std::vector<SegmentSpec> segments;
  std::shared_ptr<SegmentSource> source;  // shared with the manager, which may forget the model
};

// A piece of a file that belongs to no segment (stored KV). File and memory must stay valid until
// the read has ended.
struct FileRange {
  const os::DirectFile* file = nullptr;
  uint64_t offset = 0;
  std::span<std::byte> out;
};

// A piece of a segment that is wanted in host memory.
struct SegmentPiece {
  uint64_t offset = 0;
  std::span<std::byte> out;
};

class TierManager {
 public:
  // `device` and `clock` must outlive the manager.
  static absl::StatusOr<std::unique_ptr<TierManager>> Create(const TierManagerOptions& options,
                                                             device::Device* device,
                                                             const Clock* clock);
  // The same from given parts (tests, the simulator).
  static absl::StatusOr<std::unique_ptr<TierManager>> CreateFromParts(
      const TierManagerOptions& options, device::Device* device, const Clock* clock,
      TierManagerParts parts);
  ~TierManager();  // cancels what is in flight and waits for it

  // Adds a model; loads nothing. ResourceExhausted if one segment alone exceeds the budget.
  absl::StatusOr<ModelId> Register(ModelSpec spec);
  // Evicts and forgets a model. FailedPrecondition while it is pinned.
  absl::Status Unregister(ModelId model);

  // Asks for segments [first, first + count) in order, without waiting. Never evicts what is pinned
  // or more urgent; a prefetch that does not fit is dropped.
  void Prefetch(ModelId model, uint32_t first, uint32_t count, Priority priority);

  // Pins a segment, loading it first if need be and evicting others for it. Waits. Errors:
  // Cancelled when `cancel` (may be null) is set meanwhile or its time is over; ResourceExhausted
  // with who holds what if nothing can be evicted. Blocks that cannot be read or do not match their
  // checksum are made anew by the source; its errors come as they are, with what was wrong with the
  // blocks. A failed load leaves nothing booked, and the next Acquire tries again.
  absl::StatusOr<Pin> Acquire(ModelId model, uint32_t segment, Priority priority,
                              const CancelFlag* cancel);

  // Device memory for KV or workspace, evicting idle weights if need be. ResourceExhausted with who
  // holds what if it cannot be had.
  absl::StatusOr<DeviceBuffer> Allocate(const Owner& owner, uint64_t bytes);

  // Host memory for KV that had to leave a device with memory of its own, at the cost of copies of
  // weights if need be. ResourceExhausted if it cannot be had.
  absl::StatusOr<HostBuffer> AllocateHost(const Owner& owner, uint64_t bytes);

  // Reads ranges into host memory as part of the disk link's traffic: in its order (`priority`,
  // then first asked), within its depth, counted with what it moves. `done(i, status)` is called
  // once for each range, in any order, on a thread of the reader or of whoever asks the link for
  // more; it must not block. Nothing of the bytes is checked. Returns a number for CancelRanges.
  using RangeDone = std::function<void(size_t index, absl::Status status)>;
  uint64_t ReadRanges(std::vector<FileRange> ranges, Priority priority, RangeDone done);
  // Those that have not started end as Cancelled, before this returns; the others end as they do.
  void CancelRanges(uint64_t number);
  // Reads pieces of a segment that is not on the device, from its copy on the host or from disk,
  // before what else the link has to do, and waits. Nothing of the bytes is checked: the caller
  // compares them when the segment has come. False, and nothing to rely on in the pieces, if the
  // segment is on the device, has to be produced first, or cannot be read. Cancelled as Acquire.
  absl::StatusOr<bool> ReadPieces(ModelId model, uint32_t segment,
                                  std::span<const SegmentPiece> pieces, const CancelFlag* cancel);
  // What the disk link gives when busy (bytes/s; 0: not known yet) and the bytes that wait for it.
  struct DiskLoad {
    double bytes_per_s = 0;
    uint64_t queued_bytes = 0;
  };
  DiskLoad disk_load() const;
  // Copies between device memory that the caller holds and the host, and waits.
  absl::Status CopyToHost(const std::byte* from, std::span<std::byte> to);
  absl::Status CopyToDevice(std::span<const std::byte> from, std::byte* to);
  // Whether host and device addresses are the same bytes, so that neither copy is needed.
  bool unified() const;

  // Where idle device memory may be asked back from; null for none. Set before other threads use
  // the manager; must outlive those uses.
  void SetIdleMemory(IdleMemory* idle);

  // Promises that other models and KV do not push this model's resident segments out before
  // `until_us` (on the clock): at least one answer for each load. A later lease prolongs, none
  // shortens it.
  void Lease(ModelId model, int64_t until_us);

  // A request for the model has come. Where they are announced, they are its uses, by which
  // eviction policies and predictions go; else uses are guessed from accesses (UseHistory).
  void NoteRequest(ModelId model);
  // It has requests: between two of their steps it is in use, however short its hot_keep_time, and
  // the failure of a load that nobody waits for is told to the next Acquire. What of its weights
  // moves from now on, and what waits to, moves for requests of `link_class` (the best of theirs).
  void SetAtWork(ModelId model, bool at_work, LinkClass link_class);
  // The store that the model's loads wait for, if any.
  AwaitedStore Awaited(ModelId model) const;

  // A step begins in which streams of a model decode, and ends after `busy_us` of computing (0: it
  // failed). Meanwhile and until the next step, or until nobody computes (StepsPause), weights that
  // nobody waits for move so fast only that steps take `decode_slowdown` longer. Steps of a model
  // whose own weights have not come hold nothing back. One step at a time.
  void StepBegins(const ComputeStep& step);
  void StepEnds(int64_t busy_us);
  void StepsPause();

  // The most device memory that a tenant may have booked; UINT64_MAX lifts it. What it holds stays.
  void SetTenantQuota(const std::string& tenant, uint64_t bytes);
  // What the tenant may still book under its quota, whatever the device has.
  uint64_t TenantQuotaLeft(const std::string& tenant) const;

  // Drops a model's resident segments that are not pinned, and its copies on the host tier (an
  // operator's "unload").
  void EvictModel(ModelId model);
  // True if `bytes` more could be had by evicting everything that is neither pinned nor booked to
  // KV or workspace.
  bool CouldFit(uint64_t bytes) const;
  // True if a segment is on the device or could be had as CouldFit says.
  bool CouldPin(ModelId model, uint32_t segment) const;
  // Bytes of the model's segments brought in since it was registered; 0 for an unknown one.
  uint64_t LoadedBytes(ModelId model) const;
  // What of the model's weights is not on the device: all that execution passes through each time;
  // nothing for a model that the device cannot hold as a whole, whose weights come and go.
  Missing MissingOf(ModelId model) const;

  TierSnapshot Snapshot() const;
  // Of all models, in order of their ids.
  std::vector<ModelSource> Sources() const;
  // Calls `visit` with the device bytes of each resident segment, under the manager's lock (which
  // it must not need). For proofs on devices whose memory the host can read.
  void VisitResident(
      const std::function<void(ModelId, uint32_t, std::span<const std::byte>)>& visit) const;
  // Internal when an invariant is broken: ledger sums equal allocations, no byte has two owners,
  // pinned segments are resident.
  absl::Status CheckInvariants() const;

 private:
  explicit TierManager(std::unique_ptr<TierManagerImpl> impl);
  std::unique_ptr<TierManagerImpl> impl_;
};

}  // namespace terrace::tier

#endif  // TERRACE_TIER_TIER_MANAGER_H_
