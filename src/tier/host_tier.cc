// The host tier of a device with memory of its own: segments read from disk leave a copy in host
// memory, within the host budget, from which they come back over the device's link alone.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/status.h"
#include "base/units.h"
#include "tier/manager_impl.h"

namespace terrace::tier {

// The asking model's own copies are no candidates: what it brings is needed again only after all
// the others of its round, so that to exchange one for another would gain nothing.
absl::StatusOr<Reservation> TierManagerImpl::TakeHostRoomLocked(const Owner& owner, uint64_t bytes,
                                                                const Model* keep) {
  if (ledger_.free(Tier::kHost) < bytes) {
    std::vector<EvictionCandidate> candidates;
    uint64_t available = ledger_.free(Tier::kHost);
    for (const auto& [id, model] : models_) {
      if (model.get() == keep || model->host_bytes == 0) continue;
      for (uint32_t i = 0; i < model->segments.size(); ++i) {
        const HostCopy& host = model->segments[i].host;
        if (!host.complete || host.users > 0) continue;
        available += host.reservation.bytes();
        candidates.push_back({.model = id,
                              .segment = i,
                              .bytes = host.reservation.bytes(),
                              .history = model->history,
                              .hot_until_us = model->HotUntilUs(),
                              .steps_ahead = model->StepsAhead(i),
                              .reload_us = ReloadUsLocked(disk_, host.reservation.bytes()),
                              .sla_weight = model->spec.sla_weight});
      }
    }
    if (available >= bytes) {
      parts_.policy->Order({.now_us = clock_->NowUs()}, candidates);
      for (size_t i = 0; ledger_.free(Tier::kHost) < bytes && i < candidates.size(); ++i) {
        Model& model = *models_.at(candidates[i].model);
        DropHostLocked(model, model.segments[candidates[i].segment]);
      }
    }
  }
  return ledger_.Reserve(Tier::kHost, owner, bytes);
}

absl::StatusOr<HostBuffer> TierManagerImpl::AllocateHost(const Owner& owner, uint64_t bytes) {
  HostBuffer buffer;
  {
    absl::MutexLock lock(&mutex_);
    ASSIGN_OR_RETURN(buffer.reservation_, TakeHostRoomLocked(owner, bytes, nullptr));
  }
  ASSIGN_OR_RETURN(buffer.memory_, host_arena_.Allocate(bytes));
  buffer.bytes_ = bytes;
  return buffer;
}

void TierManagerImpl::DropHostLocked(Model& model, Segment& segment) {
  model.host_bytes -= segment.host.reservation.bytes();
  segment.host.pin.Reset();
  segment.host.memory = os::Mapping();  // memory first, then its booking
  segment.host.reservation.Release();
  segment.host.complete = false;
}

void TierManagerImpl::JoinHostLocked(Load& load) {
  if (unified_ || options_.host_budget_bytes == 0) return;
  Model& model = *load.model;
  Segment& segment = model.segments[load.segment];
  if (segment.host.complete) {
    load.from_host = true;
    ++segment.host.users;
    return;
  }
  const Owner owner{model.spec.name, model.spec.tenant, Kind::kWeights};
  absl::StatusOr<Reservation> room = TakeHostRoomLocked(owner, segment.spec.bytes, &model);
  if (!room.ok()) return;  // it goes through the staging ring instead
  absl::StatusOr<os::Mapping> memory = os::Mapping::Anonymous(segment.spec.bytes);
  if (!memory.ok()) return;
  segment.host.memory = *std::move(memory);
  segment.host.reservation = *std::move(room);
  segment.host.users = 1;
  model.host_bytes += segment.host.reservation.bytes();
  load.fills_host = true;
}

void TierManagerImpl::LeaveHostLocked(Load& load, bool loaded) {
  if (!load.from_host && !load.fills_host) return;
  Segment& segment = load.model->segments[load.segment];
  --segment.host.users;
  if (load.fills_host) segment.host.complete = loaded;
  if (!segment.host.complete) DropHostLocked(*load.model, segment);
  load.from_host = load.fills_host = false;
}

absl::Status TierManagerImpl::CheckHostLocked(const Model& model) const {
  uint64_t bytes = 0;
  for (const Segment& segment : model.segments) {
    const HostCopy& host = segment.host;
    const Load* load = segment.load.get();
    const uint32_t users = load != nullptr && (load->from_host || load->fills_host) ? 1 : 0;
    if (host.users != users || host.memory.bytes() != host.reservation.bytes() ||
        (host.complete && !host.memory) || (host.memory && !host.complete && host.users == 0)) {
      return absl::InternalError(fmt::format("host copy of {} of {}: state and memory disagree",
                                             segment.spec.name, model.spec.name));
    }
    bytes += host.reservation.bytes();
  }
  if (bytes != model.host_bytes) {
    return absl::InternalError(fmt::format("model {}: {} bytes on the host, {} counted",
                                           model.spec.name, bytes, model.host_bytes));
  }
  return absl::OkStatus();
}

}  // namespace terrace::tier
