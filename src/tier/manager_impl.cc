#include "tier/manager_impl.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/status.h"
#include "base/units.h"

namespace terrace::tier {
namespace {

// How often a waiting thread looks at its cancel flag, which nobody signals.
constexpr int64_t kCancelPollUs = 1'000;
// Copies queued on the device at once: one under way and the next one ready behind it.
constexpr uint32_t kCopyDepth = 3;
// Reads under way at once towards the end of a load.
constexpr uint32_t kLeastReads = 4;
constexpr int64_t kForeverUs = int64_t{1} << 50;

// Of host memory that is pinned at once: 1/16 of the budget within these.
constexpr uint64_t kLeastChunk = kMiB, kMostChunk = 32 * kMiB;

bool IsSet(const CancelFlag* cancel) {
  return cancel != nullptr && cancel->cancelled.load(std::memory_order_relaxed);
}

// Whether who waits has to stop waiting, for `load` or (null) for room.
bool GivesUp(const CancelFlag* cancel, const Clock& clock, const Load* load) {
  if (cancel == nullptr) return false;
  const int64_t until_us = cancel->wait_until_us.load(std::memory_order_relaxed);
  if (IsSet(cancel) || (until_us > 0 && clock.NowUs() >= until_us)) return true;
  const int64_t silence_us = cancel->most_silence_us.load(std::memory_order_relaxed);
  return silence_us > 0 && load != nullptr && load->model->Awaited().still_us > silence_us;
}

}  // namespace

TierManagerImpl::TierManagerImpl(const TierManagerOptions& options, device::Device* device,
                                 const Clock* clock, const Ledger::Budgets& budgets)
    : options_(options),
      device_(device),
      clock_(clock),
      unified_(device->info().unified_memory),
      ledger_(budgets),
      host_arena_(device, std::clamp(options.host_budget_bytes / 16, kLeastChunk, kMostChunk)),
      disk_({.name = unified_ ? "disk-to-device" : "disk-to-host",
             .depth = options.read_depth,
             .least_depth = kLeastReads,
             .shares = options.link_shares},
            clock),
      source_({.name = "source-to-device", .depth = 1, .shares = options.link_shares}, clock),
      copy_({.name = "host-to-device", .depth = kCopyDepth, .shares = options.link_shares}, clock),
      brake_(options.decode_slowdown) {}

TierManagerImpl::~TierManagerImpl() {
  {
    absl::MutexLock lock(&mutex_);
    std::vector<std::shared_ptr<Load>> loads;
    for (const auto& [id, load] : loads_) loads.push_back(load);
    for (const auto& load : loads) CancelLoadLocked(*load);
  }
  Pump();
  {
    absl::MutexLock lock(&mutex_);
    while (!loads_.empty() || !ranges_.empty()) WaitLocked(kForeverUs);
    for (const auto& [id, model] : models_) {
      for (uint32_t i = 0; i < model->segments.size(); ++i) {
        if (model->segments[i].residence == Residence::kResident) {
          FreeRangeLocked(DetachLocked(*model, i));
        }
        if (model->segments[i].host.complete) DropHostLocked(*model, model->segments[i]);
      }
    }
  }
  // Their threads may still be on the way out of a callback; after this none is left.
  parts_.reader.reset();
  stream_.reset();
  parts_.checks.reset();
  parts_.producers.reset();
}

absl::Status TierManagerImpl::PrepareStaging() {
  if (unified_) return absl::OkStatus();
  const uint64_t slots = options_.staging_bytes / kMaxBlockBytes;
  const Owner owner{"", "", Kind::kStaging};
  ASSIGN_OR_RETURN(staging_reservation_,
                   ledger_.Reserve(Tier::kHost, owner, slots * kMaxBlockBytes));
  ASSIGN_OR_RETURN(staging_, os::Mapping::Anonymous(slots * kMaxBlockBytes));
  staging_pin_ = device::PinnedRange(device_, staging_.span());
  ASSIGN_OR_RETURN(stream_, device_->CreateStream());
  absl::MutexLock lock(&mutex_);
  for (uint64_t i = slots; i > 0; --i) free_slots_.push_back(static_cast<int32_t>(i - 1));
  return absl::OkStatus();
}

std::vector<std::span<std::byte>> TierManagerImpl::staging() const {
  if (!staging_) return {};
  return {staging_.span()};
}

int64_t TierManagerImpl::WaitNowUs() const {
  return parts_.step != nullptr ? clock_->NowUs() : wait_clock_.NowUs();
}

void TierManagerImpl::WaitLocked(int64_t most_us) {
  if (parts_.step != nullptr) {
    mutex_.Unlock();
    parts_.step();
    mutex_.Lock();
    return;
  }
  ++waiting_;
  changed_.WaitWithTimeout(&mutex_, absl::Microseconds(most_us));
  --waiting_;
}

absl::StatusOr<ModelId> TierManagerImpl::Register(ModelSpec spec) {
  if (spec.name.empty() || spec.segments.empty() || spec.source == nullptr) {
    return absl::InvalidArgumentError(
        fmt::format("model '{}' needs a name, segments and a source", spec.name));
  }
  auto model = std::make_unique<Model>();
  for (SegmentSpec& segment : spec.segments) {
    if (segment.bytes == 0 || segment.bytes % kBlockAlignment != 0) {
      return absl::InvalidArgumentError(
          fmt::format("segment {} of model {} has {} bytes: not a multiple of 4 KiB", segment.name,
                      spec.name, segment.bytes));
    }
    if (segment.bytes > options_.device_budget_bytes) {
      return absl::ResourceExhaustedError(fmt::format(
          "segment {} of model {} needs {} ({} bytes), the device budget is {} ({} bytes)",
          segment.name, spec.name, FormatBytes(segment.bytes), segment.bytes,
          FormatBytes(options_.device_budget_bytes), options_.device_budget_bytes));
    }
    model->bytes += RoundedBytes(segment.bytes);
    model->has_experts |= segment.expert;
    model->segments.push_back({.spec = segment});
  }
  for (size_t i = model->segments.size(), run = 0; i-- > 0;) {
    run = model->segments[i].spec.expert ? run + 1 : 0;
    model->segments[i].run_left = static_cast<uint32_t>(run);
  }
  model->position = static_cast<uint32_t>(spec.segments.size()) - 1;  // the first comes next
  model->spec = std::move(spec);
  model->history = model->spec.history;
  absl::MutexLock lock(&mutex_);
  for (const auto& [id, other] : models_) {
    if (other->spec.name == model->spec.name) {
      return absl::AlreadyExistsError(
          fmt::format("model {} is registered already", model->spec.name));
    }
  }
  const ModelId id = next_model_++;
  model->id = id;
  models_.emplace(id, std::move(model));
  return id;
}

absl::Status TierManagerImpl::Unregister(ModelId id) {
  {
    absl::MutexLock lock(&mutex_);
    Model* model = FindLocked(id);
    if (model == nullptr) return absl::NotFoundError(fmt::format("no model has id {}", id));
    for (const Segment& segment : model->segments) {
      if (segment.pins > 0 || (segment.load != nullptr && segment.load->waiters > 0)) {
        return absl::FailedPreconditionError(
            fmt::format("model {} is in use: segment {}", model->spec.name, segment.spec.name));
      }
    }
    model->leaving = true;
  }
  EvictModel(id);
  std::unique_ptr<Model> gone;  // its source may be destroyed with it: not under the lock
  absl::MutexLock lock(&mutex_);
  auto found = models_.find(id);
  while (found->second->loads_under_way > 0) WaitLocked(kForeverUs);
  // A load that was nearly done when it was told to stop may have left a copy, or even ended well.
  for (uint32_t i = 0; i < found->second->segments.size(); ++i) {
    Segment& segment = found->second->segments[i];
    if (segment.host.complete) DropHostLocked(*found->second, segment);
    if (segment.residence == Residence::kResident) FreeRangeLocked(DetachLocked(*found->second, i));
  }
  gone = std::move(found->second);
  models_.erase(found);
  return absl::OkStatus();
}

Model* TierManagerImpl::FindLocked(ModelId id) const {
  auto found = models_.find(id);
  return found == models_.end() || found->second->leaving ? nullptr : found->second.get();
}

Pin TierManagerImpl::MakePinLocked(Model& model, uint32_t index) {
  const Segment& segment = model.segments[index];
  ++pins_given_;
  Pin pin;
  pin.manager_ = this;
  pin.model_ = model.id;
  pin.segment_ = index;
  pin.data_ = segment.range.data;
  pin.bytes_ = segment.spec.bytes;
  return pin;
}

void TierManagerImpl::Lease(ModelId id, int64_t until_us) {
  absl::MutexLock lock(&mutex_);
  Model* model = FindLocked(id);
  if (model != nullptr) model->leased_until_us = std::max(model->leased_until_us, until_us);
}

absl::StatusOr<Attempt> TierManagerImpl::TryAcquireLocked(ModelId id, uint32_t index,
                                                          Priority priority) {
  Model* model = FindLocked(id);
  if (model == nullptr) return absl::NotFoundError(fmt::format("no model has id {}", id));
  if (index >= model->segments.size()) {
    return absl::InvalidArgumentError(
        fmt::format("model {} has no segment {}", model->spec.name, index));
  }
  Segment& segment = model->segments[index];
  TouchLocked(*model, index);
  MeasurePassLocked(*model, index);
  if (index == 0) {
    ++model->pass;
    model->expert_bytes = 0;
  }
  if (segment.spec.expert) TouchExpertLocked(*model, segment);
  // Experts on demand are no part of the order in which execution goes round.
  if (!segment.spec.expert || !ExpertsOnDemandLocked(*model)) {
    model->position = index;
    model->reading_ahead = priority <= Priority::kNextLayer;
  }
  Attempt attempt;
  if (segment.residence == Residence::kResident) {
    ++segment.pins;
    attempt.pin = MakePinLocked(*model, index);
  } else if (segment.residence == Residence::kAbsent) {
    if (!model->unreported.ok()) return std::exchange(model->unreported, absl::OkStatus());
    ASSIGN_OR_RETURN(attempt.joined, StartLoadLocked(*model, index, priority));
    ++attempt.joined->waiters;
  } else if (IsSet(&segment.load->cancel)) {
    attempt.leaving = segment.load;
  } else {
    attempt.joined = segment.load;
    ++attempt.joined->waiters;
    if (priority < attempt.joined->priority) SetPriorityLocked(*attempt.joined, priority);
  }
  ReadAheadLocked(*model);
  return attempt;
}

uint64_t TierManagerImpl::MissingBytes(ModelId id, uint32_t index, std::string* name) const {
  absl::MutexLock lock(&mutex_);
  const Model* model = FindLocked(id);
  if (model == nullptr || index >= model->segments.size()) return 0;
  const Segment& segment = model->segments[index];
  if (segment.residence != Residence::kAbsent) return 0;
  *name = model->spec.name;
  return segment.spec.bytes;
}

absl::StatusOr<Pin> TierManagerImpl::Acquire(ModelId id, uint32_t index, Priority priority,
                                             const CancelFlag* cancel) {
  int64_t since_us = 0;
  std::string name;
  const uint64_t missing = MissingBytes(id, index, &name);
  if (missing > 0) ReclaimIdle(missing, /*anything=*/false, name);
  for (bool first = true;; first = false) {
    if (first ? IsSet(cancel) : GivesUp(cancel, *clock_, nullptr)) {
      return absl::CancelledError("cancelled while waiting for weights");
    }
    absl::StatusOr<Attempt> attempt;
    {
      absl::MutexLock lock(&mutex_);
      attempt = TryAcquireLocked(id, index, priority);
      if (attempt.ok() && attempt->pin && to_locate_.empty()) return std::move(attempt->pin);
    }
    if (absl::IsResourceExhausted(attempt.status()) &&
        ReclaimIdle(missing, /*anything=*/true, {})) {
      continue;
    }
    {
      absl::MutexLock lock(&mutex_);
      if (absl::IsResourceExhausted(attempt.status())) {
        const Model* model = FindLocked(id);
        if (model == nullptr) return attempt.status();
        const Owner owner{model->spec.name, model->spec.tenant, Kind::kWeights};
        const uint64_t bytes = RoundedBytes(model->segments[index].spec.bytes);
        if (!AwaitRoomLocked(owner, bytes, &since_us)) return attempt.status();
      } else if (!attempt.ok()) {
        return attempt.status();
      }
    }
    Pump();
    if (!attempt.ok()) continue;
    if (attempt->pin) return std::move(attempt->pin);
    absl::MutexLock lock(&mutex_);
    if (attempt->joined != nullptr) return WaitForLoadLocked(attempt->joined, cancel);
    while (!attempt->leaving->done) WaitLocked(kForeverUs);
  }
}

absl::StatusOr<Pin> TierManagerImpl::WaitForLoadLocked(const std::shared_ptr<Load>& load,
                                                       const CancelFlag* cancel) {
  while (!load->done) {
    if (GivesUp(cancel, *clock_, load.get())) {
      if (--load->waiters == 0) {
        // Nobody waits any more: it may end, but behind what somebody waits for.
        SetPriorityLocked(*load, Priority::kPredicted);
        load->model->reading_ahead = false;
      }
      return absl::CancelledError("cancelled while waiting for weights");
    }
    WaitLocked(cancel == nullptr ? kForeverUs : kCancelPollUs);
  }
  if (!load->status.ok()) return load->status;
  return MakePinLocked(*load->model, load->segment);  // counted when it was published
}

void TierManagerImpl::Unpin(ModelId id, uint32_t index) {
  absl::MutexLock lock(&mutex_);
  // A pinned model cannot have been forgotten.
  Model& model = *models_.at(id);
  TouchLocked(model, index);
  --model.segments[index].pins;
  if (room_waiters_ > 0) changed_.SignalAll();
}

void TierManagerImpl::Prefetch(ModelId id, uint32_t first, uint32_t count, Priority priority) {
  {
    absl::MutexLock lock(&mutex_);
    Model* model = FindLocked(id);
    if (model == nullptr || first >= model->segments.size()) return;
    // A prefetch never takes the rights of somebody who waits.
    priority = std::max(priority, Priority::kNextLayer);
    const auto end =
        static_cast<uint32_t>(std::min<uint64_t>(uint64_t{first} + count, model->segments.size()));
    const bool asked_for_one = count == 1;
    for (uint32_t i = first; i < end; ++i) {
      Segment& segment = model->segments[i];
      if (segment.spec.expert && ExpertsOnDemandLocked(*model)) {
        if (!asked_for_one) {
          i += segment.run_left - 1;
          continue;
        }
        segment.last_pass = model->pass;
      }
      if (segment.residence == Residence::kLoading && priority < segment.load->priority) {
        SetPriorityLocked(*segment.load, priority);
      }
      if (segment.residence != Residence::kAbsent) continue;
      if (room_waiters_ > 0 || !StartLoadLocked(*model, i, priority).ok()) break;
    }
  }
  Pump();
}

absl::StatusOr<DeviceBuffer> TierManagerImpl::Allocate(const Owner& owner, uint64_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("allocation of no bytes");
  if (bytes > options_.device_budget_bytes) {
    return absl::ResourceExhaustedError(
        fmt::format("{} ({} bytes) of {} asked for {}, the device budget is {} ({} bytes)",
                    FormatBytes(bytes), bytes, Name(owner.kind), owner.model,
                    FormatBytes(options_.device_budget_bytes), options_.device_budget_bytes));
  }
  int64_t since_us = 0;
  ReclaimIdle(bytes, /*anything=*/false, owner.model);
  for (;;) {
    absl::StatusOr<DeviceRange> range;
    {
      absl::MutexLock lock(&mutex_);
      range = TakeRoomLocked(owner, bytes, RoomRequest{});
      if (range.ok()) {
        DeviceBuffer buffer;
        buffer.manager_ = this;
        buffer.owner_ = owner;
        buffer.data_ = range->data;
        buffer.bytes_ = bytes;
        buffers_.emplace(buffer.data_, *std::move(range));
        ReclaimPastThresholdLocked();
        return buffer;
      }
    }
    if (!absl::IsResourceExhausted(range.status())) return range.status();
    // Under its quota a tenant's own idle buffers are the only ones that make room.
    const uint64_t left = ledger_.QuotaLeft(Tier::kDevice, owner);
    if (left < RoundedBytes(bytes) && idle_memory_ != nullptr &&
        idle_memory_->ReclaimOf(owner.tenant, RoundedBytes(bytes) - left) > 0) {
      continue;
    }
    if (ReclaimIdle(bytes, /*anything=*/true, {})) continue;
    {
      absl::MutexLock lock(&mutex_);
      if (!AwaitRoomLocked(owner, RoundedBytes(bytes), &since_us)) {
        return range.status();
      }
    }
    Pump();
  }
}

void TierManagerImpl::EvictModel(ModelId id) {
  {
    absl::MutexLock lock(&mutex_);
    auto found = models_.find(id);
    if (found == models_.end()) return;
    Model& model = *found->second;
    model.reading_ahead = false;
    for (uint32_t i = 0; i < model.segments.size(); ++i) {
      Segment& segment = model.segments[i];
      if (segment.residence == Residence::kResident && segment.pins == 0) {
        FreeRangeLocked(DetachLocked(model, i));
      } else if (segment.residence == Residence::kLoading && segment.load->waiters == 0) {
        CancelLoadLocked(*segment.load);
      }
      if (segment.host.complete && segment.host.users == 0) DropHostLocked(model, segment);
    }
  }
  device_->Trim();  // an unloaded model's memory really leaves the process
  Pump();
}

bool TierManagerImpl::CouldFit(uint64_t bytes) const {
  absl::MutexLock lock(&mutex_);
  uint64_t fixed = 0;
  for (const auto& [data, range] : buffers_) fixed += range.bytes;
  for (const auto& [id, model] : models_) {
    for (const Segment& segment : model->segments) {
      const bool wanted = segment.load != nullptr && segment.load->waiters > 0;
      if (segment.pins > 0 || wanted) fixed += RoundedBytes(segment.spec.bytes);
    }
  }
  const uint64_t budget = options_.device_budget_bytes;
  return fixed <= budget && bytes <= budget - fixed;
}

bool TierManagerImpl::CouldPin(ModelId id, uint32_t index) const {
  uint64_t bytes = 0;
  {
    absl::MutexLock lock(&mutex_);
    const Model* model = FindLocked(id);
    if (model == nullptr || index >= model->segments.size()) return false;
    const Segment& segment = model->segments[index];
    const bool wanted = segment.load != nullptr && segment.load->waiters > 0;
    if (segment.residence == Residence::kResident || wanted) return true;
    bytes = RoundedBytes(segment.spec.bytes);
  }
  return CouldFit(bytes);
}

uint64_t TierManagerImpl::LoadedBytes(ModelId id) const {
  absl::MutexLock lock(&mutex_);
  const Model* model = FindLocked(id);
  return model == nullptr ? 0 : model->loaded_bytes;
}

Missing TierManagerImpl::MissingOf(ModelId id) const {
  absl::MutexLock lock(&mutex_);
  const Model* model = FindLocked(id);
  Missing missing;
  if (model == nullptr || model->resident_bytes == model->bytes) return missing;
  missing.failed = !model->unreported.ok();
  missing.store = model->Awaited();
  if (!FitsLocked(*model)) return missing;
  uint64_t from_host = 0, from_below = 0;
  for (const Segment& segment : model->segments) {
    if (segment.residence == Residence::kResident) continue;
    const bool loading = segment.load != nullptr;
    (segment.host.complete ? from_host : from_below) +=
        loading ? segment.load->bytes_to_read : segment.spec.bytes;
  }
  double us = 0;
  if (from_host > 0) us += ReloadUsLocked(copy_, from_host);
  if (from_below > 0) us += ReloadUsLocked(disk_, from_below);
  missing.bytes = from_host + from_below;
  missing.us = static_cast<int64_t>(us);
  return missing;
}

std::vector<ModelSource> TierManagerImpl::Sources() const {
  absl::MutexLock lock(&mutex_);
  std::vector<ModelSource> sources;
  for (const auto& [id, model] : models_) {
    if (model->leaving) continue;
    sources.push_back(
        {id, model->spec.name, model->bytes, model->spec.segments, model->spec.source});
  }
  return sources;
}

TierSnapshot TierManagerImpl::Snapshot() const {
  absl::MutexLock lock(&mutex_);
  TierSnapshot snapshot;
  snapshot.device_budget_bytes = options_.device_budget_bytes;
  snapshot.device_used_bytes = ledger_.used(Tier::kDevice);
  snapshot.host_budget_bytes = options_.host_budget_bytes;
  snapshot.host_used_bytes = ledger_.used(Tier::kHost);
  snapshot.ledger = ledger_.Lines();
  snapshot.checksum_failures = checksum_failures_;
  snapshot.remade = remade_;
  snapshot.pins = pins_given_;
  snapshot.waiting = waiting_;
  TellHeldLocked(&snapshot);
  for (const auto& [id, model] : models_) {
    ModelState state;
    state.name = model->spec.name;
    state.bytes = model->bytes;
    state.resident_bytes = model->resident_bytes;
    state.host_bytes = model->host_bytes;
    state.loads_from_host = model->loads_from_host;
    state.loaded_bytes = model->loaded_bytes;
    state.loads = model->loads;
    state.evictions = model->evictions;
    state.last_used_us = model->history.last_us;
    state.history = model->history;
    state.awaited = model->Awaited();
    snapshot.waits_for_store |= model->at_work && !state.awaited.name.empty();
    for (const Segment& segment : model->segments) {
      state.segments.push_back({segment.spec.name, segment.spec.bytes,
                                segment.residence == Residence::kResident,
                                segment.residence == Residence::kLoading, segment.pins});
    }
    snapshot.models.push_back(std::move(state));
  }
  snapshot.links.push_back(disk_.State());
  snapshot.links.push_back(source_.State());
  if (!unified_) snapshot.links.push_back(copy_.State());
  return snapshot;
}

void TierManagerImpl::VisitResident(
    const std::function<void(ModelId, uint32_t, std::span<const std::byte>)>& visit) const {
  absl::MutexLock lock(&mutex_);
  for (const auto& [id, model] : models_) {
    for (uint32_t i = 0; i < model->segments.size(); ++i) {
      const Segment& segment = model->segments[i];
      if (segment.residence == Residence::kResident) {
        visit(id, i, {segment.range.data, segment.spec.bytes});
      }
    }
  }
}

absl::Status TierManagerImpl::CheckInvariants() const {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(ledger_.CheckInvariants());
  RETURN_IF_ERROR(coming_.Check(models_));
  std::vector<std::pair<const std::byte*, uint64_t>> ranges;
  uint64_t sum = 0;
  auto add = [&](const DeviceRange& range) {
    ranges.push_back({range.data, range.bytes});
    sum += range.reservation.bytes();
    return range.data != nullptr && range.reservation.bytes() == range.bytes;
  };
  size_t loading = 0;
  for (const auto& [id, model] : models_) {
    RETURN_IF_ERROR(CheckHostLocked(*model));
    uint64_t resident_bytes = 0;
    for (const Segment& segment : model->segments) {
      const std::string name = fmt::format("{} of {}", segment.spec.name, model->spec.name);
      const bool resident = segment.residence == Residence::kResident;
      const bool is_loading = segment.residence == Residence::kLoading;
      if (segment.pins > 0 && !resident) {
        return absl::InternalError(fmt::format("segment {} is pinned but not resident", name));
      }
      if (is_loading != (segment.load != nullptr) || resident != (segment.range.data != nullptr)) {
        return absl::InternalError(fmt::format("segment {}: state and memory disagree", name));
      }
      if ((resident && !add(segment.range)) || (is_loading && !add(segment.load->range))) {
        return absl::InternalError(fmt::format("segment {}: memory and booking disagree", name));
      }
      if (resident) resident_bytes += segment.range.bytes;
      if (is_loading) ++loading;
    }
    if (resident_bytes != model->resident_bytes) {
      return absl::InternalError(fmt::format("model {}: {} bytes resident, {} counted",
                                             model->spec.name, resident_bytes,
                                             model->resident_bytes));
    }
  }
  if (loading != loads_.size()) return absl::InternalError("loads and segments disagree");
  for (const auto& [data, range] : buffers_) {
    if (!add(range)) return absl::InternalError("a buffer's memory and booking disagree");
  }
  if (sum != ledger_.used(Tier::kDevice)) {
    return absl::InternalError(fmt::format("{} bytes allocated on the device, {} booked", sum,
                                           ledger_.used(Tier::kDevice)));
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i - 1].first + ranges[i - 1].second > ranges[i].first) {
      return absl::InternalError("two owners hold the same bytes");
    }
  }
  return absl::OkStatus();
}

}  // namespace terrace::tier
