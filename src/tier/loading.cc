// How the tier manager brings segments in: locate, read (or produce), check, copy, publish; and
// what is fetched ahead.
#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/hash.h"
#include "base/status.h"
#include "base/units.h"
#include "tier/manager_impl.h"
#include "tier/planted.h"

namespace terrace::tier {
namespace {

// A block that does not match its checksum is read once more: the first time may have been the
// memory or the bus, twice is the disk, and the source has to make it anew.
constexpr uint8_t kMostReads = 2;
constexpr uint8_t kMostCopies = 2;
// Enough queued behind what is being read that the disk never waits for us to think.
constexpr uint64_t kReadAheadBytes = 64 * kMiB;

absl::Status InLoad(const Load& load, const absl::Status& status) {
  return WithContext(
      status, fmt::format("loading {} of model {}", load.model->segments[load.segment].spec.name,
                          load.model->spec.name));
}

}  // namespace

absl::StatusOr<std::shared_ptr<Load>> TierManagerImpl::StartLoadLocked(Model& model, uint32_t index,
                                                                       Priority priority) {
  Segment& segment = model.segments[index];
  // Guesses may fill what is free up to the threshold; the rest is left to what is really asked
  // for.
  if (priority >= Priority::kPredicted) {
    const double limit =
        options_.swap_threshold * static_cast<double>(options_.device_budget_bytes);
    if (static_cast<double>(ledger_.used(Tier::kDevice) + segment.spec.bytes) > limit) {
      return absl::ResourceExhaustedError("no room for a guess");
    }
  }
  auto load = std::make_shared<Load>();
  const Owner owner{model.spec.name, model.spec.tenant, Kind::kWeights};
  ASSIGN_OR_RETURN(load->range,
                   TakeRoomLocked(owner, segment.spec.bytes, {&model, index, priority}));
  segment.place = load->range.data;
  load->id = next_load_++;
  load->model = &model;
  load->segment = index;
  load->priority = priority;
  load->source = model.spec.source;
  load->bytes_to_read = segment.spec.bytes;
  model.bytes_to_read += load->bytes_to_read;
  ++model.loads_under_way;
  coming_.Add(*load);
  if (segment.spec.expert) {
    model.expert_bytes += segment.spec.bytes;
    segment.passing = model.expert_bytes > options_.expert_upload_bytes;
  }
  segment.residence = Residence::kLoading;
  segment.load = load;
  JoinHostLocked(*load);
  loads_.emplace(load->id, load);
  to_locate_.push_back(load);
  return load;
}

void TierManagerImpl::SetPriorityLocked(Load& load, Priority priority) {
  coming_.Remove(load);
  load.priority = priority;
  coming_.Add(load);
  disk_.SetPriority(load.id, priority);
  source_.SetPriority(load.id, priority);
  copy_.SetPriority(load.id, priority);
}

// Keeps the link busy with what execution comes to next, all the way round the model, as long as
// there is room that nobody needs sooner.
void TierManagerImpl::ReadAheadLocked(Model& model) {
  if (!model.reading_ahead || model.leaving || room_waiters_ > 0) return;
  if (model.resident_bytes == model.bytes) return;
  const auto count = static_cast<uint32_t>(model.segments.size());
  for (uint32_t i = 1; i < count && model.bytes_to_read < kReadAheadBytes; ++i) {
    const uint32_t index = (model.position + i) % count;
    if (model.segments[index].spec.expert && ExpertsOnDemandLocked(model)) {
      i += model.segments[index].run_left - 1;
      continue;
    }
    if (model.segments[index].residence != Residence::kAbsent) continue;
    if (!StartLoadLocked(model, index, Priority::kNextLayer).ok()) return;
  }
}

void TierManagerImpl::Pump() {
  for (;;) {
    MoverStep step;
    {
      absl::MutexLock lock(&mutex_);
      if (!NextStepLocked(&step)) return;
    }
    switch (step.type) {
      case MoverStep::Type::kLocate:
        Locate(step.load);
        break;
      case MoverStep::Type::kProduce:
        parts_.producers->Run([this, step] { Produce(step.load, step.transfer); });
        break;
      case MoverStep::Type::kRead:
        Read(step.load, step.transfer);
        break;
      case MoverStep::Type::kReadRange:
        ReadRange(step.ranges, step.transfer);
        break;
      case MoverStep::Type::kCopy:
        Copy(step.load, step.transfer);
        break;
    }
  }
}

bool TierManagerImpl::NextStepLocked(MoverStep* step) {
  if (!to_locate_.empty()) {
    step->type = MoverStep::Type::kLocate;
    step->load = std::move(to_locate_.front());
    to_locate_.erase(to_locate_.begin());
    return true;
  }
  auto start = [&](TransferQueue& queue, MoverStep::Type type)
                   ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                     std::optional<Transfer> transfer = StartLocked(queue);
                     if (!transfer.has_value()) return false;
                     step->type = type;
                     step->transfer = *transfer;
                     if (auto ranges = ranges_.find(transfer->owner); ranges != ranges_.end()) {
                       step->type = MoverStep::Type::kReadRange;
                       step->ranges = ranges->second;
                       step->ranges->started[transfer->index] = true;
                       return true;
                     }
                     step->load = loads_.at(transfer->owner);
                     ++step->load->active;
                     return true;
                   };
  if (!unified_ && start(copy_, MoverStep::Type::kCopy)) return true;
  // A read that leaves no copy on the host needs a slot of the staging ring until its bytes have
  // reached the device.
  if ((unified_ || !free_slots_.empty()) && start(disk_, MoverStep::Type::kRead)) {
    if (!unified_ && step->load != nullptr && !step->load->fills_host) {
      step->load->runs[step->transfer.index].slot = free_slots_.back();
      free_slots_.pop_back();
    }
    return true;
  }
  return start(source_, MoverStep::Type::kProduce);
}

