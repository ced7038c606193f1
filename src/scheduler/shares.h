// Who may compute how much when several tenants have work at once. Each tenant's computing of the
// last seconds is kept; who has had more than its share is a guest: it computes beside the others
// only what a small part of their time allows, until shares are even again. A tenant that asks for
// little is thus served as if it were alone, whatever the others ask for. Knows numbers only; used
// by one thread, or under its user's lock.
#ifndef TERRACE_SCHEDULER_SHARES_H_
#define TERRACE_SCHEDULER_SHARES_H_

#include <algorithm>
#include <array>
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
  static constexpr double kMostPromiseUs = 1e6;
  static constexpr double kBurstUs = 500'000;
  // The part of the others' time that guests may add to it.
  static constexpr double kGuestShare = 0.05;
  // What a piece of a guest's prompt should take while others are there. It is given up when one of
  // those comes meanwhile.
  static constexpr double kSliceUs = 20'000;
  // Pieces of guests' prompts wait for a moment in which nobody else computes, for so long at most:
  // even a small piece would make a step of others much longer.
  static constexpr int64_t kMostHeldUs = 500'000;

  // Of tenants that are not named it is 1. REQUIRES: above 0.
  void SetWeights(std::map<std::string, double, std::less<>> weights);
  // Of the engine's time that a tenant may take, also when nobody else wants it; those that are not
  // named have no limit. REQUIRES: above 0, below 1. What was taken before is forgotten.
  void SetLimits(std::map<std::string, double, std::less<>> limits);
  // For how long the tenant may compute nothing because it has had what its limit allows; 0: it
  // may. Up to kBurstUs of unused time is saved up.
  int64_t PausedUs(std::string_view tenant, int64_t now_us) const;
  // A request of the tenant waits or runs. Who was not there begins level with who has had least:
  // what it could have had before does not count, nor what others made of it.
  void See(std::string_view tenant, int band, int64_t now_us);
  // What the prompts of the tenant's requests will take, from now until the next call; up to
  // kMostPromiseUs it counts as if they had, so that a long prompt gives way from its beginning.
  void Promise(std::string_view tenant, double us);
  // The tenant's requests have taken `us` of a step.
  void Charge(std::string_view tenant, double us, int64_t now_us);

  // Whether a request gives way now: a better band is there, or in its own band its tenant has had
  // more than its share and another one is there. O(tenants) at a new time or after a change.
  bool IsGuest(std::string_view tenant, int band, int64_t now_us);

  // After a step while others than guests are at work: what those took of it, which earns guests
  // their part, and what the guests in it added, which is paid from that.
  void OnStep(double others_us, double guests_us);
  // Whether guests may run beside others now. For realtime requests those of worse classes wait
  // until a moment in which none is at work, for kMostHeldUs at most (`realtime`).
  bool GuestsMayRun(bool realtime, int64_t now_us) const {
    return credit_us_ > 0 && (!realtime || now_us - others_us_ > kMostHeldUs);
  }
  // A step held requests of worse classes than realtime.
  void NoteOthers(int64_t now_us) { others_us_ = now_us; }
  // Whether that may be pieces of their prompts.
  bool PiecesMayRun(int64_t now_us) const { return now_us - piece_us_ > kMostHeldUs; }
  // A step held such a piece.
  void NoteGuestPiece(int64_t now_us) { piece_us_ = now_us; }
  // Whether several tenants are there. O(tenants).
  bool Shared(int64_t now_us) const;

  // Microseconds of computing lately, decayed.
  double Used(std::string_view tenant, int64_t now_us) const;
  size_t tenants() const { return tenants_.size(); }

 private:
  struct Tenant {
    double used_us = 0;
    int64_t used_at_us = 0;
    int64_t seen_us = 0;
    double promised_us = 0;
    int band = 0;  // the best that it was seen in lately
  };
  // What a limit leaves: grows by `share` of the time up to kBurstUs.
  struct Limit {
    double share = 1;
    double left_us = kBurstUs;  // below 0: it has had more
    int64_t at_us = 0;
    double LeftUs(int64_t now_us) const {
      return std::min(left_us + share * static_cast<double>(now_us - at_us), kBurstUs);
    }
  };
  double WeightOf(std::string_view tenant) const;
  // Of those there, of a band or a better one.
  struct Sums {
    double used_us = 0;  // and promised
    double weights = 0;
    int count = 0;
  };
  void Sum(int64_t now_us);
  static double UsedBy(const Tenant& each, int64_t now_us);
  void Forget(int64_t now_us);
  // The tenant comes.
  void Level(std::string_view tenant, Tenant* each, int64_t now_us);

  std::map<std::string, double, std::less<>> weights_;
  std::map<std::string, Limit, std::less<>> limits_;
  std::map<std::string, Tenant, std::less<>> tenants_;
  int64_t band_seen_us_[3] = {0, 0, 0};  // 0: never
  std::array<Sums, 3> sums_;
  int64_t summed_us_ = -1;  // when; -1: something has changed
  size_t forget_at_ = 0;    // tenants
  double credit_us_ = 0;
  int64_t others_us_ = 0;  // when a request of a worse class than realtime had a step last
  int64_t piece_us_ = 0;   // when a piece of a guest's prompt was computed last
};

}  // namespace terrace::scheduler

#endif  // TERRACE_SCHEDULER_SHARES_H_
