// The one account of who holds how many bytes on which tier. Nothing is allocated in a tier without
// a Reservation; a tier's reservations never add up to more than its budget, a model's or tenant's
// never to more than their quota. Thread-safe.
#ifndef TERRACE_TIER_LEDGER_H_
#define TERRACE_TIER_LEDGER_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "tier/types.h"

namespace terrace::tier {

inline constexpr size_t kTierCount = 5;
inline constexpr size_t kKindCount = 4;

// Named as in logs and in the ledger's messages: "device", "weights" ...
const char* Name(Tier tier);
const char* Name(Kind kind);

class Ledger;

// A move-only budget of bytes in one tier; destroying it gives the bytes back. Must not outlive its
// ledger.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept { *this = std::move(other); }
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation() { Release(); }

  Tier tier() const { return tier_; }
  const Owner& owner() const { return owner_; }
  uint64_t bytes() const { return bytes_; }
  explicit operator bool() const { return ledger_ != nullptr; }
  void Release();

 private:
  friend class Ledger;
  Reservation(Ledger* ledger, Tier tier, Owner owner, uint64_t bytes)
      : ledger_(ledger), tier_(tier), owner_(std::move(owner)), bytes_(bytes) {}
  Ledger* ledger_ = nullptr;
  Tier tier_ = Tier::kDevice;
  Owner owner_;
  uint64_t bytes_ = 0;
};

class Ledger {
 public:
  // Bytes a tier may hold, indexed by Tier.
  using Budgets = std::array<uint64_t, kTierCount>;
  explicit Ledger(const Budgets& budgets) : budgets_(budgets) {}

  // ResourceExhausted, with who holds what, beyond the tier's budget or a quota of the owner.
  absl::StatusOr<Reservation> Reserve(Tier tier, const Owner& owner, uint64_t bytes);

  // The most a model or tenant may hold on a tier; replaces an earlier one. What is held already
  // stays. UINT64_MAX lifts it.
  void SetModelQuota(Tier tier, const std::string& model, uint64_t bytes);
  void SetTenantQuota(Tier tier, const std::string& tenant, uint64_t bytes);

  uint64_t budget(Tier tier) const { return budgets_[static_cast<size_t>(tier)]; }
  uint64_t used(Tier tier) const;
  uint64_t free(Tier tier) const;
  uint64_t used(Tier tier, Kind kind) const;
  // Bytes `owner` could still book under its quotas alone, whatever the tier has free.
  uint64_t QuotaLeft(Tier tier, const Owner& owner) const;
  std::vector<LedgerLine> Lines() const;  // without empty ones, by tier, model, tenant, kind
  // "qwen3@1 weights 1.2 GiB, ...", largest first.
  std::string Describe(Tier tier) const;
  // Internal if sums and lines disagree or a budget is exceeded.
  absl::Status CheckInvariants() const;

 private:
  friend class Reservation;
  using Key = std::tuple<Tier, std::string, std::string, Kind>;
  void Return(const Reservation& reservation);
  uint64_t QuotaLeftLocked(Tier tier, const Owner& owner) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string DescribeLocked(Tier tier) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Budgets budgets_;
  mutable absl::Mutex mutex_;
  std::map<Key, uint64_t> lines_ ABSL_GUARDED_BY(mutex_);
  std::array<uint64_t, kTierCount> used_ ABSL_GUARDED_BY(mutex_) = {};
  std::array<std::array<uint64_t, kKindCount>, kTierCount> by_kind_ ABSL_GUARDED_BY(mutex_) = {};
  std::map<std::pair<Tier, std::string>, uint64_t> by_model_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<Tier, std::string>, uint64_t> by_tenant_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<Tier, std::string>, uint64_t> model_quotas_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<Tier, std::string>, uint64_t> tenant_quotas_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace::tier

#endif  // TERRACE_TIER_LEDGER_H_
