// How the tier manager makes room: what may be evicted for whom, in which order, and when a caller
// waits.
#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/status.h"
#include "base/units.h"
#include "tier/manager_impl.h"
#include "tier/planted.h"

namespace terrace::tier {
namespace {

// A waiter looks again this often even if nothing signals (cancel flags, hot_keep_time running
// out).
constexpr int64_t kRoomPollUs = 10'000;
constexpr int64_t kLoadPatienceUs = 10'000'000;
// A model that is larger than what fits reads this far ahead at the cost of its own segments. More
// would turn all memory into a window that slides over the model, so that each round reads all of
// it; with a short window the rest stays and is found again in the next round.
constexpr uint64_t kOwnWindowBytes = 64 * kMiB;

}  // namespace

device::PlaceHint RoomRequest::Hint() const {
  if (model == nullptr) return {};
  device::PlaceHint hint{model->segments[segment].place, true};
  if (hint.at == nullptr && segment > 0) {
    const Segment& before = model->segments[segment - 1];
    if (before.place != nullptr) hint.at = before.place + before.spec.bytes;
  }
  return hint;
}

uint64_t TierManagerImpl::RoundedBytes(uint64_t bytes) const {
  return AlignUp(bytes, device_->info().granularity);
}

bool TierManagerImpl::ReclaimIdle(uint64_t bytes, bool anything, const std::string& asking) {
  if (idle_memory_ == nullptr) return false;
  uint64_t wanted = RoundedBytes(bytes);
  int64_t used_before_us = std::numeric_limits<int64_t>::max();
  {
    absl::MutexLock lock(&mutex_);
    const uint64_t free = ledger_.free(Tier::kDevice);
    if (free >= wanted) return false;  // there is room: a quota is what stands in the way
    wanted -= free;
    const int64_t now = clock_->NowUs();
    const uint64_t workspace = ledger_.used(Tier::kDevice, Kind::kWorkspace);
    // One order of age for weights and idle KV: the oldest go first, whichever they are.
    for (const auto& [id, model] : models_) {
      if (anything || model->resident_bytes == 0) continue;
      const bool fits = model->bytes + workspace <= options_.device_budget_bytes;
      if (fits && model->spec.name == asking) continue;
      if (model->leased_until_us > now) continue;  // it makes no room, however old it is
      const bool pinned = std::any_of(model->segments.begin(), model->segments.end(),
                                      [](const Segment& s) { return s.pins > 0; });
      if (!pinned) used_before_us = std::min(used_before_us, model->history.last_us);
    }
  }
  if (idle_memory_->OldestIdleUs() >= used_before_us) return false;
  return idle_memory_->Reclaim(wanted, used_before_us) > 0;
}

// Prefetches may not take what is wanted sooner than what they bring:
//  - of the asking model only segments whose turn comes later than the asked one's, and only if
//    that one's turn comes soon;
//  - of models in use right now (pinned, or waited for) likewise;
//  - at kPredicted and below nothing of hot models at all.
std::vector<EvictionCandidate> TierManagerImpl::CandidatesLocked(const RoomRequest& request) const {
  const int64_t now = clock_->NowUs();
  const int64_t wall_us = clock_->WallUs();
  const bool demand = request.priority == Priority::kDemand;
  const uint32_t asked_steps =
      request.model != nullptr ? request.model->StepsAhead(request.segment) : 0;
  const bool asked_expert = request.model != nullptr &&
                            request.model->segments[request.segment].spec.expert &&
                            ExpertsOnDemandLocked(*request.model);
  bool own_allowed = demand || asked_steps == 0 || asked_expert;
  if (!own_allowed && request.model != nullptr) {
    const Model& model = *request.model;
    uint64_t ahead = 0;
    for (uint32_t i = 1; i <= asked_steps + 1; ++i) {
      ahead += model.segments[(model.position + i) % model.segments.size()].spec.bytes;
    }
    own_allowed = ahead <= std::min(kOwnWindowBytes, options_.device_budget_bytes / 4);
  }
  std::vector<EvictionCandidate> candidates;
  const double usual_pass = UsualPassUsPerByteLocked();
  for (const auto& [id, model] : models_) {
    if (model->resident_bytes == 0) continue;
    const bool own = model.get() == request.model;
    if (own && !own_allowed) continue;
    if (!own && model->leased_until_us > now) continue;
    const int64_t hot_until_us = model->HotUntilUs();
    if (!own && request.priority >= Priority::kPredicted && hot_until_us > now) continue;
    const bool in_use =
        own || std::any_of(model->segments.begin(), model->segments.end(), [](const Segment& s) {
          return s.pins > 0 || (s.load != nullptr && s.load->waiters > 0);
        });
    const bool experts_on_demand = ExpertsOnDemandLocked(*model);
    const double usual_rate = model->history.UsualRate(now, wall_us);
    const auto model_bytes = static_cast<double>(model->bytes);
    const double pass_us = model->pass_us > 0 ? model->pass_us : usual_pass * model_bytes;
    uint64_t tail_bytes = 0;
    for (auto i = static_cast<uint32_t>(model->segments.size()); i-- > 0;) {
      const Segment& segment = model->segments[i];
      tail_bytes += RoundedBytes(segment.spec.bytes);
      if (segment.residence != Residence::kResident) continue;
      if (segment.pins > 0 && !kPlantEvictPinned) continue;
      const uint32_t steps = model->StepsAhead(i);
      // Of experts those asked for in this pass are in use.
      const bool sooner = segment.spec.expert && experts_on_demand
                              ? segment.last_pass == model->pass
                              : steps <= asked_steps;
      if (!demand && in_use && sooner) continue;
      // With everything from here to the tail gone, what stays computes for so long:
      const double head_us = pass_us * static_cast<double>(model->bytes - tail_bytes) / model_bytes;
      const TransferQueue& link = segment.host.complete ? copy_ : disk_;
      candidates.push_back({.model = id,
                            .segment = i,
                            .bytes = segment.range.bytes,
                            .history = model->history,
                            .hot_until_us = hot_until_us,
                            .own = own,
                            .steps_ahead = steps,
                            .own_value = experts_on_demand ? OwnValueLocked(*model, segment) : 0,
                            // Its share of reading the model: a latency a segment would set small
                            // segments apart, and the tail would not go as one piece.
                            .reload_us = ReloadUsLocked(link, model->bytes) *
                                         static_cast<double>(segment.range.bytes) / model_bytes,
                            .hidden = ReloadUsLocked(link, tail_bytes) <= head_us,
                            .link_busy = link.busy_share(),
                            .sla_weight = model->spec.sla_weight,
                            .usual_rate = usual_rate});
    }
  }
  return candidates;
}

double TierManagerImpl::ReloadUsLocked(const TransferQueue& link, uint64_t bytes) const {
  // Before anything has been measured: a plain NVMe disk.
  constexpr double kUnknownBytesPerUs = 1000;
  const double measured = link.bandwidth_bytes_per_s() * 1e-6;
  return link.latency_us() +
         static_cast<double>(bytes) / (measured > 0 ? measured : kUnknownBytesPerUs);
}

void TierManagerImpl::ReclaimPastThresholdLocked() {
  const double limit = options_.swap_threshold * static_cast<double>(options_.device_budget_bytes);
  auto above = [&] { return static_cast<double>(ledger_.used(Tier::kDevice)) > limit; };
  if (!above()) return;
  // As for a guess: nothing hot, nothing in use, nothing leased.
  std::vector<EvictionCandidate> candidates =
      CandidatesLocked({.model = nullptr, .segment = 0, .priority = Priority::kPredicted});
  std::vector<EvictionCandidate> expired;
  for (const EvictionCandidate& candidate : candidates) {
    const Model& model = *models_.at(candidate.model);
    const bool in_use = std::any_of(
        model.segments.begin(), model.segments.end(),
        [](const auto& s) { return s.pins > 0 || (s.load != nullptr && s.load->waiters > 0); });
    if (!in_use && !model.at_work && model.spec.hot_keep_us > 0) expired.push_back(candidate);
  }
  parts_.policy->Order({.now_us = clock_->NowUs()}, expired);
  for (size_t i = 0; i < expired.size() && above(); ++i) {
    FreeRangeLocked(DetachLocked(*models_.at(expired[i].model), expired[i].segment));
  }
}

DeviceRange TierManagerImpl::DetachLocked(Model& model, uint32_t index) {
  Segment& segment = model.segments[index];
  segment.residence = Residence::kAbsent;
  segment.passing = false;
  model.resident_bytes -= segment.range.bytes;
  coming_.Update(model);
  ++model.evictions;
  return std::exchange(segment.range, DeviceRange{});
}

void TierManagerImpl::FreeRangeLocked(DeviceRange range) {
  // Memory first, then its booking: the device never holds more than what is booked.
  device_->Free(range.data, range.bytes);
  range.reservation.Release();
  if (room_waiters_ > 0) changed_.SignalAll();
}

void TierManagerImpl::FreeBuffer(std::byte* data) {
  if (options_.freed) options_.freed(data);
  absl::MutexLock lock(&mutex_);
  auto found = buffers_.find(data);
  DeviceRange range = std::move(found->second);
  buffers_.erase(found);
  // Whoever comes next writes over it: clearing pages anew costs more than reading them from disk.
  device_->FreeForExchange(range.data, range.bytes);
  range.reservation.Release();
  if (room_waiters_ > 0) changed_.SignalAll();
}

std::vector<EvictionCandidate> TierManagerImpl::VictimsLocked(const RoomRequest& request) const {
  std::vector<EvictionCandidate> candidates = CandidatesLocked(request);
  EvictionRequest policy_request;
  policy_request.now_us = clock_->NowUs();
  if (request.model != nullptr) policy_request.own_model_fits = FitsLocked(*request.model);
  parts_.policy->Order(policy_request, candidates);
  return candidates;
}

absl::StatusOr<DeviceRange> TierManagerImpl::TakeRoomLocked(const Owner& owner, uint64_t bytes,
                                                            const RoomRequest& request) {
  const uint64_t rounded = RoundedBytes(bytes);
  if (ledger_.QuotaLeft(Tier::kDevice, owner) < rounded) {
    return ledger_.Reserve(Tier::kDevice, owner, rounded).status();
  }
  std::vector<EvictionCandidate> candidates;
  size_t next = 0;
  std::vector<device::MemoryRange> gone;  // booked no more, given back when the new one is taken
  auto evict_one = [&] {
    mutex_.AssertHeld();
    const EvictionCandidate& victim = candidates[next++];
    DeviceRange range = DetachLocked(*models_.at(victim.model), victim.segment);
    range.reservation.Release();
    gone.push_back({range.data, range.bytes});
  };
  auto allocate = [&]() -> absl::StatusOr<std::byte*> {
    // Weights and KV are written over whatever was there; a workspace gets clean memory.
    if (owner.kind != Kind::kWorkspace) {
      return device_->Exchange(std::exchange(gone, {}), rounded, request.Hint());
    }
    for (const device::MemoryRange& range : std::exchange(gone, {})) {
      device_->Free(range.data, range.bytes);
    }
    return device_->Allocate(rounded);
  };
  if (ledger_.free(Tier::kDevice) < rounded) {
    auto available = [&] {
      uint64_t sum = ledger_.free(Tier::kDevice);
      for (const EvictionCandidate& candidate : candidates) sum += candidate.bytes;
      return sum;
    };
    candidates = ExpertVictimsLocked(request, rounded);
    if (available() < rounded) candidates = VictimsLocked(request);
    if (available() < rounded) {
      if (request.priority != Priority::kDemand) return absl::ResourceExhaustedError("no room");
      // What is being loaded for nobody in particular gives way; some of it at once.
      CancelPrefetchesLocked(rounded - available(), request);
      if (available() < rounded) {  // evicting would be for nothing
        return ledger_.Reserve(Tier::kDevice, owner, rounded).status();
      }
    }
    while (ledger_.free(Tier::kDevice) < rounded) evict_one();
  }
  DeviceRange range;
  absl::StatusOr<Reservation> booked = ledger_.Reserve(Tier::kDevice, owner, rounded);
  if (!booked.ok()) {
    for (const device::MemoryRange& freed : gone) device_->Free(freed.data, freed.bytes);
    return booked.status();
  }
  range.reservation = *std::move(booked);
  range.bytes = rounded;
  absl::StatusOr<std::byte*> data = allocate();
  // The budget has room, but the device may be cut into pieces or hold less than the budget says.
  if (absl::IsResourceExhausted(data.status()) && candidates.empty()) {
    candidates = VictimsLocked(request);
  }
  while (absl::IsResourceExhausted(data.status()) && next < candidates.size()) {
    evict_one();
    data = allocate();
  }
  if (!data.ok()) return data.status();
  range.data = *data;
  return range;
}

void TierManagerImpl::CancelPrefetchesLocked(uint64_t bytes, const RoomRequest& request) {
  std::vector<std::shared_ptr<Load>> idle;
  for (const auto& [id, load] : loads_) {
    if (load->waiters > 0) continue;
    if (load->cancel.cancelled) {
      bytes -= std::min(bytes, load->range.bytes);
    } else {
      idle.push_back(load);
    }
  }
  // Least urgent first; then those of other models; then what is needed last.
  auto key = [&](const Load& load) {
    return std::tuple(load.priority, load.model != request.model,
                      load.model->StepsAhead(load.segment), load.id);
  };
  std::sort(idle.begin(), idle.end(),
            [&](const auto& a, const auto& b) { return key(*a) > key(*b); });
  for (const auto& load : idle) {
    if (bytes == 0) return;
    bytes -= std::min(bytes, load->range.bytes);
    CancelLoadLocked(*load);
  }
}

RoomHope TierManagerImpl::HopeForRoomLocked(const Owner& owner, uint64_t bytes) const {
  if (ledger_.QuotaLeft(Tier::kDevice, owner) < bytes) return RoomHope::kNone;
  const int64_t now = clock_->NowUs();
  uint64_t now_free = ledger_.free(Tier::kDevice);  // or evictable
  uint64_t loading = 0;                             // for nobody: ends by itself
  uint64_t pinned = 0;
  for (const auto& [id, model] : models_) {
    for (const Segment& segment : model->segments) {
      if (segment.residence == Residence::kAbsent) continue;
      const bool held = segment.pins > 0 ||
                        (segment.load != nullptr && segment.load->waiters > 0) ||
                        (model->leased_until_us > now && model->spec.name != owner.model);
      const bool under_way = segment.residence == Residence::kLoading;
      (held ? pinned : under_way ? loading : now_free) += RoundedBytes(segment.spec.bytes);
    }
  }
  // Enough bytes, and yet it was refused: the device is cut into pieces that only pins hold apart.
  if (now_free >= bytes) return RoomHope::kIfUnpinned;
  if (now_free + loading >= bytes) return RoomHope::kSoon;
  return now_free + loading + pinned >= bytes ? RoomHope::kIfUnpinned : RoomHope::kNone;
}

bool TierManagerImpl::AwaitRoomLocked(const Owner& owner, uint64_t bytes, int64_t* since_us) {
  const RoomHope hope = HopeForRoomLocked(owner, bytes);
  if (hope == RoomHope::kNone) return false;
  const int64_t now = WaitNowUs();
  if (*since_us == 0) *since_us = now;
  // Loads that nobody waits for end by themselves, unless the disk hangs.
  const int64_t patience_us =
      options_.pin_wait_us + (hope == RoomHope::kSoon ? kLoadPatienceUs : 0);
  if (now - *since_us > patience_us) return false;
  brake_.Lift();  // a step may wait for room that loads hold
  ++room_waiters_;
  WaitLocked(kRoomPollUs);
  --room_waiters_;
  return true;
}

}  // namespace terrace::tier
