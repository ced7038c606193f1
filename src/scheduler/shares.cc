#include "scheduler/shares.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace terrace::scheduler {
namespace {

// Computing that differs by less, for a share of 1, is even: two tenants would otherwise take turns
// being guests all the time.
constexpr double kEvenUs = 50'000;
// Less than this is not worth remembering.
constexpr double kForgottenUs = 200;
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
    return now_us - entry.second.seen_us > kPresenceUs && Used(entry.first, now_us) < kForgottenUs;
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
  const bool comes = each.seen_us == 0 || now_us - each.seen_us > kPresenceUs;
  if (comes || band < each.band) each.band = band;
  if (comes) Level(tenant, &each, now_us);
  each.seen_us = now_us;
  band_seen_us_[std::clamp(band, 0, 2)] = now_us;
}

void ComputeShares::Level(std::string_view tenant, Tenant* each, int64_t now_us) {
  double least = -1;  // of those there, for a share of 1
  for (const auto& [name, other] : tenants_) {
    if (&other == each || now_us - other.seen_us > kPresenceUs) continue;
    const double used = UsedBy(other, now_us) / WeightOf(name);
    if (least < 0 || used < least) least = used;
  }
  each->used_us = std::max(UsedBy(*each, now_us), least * WeightOf(tenant));
  each->used_at_us = now_us;
}

bool ComputeShares::Shared(int64_t now_us) const {
  return std::count_if(tenants_.begin(), tenants_.end(), [now_us](const auto& entry) {
           return now_us - entry.second.seen_us <= kPresenceUs;
         }) > 1;
}

double ComputeShares::UsedBy(const Tenant& each, int64_t now_us) {
  const auto age_us = static_cast<double>(now_us - each.used_at_us);
  return each.used_us * std::exp(-age_us / static_cast<double>(kMemoryUs));
}

double ComputeShares::Used(std::string_view tenant, int64_t now_us) const {
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return 0;
  return UsedBy(found->second, now_us);
}

void ComputeShares::Promise(std::string_view tenant, double us) {
  const auto found = tenants_.find(tenant);
  if (found != tenants_.end()) found->second.promised_us = std::min(us, kMostPromiseUs);
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
  double used = 0, weights = 0, mine = 0;
  int others = 0;
  for (const auto& [name, each] : tenants_) {
    if (now_us - each.seen_us > kPresenceUs || each.band > band) continue;
    const double its_us = UsedBy(each, now_us) + each.promised_us;
    if (name == tenant) mine = its_us;
    used += its_us;
    weights += WeightOf(name);
    others += name != tenant;
  }
  if (others == 0) return false;
  return mine / WeightOf(tenant) > used / weights + kEvenUs;
}

void ComputeShares::OnStep(double others_us, double guests_us) {
  // No more is saved up than a piece's worth, so that they cannot stop the others for long at
  // once.
  credit_us_ = std::min(credit_us_ + others_us * kGuestShare - guests_us, kSliceUs);
}

}  // namespace terrace::scheduler
