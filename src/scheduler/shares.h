// Who may compute how much when several tenants have work at once. Each tenant's computing of the
// last seconds is kept; who has had more than its share is a guest: it computes beside the others
// only what a small part of their time allows, until shares are even again. A tenant that asks for
// little is thus served as if it were alone, whatever the others ask for. Knows numbers only; used
// by one thread, or under its user's lock.
#ifndef TERRACE_SCHEDULER_SHARES_H_
#define TERRACE_SCHEDULER_SHARES_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace terrace::scheduler {

class ComputeShares {
 public:
  // Computing counts with this time constant; a tenant or class counts as there for kPresenceUs
  // after it was last seen, so that its next request finds no long step under way.
  static constexpr int64_t kMemoryUs = 10'000'000;
  static constexpr int64_t kPresenceUs = 5'000'000;
  // The part of the others' time that guests may add to it.
  static constexpr double kGuestShare = 0.05;
  // The longest that a guest's step should take while others are there.
  static constexpr double kSliceUs = 10'000;

  // Of tenants that are not named it is 1. REQUIRES: above 0.
  void SetWeights(std::map<std::string, double, std::less<>> weights);
  // A request of the tenant waits or runs.
  void See(std::string_view tenant, int band, int64_t now_us);
  // The tenant's requests have taken `us` of a step.
  void Charge(std::string_view tenant, double us, int64_t now_us);

  // Whether a request gives way now: a better band is there, or in its own band its tenant has had
  // more than its share and another one is there. O(tenants) after a See or Charge, else O(1).
  bool IsGuest(std::string_view tenant, int band, int64_t now_us);

  // After a step while others than guests are at work: what those took of it, which earns guests
  // their part, and what the guests in it added, which is paid from that.
  void OnStep(double others_us, double guests_us);
  // Whether guests may run beside others now.
  bool GuestsMayRun() const { return credit_us_ > 0; }

  // Microseconds of computing lately, decayed.
  double Used(std::string_view tenant, int64_t now_us) const;
  size_t tenants() const { return tenants_.size(); }

 private:
  struct Tenant {
    double used_us = 0;
    int64_t used_at_us = 0;
    int64_t seen_us = 0;
    int band = 0;  // the best that it was seen in lately
  };
  double WeightOf(std::string_view tenant) const;
  void Forget(int64_t now_us);

  std::map<std::string, double, std::less<>> weights_;
  std::map<std::string, Tenant, std::less<>> tenants_;
  int64_t band_seen_us_[3] = {0, 0, 0};  // 0: never
  double credit_us_ = 0;
};

}  // namespace terrace::scheduler

#endif  // TERRACE_SCHEDULER_SHARES_H_