void TierManagerImpl::Locate(const std::shared_ptr<Load>& load) {
  absl::Status status;
  if (!load->cancel.cancelled && load->fills_host) {
    // Nobody drops the copy while the load fills it; pinning takes too long to hold the lock for.
    HostCopy& host = load->model->segments[load->segment].host;
    if (!host.pin.pinned()) host.pin = device::PinnedRange(device_, host.memory.span());
  }
  if (!load->cancel.cancelled && !load->from_host) {
    SegmentSource::OnDisk place = load->source->Locate(load->segment);
    if (place.file != nullptr) status = PlaceBlocks(*load, std::move(place));
  }
  absl::MutexLock lock(&mutex_);
  --load->active;
  if (load->cancel.cancelled) {
    EndIfIdleLocked(*load);
    return;
  }
  if (status.ok() && load->place.file == nullptr && !unified_) status = PlaceOnHostLocked(*load);
  if (!status.ok()) {
    FailLocked(*load, InLoad(*load, status));
    return;
  }
  const uint64_t bytes = load->model->segments[load->segment].spec.bytes;
  if (load->from_host) {
    for (uint32_t i = 0; i < load->runs.size(); ++i) QueueLocked(copy_, *load, i);
    BytesReadLocked(*load, bytes);
  } else if (load->place.file != nullptr) {
    for (uint32_t i = 0; i < load->runs.size(); ++i) QueueLocked(disk_, *load, i);
  } else {
    source_.Push({.owner = load->id,
                  .bytes = bytes,
                  .priority = load->priority,
                  .link_class = load->model->link_class});
  }
}

void TierManagerImpl::RemakeLocked(Load& load, absl::Status damage) {
  if (load.damage.ok()) load.damage = std::move(damage);
  disk_.Cancel(load.id);
  copy_.Cancel(load.id);
  EndIfIdleLocked(load);
}

void TierManagerImpl::AskSourceLocked(Load& load) {
  const uint64_t bytes = load.model->segments[load.segment].spec.bytes;
  for (Run& run : load.runs) ReleaseSlotLocked(run);
  load.runs.clear();
  load.place = {};
  load.remade = true;
  load.model->bytes_to_read += bytes - load.bytes_to_read;
  load.bytes_to_read = bytes;
  if (!unified_) {
    if (absl::Status status = PlaceOnHostLocked(load); !status.ok()) {
      return FailLocked(load, InLoad(load, status));
    }
  }
  source_.Push({.owner = load.id,
                .bytes = bytes,
                .priority = load.priority,
                .link_class = load.model->link_class});
}

