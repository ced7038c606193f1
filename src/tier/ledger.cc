#include "tier/ledger.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "base/units.h"
#include "tier/planted.h"

namespace terrace::tier {

const char* Name(Tier tier) {
  switch (tier) {
    case Tier::kDevice:
      return "device";
    case Tier::kHost:
      return "host";
    case Tier::kDisk:
      return "disk";
    case Tier::kObject:
      return "object";
    case Tier::kRemote:
      return "remote";
  }
  return "unknown";
}

const char* Name(Kind kind) {
  switch (kind) {
    case Kind::kWeights:
      return "weights";
    case Kind::kKv:
      return "kv";
    case Kind::kWorkspace:
      return "workspace";
    case Kind::kStaging:
      return "staging";
  }
  return "unknown";
}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this == &other) return *this;
  Release();
  ledger_ = std::exchange(other.ledger_, nullptr);
  tier_ = other.tier_;
  owner_ = std::move(other.owner_);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void Reservation::Release() {
  if (ledger_ == nullptr) return;
  ledger_->Return(*this);
  if (kPlantDoubleRelease && ledger_->used(tier_) >= bytes_) ledger_->Return(*this);
  ledger_ = nullptr;
  bytes_ = 0;
}

absl::StatusOr<Reservation> Ledger::Reserve(Tier tier, const Owner& owner, uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  const size_t index = static_cast<size_t>(tier);
  const uint64_t budget = budgets_[index];
  if (bytes > budget - used_[index]) {
    return absl::ResourceExhaustedError(
        fmt::format("{} ({} bytes) asked for {} of {} on the {} tier, {} of {} are booked: {}",
                    FormatBytes(bytes), bytes, Name(owner.kind), owner.model, Name(tier),
                    FormatBytes(used_[index]), FormatBytes(budget), DescribeLocked(tier)));
  }
  const uint64_t left = QuotaLeftLocked(tier, owner);
  if (bytes > left) {
    return absl::ResourceExhaustedError(
        fmt::format("{} asked for {} of {} (tenant '{}') on the {} tier, its quota leaves {}",
                    FormatBytes(bytes), Name(owner.kind), owner.model, owner.tenant, Name(tier),
                    FormatBytes(left)));
  }
  lines_[{tier, owner.model, owner.tenant, owner.kind}] += bytes;
  used_[index] += bytes;
  by_kind_[index][static_cast<size_t>(owner.kind)] += bytes;
  by_model_[{tier, owner.model}] += bytes;
  by_tenant_[{tier, owner.tenant}] += bytes;
  return Reservation(this, tier, owner, bytes);
}

void Ledger::Return(const Reservation& reservation) {
  absl::MutexLock lock(&mutex_);
  const Owner& owner = reservation.owner();
  const Tier tier = reservation.tier();
  const uint64_t bytes = reservation.bytes();
  auto take = [bytes](auto& map, const auto& key) {
    auto found = map.find(key);
    if (found == map.end()) return;  // only after a double release: CheckInvariants finds it
    found->second -= bytes;
    if (found->second == 0) map.erase(found);
  };
  take(lines_, Key{tier, owner.model, owner.tenant, owner.kind});
  take(by_model_, std::pair{tier, owner.model});
  take(by_tenant_, std::pair{tier, owner.tenant});
  used_[static_cast<size_t>(tier)] -= bytes;
  by_kind_[static_cast<size_t>(tier)][static_cast<size_t>(owner.kind)] -= bytes;
}

void Ledger::SetModelQuota(Tier tier, const std::string& model, uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  model_quotas_[{tier, model}] = bytes;
}

void Ledger::SetTenantQuota(Tier tier, const std::string& tenant, uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  tenant_quotas_[{tier, tenant}] = bytes;
}

uint64_t Ledger::used(Tier tier) const {
  absl::MutexLock lock(&mutex_);
  return used_[static_cast<size_t>(tier)];
}

uint64_t Ledger::free(Tier tier) const { return budget(tier) - used(tier); }

uint64_t Ledger::used(Tier tier, Kind kind) const {
  absl::MutexLock lock(&mutex_);
  return by_kind_[static_cast<size_t>(tier)][static_cast<size_t>(kind)];
}

uint64_t Ledger::QuotaLeft(Tier tier, const Owner& owner) const {
  absl::MutexLock lock(&mutex_);
  return QuotaLeftLocked(tier, owner);
}

uint64_t Ledger::QuotaLeftLocked(Tier tier, const Owner& owner) const {
  uint64_t left = std::numeric_limits<uint64_t>::max();
  auto narrow = [&](const auto& quotas, const auto& booked, const std::string& name) {
    auto quota = quotas.find({tier, name});
    if (quota == quotas.end()) return;
    auto held = booked.find({tier, name});
    const uint64_t used = held == booked.end() ? 0 : held->second;
    left = std::min(left, quota->second > used ? quota->second - used : 0);
  };
  narrow(model_quotas_, by_model_, owner.model);
  narrow(tenant_quotas_, by_tenant_, owner.tenant);
  return left;
}

std::vector<LedgerLine> Ledger::Lines() const {
  absl::MutexLock lock(&mutex_);
  std::vector<LedgerLine> lines;
  for (const auto& [key, bytes] : lines_) {
    const auto& [tier, model, tenant, kind] = key;
    lines.push_back({tier, {model, tenant, kind}, bytes});
  }
  return lines;
}

std::string Ledger::Describe(Tier tier) const {
  absl::MutexLock lock(&mutex_);
  return DescribeLocked(tier);
}

std::string Ledger::DescribeLocked(Tier tier) const {
  std::vector<std::pair<uint64_t, const Key*>> holders;
  for (const auto& [key, bytes] : lines_) {
    if (std::get<0>(key) == tier) holders.push_back({bytes, &key});
  }
  if (holders.empty()) return "nobody holds any";
  std::stable_sort(holders.begin(), holders.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t i = 0; i < std::min(holders.size(), kShown); ++i) {
    const auto& [unused_tier, model, tenant, kind] = *holders[i].second;
    text += fmt::format("{}{} {} {}", i == 0 ? "" : ", ", model, Name(kind),
                        FormatBytes(holders[i].first));
  }
  if (holders.size() > kShown) text += fmt::format(" and {} more", holders.size() - kShown);
  return text;
}

absl::Status Ledger::CheckInvariants() const {
  absl::MutexLock lock(&mutex_);
  std::array<uint64_t, kTierCount> sums = {};
  for (const auto& [key, bytes] : lines_) sums[static_cast<size_t>(std::get<0>(key))] += bytes;
  for (size_t tier = 0; tier < kTierCount; ++tier) {
    uint64_t kinds = 0;
    for (uint64_t bytes : by_kind_[tier]) kinds += bytes;
    if (sums[tier] != used_[tier] || kinds != used_[tier] || used_[tier] > budgets_[tier]) {
      return absl::InternalError(fmt::format(
          "ledger of the {} tier: lines {}, kinds {}, booked {}, budget {}",
          Name(static_cast<Tier>(tier)), sums[tier], kinds, used_[tier], budgets_[tier]));
    }
  }
  return absl::OkStatus();
}

}  // namespace terrace::tier
