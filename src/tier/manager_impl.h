// The tier manager behind its public face. One lock guards all tables; no file, device copy,
// checksum or SegmentSource (but Awaited) is ever called under it. Threads that change something
// call Pump() afterwards, which starts whatever may start now; so there is no thread of the
// manager's own, and with stepped parts the whole is deterministic.
//
// Deadlock rule: a caller that needs room waits only while something that can end without it is in
// the way: a load under way, or pins of others for at most `pin_wait_us`. After that it fails with
// ResourceExhausted, keeps nothing, and its owner may drop its pins and come again. So threads that
// each hold pins and want more never wait for each other for ever.
#ifndef TERRACE_TIER_MANAGER_IMPL_H_
#define TERRACE_TIER_MANAGER_IMPL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "device/device.h"
#include "tier/attempt.h"
#include "tier/ledger.h"
#include "tier/load_brake.h"
#include "tier/mover_step.h"
#include "tier/page_table.h"
#include "tier/parts.h"
#include "tier/tier_manager.h"
#include "tier/transfer_queue.h"

namespace terrace::tier {

class TierManagerImpl {
 public:
  TierManagerImpl(const TierManagerOptions& options, device::Device* device, const Clock* clock,
                  const Ledger::Budgets& budgets);
  ~TierManagerImpl();
  // Staging ring and copy stream where the device has its own memory. Called once, before others.
  absl::Status PrepareStaging();
  std::vector<std::span<std::byte>> staging() const;
  void SetParts(TierManagerParts parts) { parts_ = std::move(parts); }

  absl::StatusOr<ModelId> Register(ModelSpec spec);
  absl::Status Unregister(ModelId model);
  void Prefetch(ModelId model, uint32_t first, uint32_t count, Priority priority);
  absl::StatusOr<Pin> Acquire(ModelId model, uint32_t segment, Priority priority,
                              const CancelFlag* cancel);
  absl::StatusOr<DeviceBuffer> Allocate(const Owner& owner, uint64_t bytes);
  absl::StatusOr<HostBuffer> AllocateHost(const Owner& owner, uint64_t bytes);
  uint64_t ReadRanges(std::vector<FileRange> ranges, Priority priority,
                      TierManager::RangeDone done);
  void CancelRanges(uint64_t number);
  absl::StatusOr<bool> ReadPieces(ModelId model, uint32_t segment,
                                  std::span<const SegmentPiece> pieces, const CancelFlag* cancel);
  TierManager::DiskLoad disk_load() const;
  void SetIdleMemory(IdleMemory* idle) { idle_memory_ = idle; }
  Ledger& ledger() { return ledger_; }
  void EvictModel(ModelId model);
  void Lease(ModelId model, int64_t until_us);
  void NoteRequest(ModelId model);
  void SetAtWork(ModelId model, bool at_work, LinkClass link_class);
  AwaitedStore Awaited(ModelId model) const;
  void StepBegins(const ComputeStep& step);
  void StepEnds(int64_t busy_us);
  void StepsPause();
  bool CouldFit(uint64_t bytes) const;
  bool CouldPin(ModelId model, uint32_t segment) const;
  uint64_t LoadedBytes(ModelId model) const;
  Missing MissingOf(ModelId model) const;
  bool unified() const { return unified_; }
  absl::Status CopyBuffer(device::CopyDirection direction, std::byte* to, const std::byte* from,
                          uint64_t bytes) ABSL_LOCKS_EXCLUDED(buffer_stream_mutex_);
  TierSnapshot Snapshot() const;
  std::vector<ModelSource> Sources() const;
  void VisitResident(
      const std::function<void(ModelId, uint32_t, std::span<const std::byte>)>& visit) const;
  absl::Status CheckInvariants() const;
  void Unpin(ModelId model, uint32_t segment);
  void FreeBuffer(std::byte* data);

 private:
  // manager_impl.cc: callers.
  Model* FindLocked(ModelId model) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Pin MakePinLocked(Model& model, uint32_t segment) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Attempt> TryAcquireLocked(ModelId model, uint32_t segment, Priority priority)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Pin> WaitForLoadLocked(const std::shared_ptr<Load>& load, const CancelFlag* cancel)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What bringing a segment in takes (0: it is there or under way), and its model's name.
  uint64_t MissingBytes(ModelId model, uint32_t segment, std::string* name) const;