// Checks what the source says and joins neighbours. Only the thread that locates touches these
// fields now.
absl::Status TierManagerImpl::PlaceBlocks(Load& load, SegmentSource::OnDisk place) const {
  const uint64_t bytes = load.model->segments[load.segment].spec.bytes;
  uint64_t sum = 0;
  for (uint32_t i = 0; i < place.blocks.size(); ++i) {
    const DiskBlock& block = place.blocks[i];
    if (block.bytes == 0 || block.bytes > kMaxBlockBytes || block.bytes % kBlockAlignment != 0 ||
        block.offset % kBlockAlignment != 0 || block.bytes > bytes - sum) {
      return absl::DataLossError(fmt::format("block {} ({} bytes at {} of {}) is impossible", i,
                                             block.bytes, block.offset, place.file->path()));
    }
    Run* last = load.runs.empty() ? nullptr : &load.runs.back();
    if (last != nullptr && last->file_offset + last->bytes == block.offset &&
        last->bytes + block.bytes <= kMaxBlockBytes) {
      ++last->block_count;
      last->bytes += block.bytes;
    } else {
      load.runs.push_back({.first_block = i,
                           .block_count = 1,
                           .file_offset = block.offset,
                           .offset = sum,
                           .bytes = block.bytes});
    }
    sum += block.bytes;
  }
  if (sum != bytes) {
    return absl::DataLossError(fmt::format("the blocks in {} have {} bytes, the segment {}",
                                           place.file->path(), sum, bytes));
  }
  load.place = std::move(place);
  load.runs_left = load.runs.size();
  return absl::OkStatus();
}

// The whole segment is, or will be, in host memory; from there pieces go to the device.
absl::Status TierManagerImpl::PlaceOnHostLocked(Load& load) {
  const uint64_t bytes = load.model->segments[load.segment].spec.bytes;
  if (!load.from_host && !load.fills_host) {
    const Owner owner{load.model->spec.name, load.model->spec.tenant, Kind::kStaging};
    absl::StatusOr<Reservation> room = TakeHostRoomLocked(owner, bytes, nullptr);
    if (!room.ok() && load.waiters > 0 && CancelHeldLocked()) {
      room = TakeHostRoomLocked(owner, bytes, nullptr);
    }
    ASSIGN_OR_RETURN(load.produced_reservation, std::move(room));
    ASSIGN_OR_RETURN(load.produced, os::Mapping::Anonymous(bytes));
  }
  for (uint64_t offset = 0; offset < bytes; offset += kMaxBlockBytes) {
    load.runs.push_back({.offset = offset, .bytes = std::min(kMaxBlockBytes, bytes - offset)});
  }
  load.runs_left = load.runs.size();
  return absl::OkStatus();
}

void TierManagerImpl::Produce(const std::shared_ptr<Load>& load, const Transfer& transfer) {
  // The first run starts where the segment starts; unified memory needs no runs.
  std::byte* out = unified_ ? load->range.data : HostBytes(*load, load->runs[0]).data();
  absl::Status status = load->source->Produce(load->segment, {out, transfer.bytes}, &load->cancel);
  {
    absl::MutexLock lock(&mutex_);
    source_.Finish(transfer, status.ok());
    --load->active;
    if (status.ok()) BytesReadLocked(*load, transfer.bytes);
    if (status.ok() && load->remade) ++remade_;
    if (!status.ok()) {
      if (load->remade) {
        status = absl::Status(status.code(), fmt::format("{}; making it anew: {}",
                                                         Message(load->damage), Message(status)));
      }
      FailLocked(*load, load->remade ? status : InLoad(*load, status));
    } else if (load->cancel.cancelled) {
      EndIfIdleLocked(*load);
    } else if (unified_) {
      PublishLocked(*load);
    } else {
      for (uint32_t i = 0; i < load->runs.size(); ++i) QueueLocked(copy_, *load, i);
    }
  }
  Pump();
}

std::span<std::byte> TierManagerImpl::HostBytes(const Load& load, const Run& run) const {
  if (unified_) return {load.range.data + run.offset, run.bytes};
  if (load.from_host || load.fills_host) {
    // Stays while the load uses it.
    return {load.model->segments[load.segment].host.memory.data() + run.offset, run.bytes};
  }
  if (load.produced) return {load.produced.data() + run.offset, run.bytes};
  return {staging_.data() + static_cast<uint64_t>(run.slot) * kMaxBlockBytes, run.bytes};
}

