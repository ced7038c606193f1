#include "scheduler/shares.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace terrace::scheduler {
namespace {

// Shares that differ by less are even: otherwise two tenants would take turns being guests.
constexpr double kEven = 1.1;
// A moment of computing that nobody has to answer for.
constexpr double kFreeUs = 20'000;
// The most that guests may save up, so that they cannot stop the others for long at once.
constexpr double kMostCreditUs = 20'000;
// Forgotten beyond this many, least recently seen first: names come from clients.
constexpr size_t kMostTenants = 4096;

}  // namespace

void ComputeShares::SetWeights(std::map<std::string, double, std::less<>> weights) {
  weights_ = std::move(weights);
}

double ComputeShares::WeightOf(std::string_view tenant) const {
  const auto found = weights_.find(tenant);
  return found == weights_.end() ? 1.0 : found->second;
}

void ComputeShares::Forget(int64_t now_us) {
  std::erase_if(tenants_, [&](const auto& entry) {
    return now_us - entry.second.seen_us > kPresenceUs && Used(entry.first, now_us) < kFreeUs / 100;
  });
  while (tenants_.size() >= kMostTenants) {
    tenants_.erase(std::min_element(
        tenants_.begin(), tenants_.end(),
        [](const auto& a, const auto& b) { return a.second.seen_us < b.second.seen_us; }));
  }
}

void ComputeShares::See(std::string_view tenant, int band, int64_t now_us) {
  auto found = tenants_.find(tenant);
  if (found == tenants_.end()) {
    Forget(now_us);
    found = tenants_.emplace(std::string(tenant), Tenant{.band = band}).first;
  }
  Tenant& each = found->second;
  if (now_us - each.seen_us > kPresenceUs || band < each.band) each.band = band;
  each.seen_us = now_us;
  band_seen_us_[std::clamp(band, 0, 2)] = now_us;
}

double ComputeShares::Used(std::string_view tenant, int64_t now_us) const {
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return 0;
  const auto age_us = static_cast<double>(now_us - found->second.used_at_us);
  return found->second.used_us * std::exp(-age_us / static_cast<double>(kMemoryUs));
}

void ComputeShares::Charge(std::string_view tenant, double us, int64_t now_us) {
  const double used = Used(tenant, now_us);
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return;  // See comes first
  found->second.used_us = used + us;
  found->second.used_at_us = now_us;
}

bool ComputeShares::IsGuest(std::string_view tenant, int band, int64_t now_us) {
  for (int better = 0; better < band; ++better) {
    if (band_seen_us_[better] > 0 && now_us - band_seen_us_[better] <= kPresenceUs) return true;
  }
  // Among those there, and no worse than this one.
  double used = 0, weights = 0;
  int others = 0;
  for (const auto& [name, each] : tenants_) {
    if (now_us - each.seen_us > kPresenceUs || each.band > band) continue;
    used += Used(name, now_us);
    weights += WeightOf(name);
    others += name != tenant;
  }
  if (others == 0) return false;
  const double mine = Used(tenant, now_us);
  return mine > kFreeUs && mine / WeightOf(tenant) > kEven * used / weights;
}

void ComputeShares::OnStep(double others_us, double guests_us) {
  credit_us_ = std::min(credit_us_ + others_us * kGuestShare - guests_us, kMostCreditUs);
}

}  // namespace terrace::scheduler
