// Models with experts that do not fit as a whole: their experts come when a pass asks for them and
// share what the rest leaves, by recency and frequency of use (as LRFU weighs them, Lee et al.
// 2001), with a bound on how many a pass may exchange.
#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "tier/manager_impl.h"

namespace terrace::tier {
namespace {

// Passes after which a use counts half.
constexpr double kHeatHalfLife = 64;

double HeatNow(const Model& model, const Segment& segment) {
  const auto passes = static_cast<double>(model.pass - segment.heat_pass);
  return segment.heat * std::exp2(-passes / kHeatHalfLife);
}

}  // namespace

bool TierManagerImpl::FitsLocked(const Model& model) const {
  const uint64_t fixed =
      ledger_.used(Tier::kDevice, Kind::kKv) + ledger_.used(Tier::kDevice, Kind::kWorkspace);
  return model.bytes <= options_.device_budget_bytes - fixed;
}

bool TierManagerImpl::ExpertsOnDemandLocked(const Model& model) const {
  return model.has_experts && !FitsLocked(model);
}

void TierManagerImpl::TouchExpertLocked(Model& model, Segment& segment) {
  segment.heat = HeatNow(model, segment) + 1;
  segment.heat_pass = segment.last_pass = model.pass;
}

double TierManagerImpl::OwnValueLocked(const Model& model, const Segment& segment) const {
  if (!segment.spec.expert) return 1;
  if (segment.passing) return -1;
  const double heat = HeatNow(model, segment);
  return heat / (1 + heat);
}

std::vector<EvictionCandidate> TierManagerImpl::ExpertVictimsLocked(const RoomRequest& request,
                                                                    uint64_t bytes) const {
  std::vector<EvictionCandidate> victims;
  const Model* asking = request.model;
  if (asking == nullptr || !asking->segments[request.segment].spec.expert ||
      !ExpertsOnDemandLocked(*asking)) {
    return victims;
  }
  const int64_t now = clock_->NowUs();
  for (const auto& [id, model] : models_) {
    const bool gives = model.get() != asking && model->resident_bytes > 0 &&
                       model->leased_until_us <= now && model->HotUntilUs() <= now;
    if (gives) return victims;
  }
  // Few are wanted of many: looked for, not sorted.
  const bool demand = request.priority == Priority::kDemand;
  std::vector<std::pair<double, uint32_t>> order;
  for (uint32_t i = 0; i < asking->segments.size(); ++i) {
    const Segment& segment = asking->segments[i];
    if (!segment.spec.expert || segment.residence != Residence::kResident || segment.pins > 0) {
      continue;
    }
    if (!demand && segment.last_pass == asking->pass) continue;
    order.emplace_back(OwnValueLocked(*asking, segment), i);
  }
  std::make_heap(order.begin(), order.end(), std::greater<>());
  for (uint64_t found = ledger_.free(Tier::kDevice); found < bytes && !order.empty();) {
    std::pop_heap(order.begin(), order.end(), std::greater<>());
    const uint32_t index = order.back().second;
    order.pop_back();
    victims.push_back({.model = asking->id,
                       .segment = index,
                       .bytes = asking->segments[index].range.bytes,
                       .own = true});
    found += victims.back().bytes;
  }
  return victims;
}

}  // namespace terrace::tier
