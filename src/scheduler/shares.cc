#include "scheduler/shares.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

namespace terrace::scheduler {
namespace {

// Computing that differs by less, for a share of 1, is even: two tenants would otherwise take turns
// being guests all the time.
constexpr double kEvenUs = 50'000;
// Less than this is not worth remembering.
constexpr double kForgottenUs = 200;
// Beyond this many the quarter that was seen least recently is forgotten: names come from clients.
constexpr size_t kMostTenants = 4096;
constexpr size_t kFewTenants = 64;

}  // namespace

void ComputeShares::SetWeights(std::map<std::string, double, std::less<>> weights) {
  weights_ = std::move(weights);
  summed_us_ = -1;
}

void ComputeShares::SetLimits(std::map<std::string, double, std::less<>> limits) {
  limits_.clear();
  for (const auto& [name, share] : limits) limits_[name].share = share;
}

int64_t ComputeShares::PausedUs(std::string_view tenant, int64_t now_us) const {
  const auto found = limits_.find(tenant);
  if (found == limits_.end()) return 0;
  const double left_us = found->second.LeftUs(now_us);
  // A microsecond more than nothing, so that time that has passed is seen to have.
  return left_us > 0 ? 0 : static_cast<int64_t>(-left_us / found->second.share) + 1;
}

double ComputeShares::WeightOf(std::string_view tenant) const {
  const auto found = weights_.find(tenant);
  return found == weights_.end() ? 1.0 : found->second;
}

void ComputeShares::Forget(int64_t now_us) {
  if (tenants_.size() < forget_at_) return;
  std::erase_if(tenants_, [&](const auto& entry) {
    return now_us - entry.second.seen_us > kPresenceUs &&
           UsedBy(entry.second, now_us) < kForgottenUs;
  });
  if (tenants_.size() >= kMostTenants) {
    std::vector<int64_t> seen_us;
    for (const auto& [name, each] : tenants_) seen_us.push_back(each.seen_us);
    const auto quarter = seen_us.begin() + static_cast<ptrdiff_t>(seen_us.size() / 4);
    std::nth_element(seen_us.begin(), quarter, seen_us.end());
    std::erase_if(tenants_, [&](const auto& entry) { return entry.second.seen_us <= *quarter; });
  }
  // Not again for each that comes.
  forget_at_ = std::clamp(2 * tenants_.size(), kFewTenants, kMostTenants);
}

void ComputeShares::See(std::string_view tenant, int band, int64_t now_us) {
  auto found = tenants_.find(tenant);
  if (found == tenants_.end()) {
    Forget(now_us);
    found = tenants_.emplace(std::string(tenant), Tenant{.band = band}).first;
  }
  summed_us_ = -1;
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
  if (found == tenants_.end()) return;
  found->second.promised_us = std::min(us, kMostPromiseUs);
  summed_us_ = -1;
}

void ComputeShares::Charge(std::string_view tenant, double us, int64_t now_us) {
  if (const auto limit = limits_.find(tenant); limit != limits_.end()) {
    limit->second.left_us = limit->second.LeftUs(now_us) - us;
    limit->second.at_us = now_us;
  }
  const double used = Used(tenant, now_us);
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return;  // See comes first
  summed_us_ = -1;
  found->second.used_us = used + us;
  found->second.used_at_us = now_us;
}

bool ComputeShares::IsGuest(std::string_view tenant, int band, int64_t now_us) {
  for (int better = 0; better < band; ++better) {
    if (band_seen_us_[better] > 0 && now_us - band_seen_us_[better] <= kPresenceUs) return true;
  }
  if (summed_us_ != now_us) Sum(now_us);
  // Among those there, and no worse than this one.
  const Sums& sums = sums_[static_cast<size_t>(std::clamp(band, 0, 2))];
  const auto found = tenants_.find(tenant);
  const bool counted = found != tenants_.end() && found->second.band <= band &&
                       now_us - found->second.seen_us <= kPresenceUs;
  if (sums.count - (counted ? 1 : 0) == 0) return false;
  const double mine = counted ? UsedBy(found->second, now_us) + found->second.promised_us : 0;
  return mine / WeightOf(tenant) > sums.used_us / sums.weights + kEvenUs;
}

void ComputeShares::Sum(int64_t now_us) {
  sums_ = {};
  for (const auto& [name, each] : tenants_) {
    if (now_us - each.seen_us > kPresenceUs) continue;
    const double used_us = UsedBy(each, now_us) + each.promised_us;
    const double weight = WeightOf(name);
    for (auto band = static_cast<size_t>(std::clamp(each.band, 0, 2)); band < sums_.size();
         ++band) {
      sums_[band].used_us += used_us;
      sums_[band].weights += weight;
      ++sums_[band].count;
    }
  }
  summed_us_ = now_us;
}

void ComputeShares::OnStep(double others_us, double guests_us) {
  // No more is saved up than a piece's worth, so that they cannot stop the others for long at
  // once.
  credit_us_ = std::min(credit_us_ + others_us * kGuestShare - guests_us, kSliceUs);
}

}  // namespace terrace::scheduler