void TierManagerImpl::Read(const std::shared_ptr<Load>& load, const Transfer& transfer) {
  Run& run = load->runs[transfer.index];
  ++run.reads;
  parts_.reader->Read(
      *load->place.file, run.file_offset, HostBytes(*load, run),
      [this, load, transfer](absl::Status status) { OnRead(load, transfer, std::move(status)); });
}

void TierManagerImpl::OnRead(const std::shared_ptr<Load>& load, const Transfer& transfer,
                             absl::Status status) {
  bool check = false;
  {
    absl::MutexLock lock(&mutex_);
    EndedLocked(disk_, transfer, status.ok());
    Run& run = load->runs[transfer.index];
    check = status.ok() && !load->cancel.cancelled && load->damage.ok();
    if (!check) {
      --load->active;
      ReleaseSlotLocked(run);
      if (status.ok()) {
        EndIfIdleLocked(*load);
      } else {
        RemakeLocked(*load, InLoad(*load, status));
      }
    }
  }
  // Checked by another thread, so that this one is free for the next completion.
  if (check) {
    parts_.checks->Run([this, load, index = transfer.index] { Check(load, index); });
  }
  Pump();
}

void TierManagerImpl::Check(const std::shared_ptr<Load>& load, uint32_t index) {
  Run& run = load->runs[index];
  const std::byte* data = HostBytes(*load, run).data();
  const DiskBlock* bad = nullptr;
  for (uint32_t i = 0; i < run.block_count && bad == nullptr; ++i) {
    const DiskBlock& block = load->place.blocks[run.first_block + i];
    if (!kPlantSkipChecksum && Hash64(data, block.bytes) != block.checksum) bad = &block;
    data += block.bytes;
  }
  {
    absl::MutexLock lock(&mutex_);
    --load->active;
    if (bad != nullptr) ++checksum_failures_;
    if (load->cancel.cancelled || !load->damage.ok()) {
      ReleaseSlotLocked(run);
      EndIfIdleLocked(*load);
    } else if (bad != nullptr) {
      ReleaseSlotLocked(run);
      if (run.reads < kMostReads) {
        QueueLocked(disk_, *load, index);
      } else {
        RemakeLocked(*load,
                     InLoad(*load, absl::DataLossError(fmt::format(
                                       "{} bytes at offset {} of {} do not match their checksum",
                                       bad->bytes, bad->offset, load->place.file->path()))));
      }
    } else {
      BytesReadLocked(*load, run.bytes);
      if (unified_) {
        RunDoneLocked(*load, run);
      } else {
        QueueLocked(copy_, *load, index);
      }
    }
  }
  Pump();
}

void TierManagerImpl::Copy(const std::shared_ptr<Load>& load, const Transfer& transfer) {
  Run& run = load->runs[transfer.index];
  ++run.copies;
  absl::Status status;
  {
    absl::MutexLock lock(&stream_mutex_);
    status = stream_->CopyAsync(device::CopyDirection::kHostToDevice, load->range.data + run.offset,
                                HostBytes(*load, run).data(), run.bytes);
    // Shared with the callback below.
    std::shared_ptr<std::vector<std::byte>> back;
    if (status.ok() && options_.strict_check) {
      back = std::make_shared<std::vector<std::byte>>(run.bytes);
      status = stream_->CopyAsync(device::CopyDirection::kDeviceToHost, back->data(),
                                  load->range.data + run.offset, run.bytes);
    }
    if (status.ok()) {
      status = stream_->HostCallback([this, load, transfer, back](absl::Status copied) {
        // Only this copy failed; those queued behind it have not run yet and may.
        if (!copied.ok()) stream_->ClearError();
        if (copied.ok() && back != nullptr) copied = CompareCopy(*load, transfer, *back);
        OnCopied(load, transfer, std::move(copied));
      });
    }
  }
  if (!status.ok()) OnCopied(load, transfer, std::move(status));
}

absl::Status TierManagerImpl::CompareCopy(const Load& load, const Transfer& transfer,
                                          std::span<const std::byte> back) const {
  const std::span<std::byte> sent = HostBytes(load, load.runs[transfer.index]);
  if (std::memcmp(sent.data(), back.data(), sent.size()) == 0) return absl::OkStatus();
  return absl::DataLossError(
      fmt::format("the device does not hold the {} bytes that were copied", sent.size()));
}