  // demand.cc: how models are used.
  void TouchLocked(Model& model, uint32_t segment) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MeasurePassLocked(Model& model, uint32_t segment) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of the models whose passes have been measured; 0: of none yet.
  double UsualPassUsPerByteLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // reclaim.cc: room, and what is given back.
  // Asks for idle memory older than the weights that would go for `bytes`, or any if `anything`;
  // true if some came back. The model that asks is in use, if the device can hold it as a whole.
  bool ReclaimIdle(uint64_t bytes, bool anything, const std::string& asking);
  uint64_t RoundedBytes(uint64_t bytes) const;
  absl::StatusOr<DeviceRange> TakeRoomLocked(const Owner& owner, uint64_t bytes,
                                             const RoomRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<EvictionCandidate> CandidatesLocked(const RoomRequest& request) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // In the policy's order: the first is to go first.
  std::vector<EvictionCandidate> VictimsLocked(const RoomRequest& request) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  double ReloadUsLocked(const TransferQueue& link, uint64_t bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Lets go of what nobody has used for its hot_keep_time while the budget is fuller than the
  // threshold, so that what comes next finds room.
  void ReclaimPastThresholdLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  DeviceRange DetachLocked(Model& model, uint32_t segment) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FreeRangeLocked(DeviceRange range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends loads nobody waits for, least urgent first, until `bytes` will come free.
  void CancelPrefetchesLocked(uint64_t bytes, const RoomRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  RoomHope HopeForRoomLocked(const Owner& owner, uint64_t bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits a little for room; false when it is time to give up. `since_us` is 0 at the first call.
  bool AwaitRoomLocked(const Owner& owner, uint64_t bytes, int64_t* since_us)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits for a change, `most_us` at most.
  void WaitLocked(int64_t most_us) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int64_t WaitNowUs() const;

  // experts.cc: segments of which a pass uses some.
  bool FitsLocked(const Model& model) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The model cannot stay as a whole, so that its experts come when they are asked for.
  bool ExpertsOnDemandLocked(const Model& model) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TouchExpertLocked(Model& model, Segment& segment) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What it is worth to keep a segment of a model whose experts come on demand: for experts by
  // recency and frequency, below 1; 1 for the others, which every pass needs.
  double OwnValueLocked(const Model& model, const Segment& segment) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The experts that go for another one of the same model, if no other model has anything to give.
  std::vector<EvictionCandidate> ExpertVictimsLocked(const RoomRequest& request,
                                                     uint64_t bytes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // host_tier.cc: copies on the host. Room for `bytes` there, at the cost of copies of models other
  // than `keep`; the copy of the least recently used tails goes first.
  absl::StatusOr<Reservation> TakeHostRoomLocked(const Owner& owner, uint64_t bytes,
                                                 const Model* keep)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropHostLocked(Model& model, Segment& segment) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Lets `load` start from its host copy, or leave one.
  void JoinHostLocked(Load& load) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LeaveHostLocked(Load& load, bool loaded) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckHostLocked(const Model& model) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // beside.cc: loads while others compute. The link's next transfer, if one may start.
  std::optional<Transfer> StartLocked(TransferQueue& queue) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndedLocked(TransferQueue& queue, const Transfer& transfer, bool moved)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends loads that nobody waits for and that are held back, for the room on the host that they
  // keep meanwhile; false if there is none.
  bool CancelHeldLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteHeldLocked(int64_t now_us) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellHeldLocked(TierSnapshot* snapshot) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // range_reads.cc: ranges of files.
  void ReadRange(const std::shared_ptr<RangeReads>& reads, const Transfer& transfer);
  void RangesEndedLocked(RangeReads& reads, size_t count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // loading.cc: loads.
  absl::StatusOr<std::shared_ptr<Load>> StartLoadLocked(Model& model, uint32_t segment,
                                                        Priority priority)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetPriorityLocked(Load& load, Priority priority) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReadAheadLocked(Model& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Pump();
  bool NextStepLocked(MoverStep* step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Locate(const std::shared_ptr<Load>& load);
  absl::Status PlaceBlocks(Load& load, SegmentSource::OnDisk place) const;
  absl::Status PlaceOnHostLocked(Load& load) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Produce(const std::shared_ptr<Load>& load, const Transfer& transfer);
  void Read(const std::shared_ptr<Load>& load, const Transfer& transfer);
  void OnRead(const std::shared_ptr<Load>& load, const Transfer& transfer, absl::Status status);
  void Check(const std::shared_ptr<Load>& load, uint32_t run);
  void Copy(const std::shared_ptr<Load>& load, const Transfer& transfer);
  absl::Status CompareCopy(const Load& load, const Transfer& transfer,
                           std::span<const std::byte> back) const;
  void OnCopied(const std::shared_ptr<Load>& load, const Transfer& transfer, absl::Status status);
  std::span<std::byte> HostBytes(const Load& load, const Run& run) const;
  void QueueLocked(TransferQueue& queue, const Load& load, uint32_t run)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunDoneLocked(Load& load, Run& run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReleaseSlotLocked(Run& run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BytesReadLocked(Load& load, uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FailLocked(Load& load, absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The blocks on disk are no good: the source makes the segment anew.
  void RemakeLocked(Load& load, absl::Status damage) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AskSourceLocked(Load& load) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CancelLoadLocked(Load& load) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndIfIdleLocked(Load& load) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PublishLocked(Load& load) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const TierManagerOptions options_;
  device::Device* const device_;
  const Clock* const clock_;
  const RealClock wait_clock_;  // threads wait in real time, whatever clock the policy sees
  const bool unified_;
  IdleMemory* idle_memory_ = nullptr;
  mutable Ledger ledger_;
  TierManagerParts parts_;

  os::Mapping staging_;
  device::PinnedRange staging_pin_;  // goes before the memory does
  Reservation staging_reservation_;
  PinnedArena host_arena_;  // of HostBuffers
  std::unique_ptr<device::Stream> stream_;
  absl::Mutex stream_mutex_;         // keeps a copy and its callback neighbours in the stream
  absl::Mutex buffer_stream_mutex_;  // copies of KV are waited for: not behind weights in a stream
  std::unique_ptr<device::Stream> buffer_stream_ ABSL_GUARDED_BY(buffer_stream_mutex_);

  mutable absl::Mutex mutex_;
  absl::CondVar changed_;  // a load ended, a pin or a buffer went
  std::map<ModelId, std::unique_ptr<Model>> models_ ABSL_GUARDED_BY(mutex_);
  ModelId next_model_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Load>> loads_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_load_ ABSL_GUARDED_BY(mutex_) = 1;
  ComingBytes coming_ ABSL_GUARDED_BY(mutex_);
  // Numbered together with loads.
  absl::flat_hash_map<uint64_t, std::shared_ptr<RangeReads>> ranges_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Load>> to_locate_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::byte*, DeviceRange> buffers_ ABSL_GUARDED_BY(mutex_);
  std::vector<int32_t> free_slots_ ABSL_GUARDED_BY(mutex_);
  TransferQueue disk_ ABSL_GUARDED_BY(mutex_);
  TransferQueue source_ ABSL_GUARDED_BY(mutex_);
  TransferQueue copy_ ABSL_GUARDED_BY(mutex_);
  LoadBrake brake_ ABSL_GUARDED_BY(mutex_);
  // By the names of who was held back and of whose streams: models may go before anyone asks.
  std::map<std::pair<std::string, std::string>, int64_t> held_us_ ABSL_GUARDED_BY(mutex_);
  uint32_t room_waiters_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t checksum_failures_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t pins_given_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;  // callers in WaitLocked or ReadPieces
  uint64_t remade_ ABSL_GUARDED_BY(mutex_) = 0;
};
}  // namespace terrace::tier

#endif  // TERRACE_TIER_MANAGER_IMPL_H_