void TierManagerImpl::OnCopied(const std::shared_ptr<Load>& load, const Transfer& transfer,
                               absl::Status status) {
  {
    absl::MutexLock lock(&mutex_);
    EndedLocked(copy_, transfer, status.ok());
    --load->active;
    Run& run = load->runs[transfer.index];
    if (load->cancel.cancelled || (!load->damage.ok() && !load->remade)) {
      ReleaseSlotLocked(run);
      EndIfIdleLocked(*load);
    } else if (status.ok()) {
      RunDoneLocked(*load, run);
    } else if (run.copies < kMostCopies) {
      QueueLocked(copy_, *load, transfer.index);  // the slot still holds the checked bytes
    } else {
      ReleaseSlotLocked(run);
      FailLocked(*load, InLoad(*load, status));
    }
  }
  Pump();
}

void TierManagerImpl::QueueLocked(TransferQueue& queue, const Load& load, uint32_t run) {
  // What has come from the disk goes on to the device in any case: it holds a place on the host.
  queue.Push({.owner = load.id,
              .index = run,
              .bytes = load.runs[run].bytes,
              .priority = load.priority,
              .link_class = load.model->link_class,
              .bulk = &queue == &disk_ || load.from_host});
}

void TierManagerImpl::BytesReadLocked(Load& load, uint64_t bytes) {
  load.bytes_to_read -= bytes;
  load.model->bytes_to_read -= bytes;
  ReadAheadLocked(*load.model);
}

void TierManagerImpl::ReleaseSlotLocked(Run& run) {
  if (run.slot < 0) return;
  free_slots_.push_back(std::exchange(run.slot, -1));
}

void TierManagerImpl::RunDoneLocked(Load& load, Run& run) {
  ReleaseSlotLocked(run);
  if (--load.runs_left == 0) PublishLocked(load);
}

void TierManagerImpl::CancelLoadLocked(Load& load) {
  load.cancel.cancelled = true;
  FailLocked(load, absl::CancelledError("nobody waits for this load any more"));
}

void TierManagerImpl::FailLocked(Load& load, absl::Status status) {
  const bool awaited = load.model->at_work && load.waiters == 0;
  if (awaited && !absl::IsCancelled(status)) load.model->unreported = status;
  if (load.status.ok()) load.status = std::move(status);
  load.cancel.cancelled = true;  // what is still under way ends early
  load.model->reading_ahead = false;
  // A retry of a copy gives up its slot with its place in the queue.
  disk_.Cancel(load.id);
  source_.Cancel(load.id);
  copy_.Cancel(load.id);
  EndIfIdleLocked(load);
}

void TierManagerImpl::EndIfIdleLocked(Load& load) {
  if (load.active > 0 || load.done) return;
  if (!load.damage.ok() && !load.remade && !load.cancel.cancelled) return AskSourceLocked(load);
  Model& model = *load.model;
  Segment& segment = model.segments[load.segment];
  for (Run& run : load.runs) ReleaseSlotLocked(run);
  LeaveHostLocked(load, false);
  load.produced = os::Mapping();
  load.produced_reservation.Release();
  coming_.Remove(load);
  FreeRangeLocked(std::exchange(load.range, DeviceRange{}));
  segment.residence = Residence::kAbsent;
  model.bytes_to_read -= load.bytes_to_read;
  load.bytes_to_read = 0;
  --model.loads_under_way;
  load.done = true;
  const std::shared_ptr<Load> keep = std::move(segment.load);
  segment.load = nullptr;
  loads_.erase(load.id);
  changed_.SignalAll();
}

void TierManagerImpl::PublishLocked(Load& load) {
  Model& model = *load.model;
  Segment& segment = model.segments[load.segment];
  segment.residence = Residence::kResident;
  coming_.Remove(load);
  segment.range = std::exchange(load.range, DeviceRange{});
  segment.pins += load.waiters;
  if (load.from_host) ++model.loads_from_host;
  LeaveHostLocked(load, true);
  model.resident_bytes += segment.range.bytes;
  coming_.Update(model);
  ++model.loads;
  model.unreported = absl::OkStatus();
  model.loaded_bytes += segment.spec.bytes;
  --model.loads_under_way;
  load.produced = os::Mapping();
  load.produced_reservation.Release();
  load.done = true;
  const std::shared_ptr<Load> keep = std::move(segment.load);
  segment.load = nullptr;
  loads_.erase(load.id);
  changed_.SignalAll();
  ReclaimPastThresholdLocked();
  ReadAheadLocked(model);
}

}  // namespace terrace::tier
