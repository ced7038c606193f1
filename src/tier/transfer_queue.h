// The order in which one link's transfers run, and what the link is measured to give. Pure
// book-keeping: it moves no bytes; its user asks for the next transfer, moves it, and says so.
//
// The link is divided among classes (LinkClass) by weighted fair queueing: while several have bytes
// waiting, each gets bytes in proportion to its share, and what one did not use is not made up for
// later. Transfers of kPredicted and below belong to kAhead, whoever may come to need them.
//
// Order inside a class: most urgent priority first, earliest deadline first among equals, then
// first asked. A transfer that has waited `aging_us` counts as one priority more urgent, and again
// after each further `aging_us`, so that nothing starves. At most `depth` transfers are under way
// (back-pressure), fewer towards the end.
//
// Not thread-safe: guarded by its user's lock.
#ifndef TERRACE_TIER_TRANSFER_QUEUE_H_
#define TERRACE_TIER_TRANSFER_QUEUE_H_

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tier/link_class.h"
#include "tier/types.h"

namespace terrace {
class Clock;
}

namespace terrace::tier {

inline constexpr size_t kPriorityCount = 5;
inline constexpr int64_t kNoDeadline = std::numeric_limits<int64_t>::max();

struct Transfer {
  uint64_t owner = 0;  // whom it belongs to (a load); for Cancel and SetPriority
  uint32_t index = 0;  // which of the owner's transfers
  uint64_t bytes = 0;
  Priority priority = Priority::kDemand;
  LinkClass link_class = LinkClass::kStandard;
  int64_t deadline_us = kNoDeadline;
  // Weights, which may have to wait while others compute unless somebody waits for them (kDemand).
  bool bulk = false;
  // Filled by the queue.
  uint64_t sequence = 0;
  int64_t asked_us = 0;
  int64_t started_us = 0;
  bool started_alone = false;
};

struct TransferQueueOptions {
  std::string name;
  uint32_t depth = 8;
  int64_t aging_us = 500'000;
  // Disks, virtual ones above all, may hand over everything under way at once. So towards the end
  // no more than half of what is left is under way, down to this many: who waits has most of it
  // early and works on that while the rest comes. 0: `depth` to the end.
  uint32_t least_depth = 0;
  LinkShares shares = {};
};

class TransferQueue {
 public:
  // `clock` must outlive the queue.
  TransferQueue(TransferQueueOptions options, const Clock* clock)
      : options_(std::move(options)), clock_(clock) {}

  void Push(Transfer transfer);
  // So many transfers will follow those that wait: nothing ends soon.
  void Expect(size_t transfers) { expected_ = transfers; }
  // The next to run, now under way; none if nothing waits or as many as may be are under way.
  // `hold_bulk`: of those only that are not `bulk`, or are waited for; and what the link gives is
  // not measured meanwhile, as it has less to do than it could.
  std::optional<Transfer> Start(bool hold_bulk = false);
  // A transfer under way has ended; `moved` false if it failed (it then says nothing of the link).
  void Finish(const Transfer& transfer, bool moved);

  // These touch only what waits; they return how many transfers that was.
  size_t SetPriority(uint64_t owner, Priority priority);
  size_t SetLinkClass(uint64_t owner, LinkClass link_class);
  size_t Cancel(uint64_t owner);

  bool CanStart() const { return waiting_ > 0 && under_way_ < MostUnderWay(); }
  size_t waiting() const { return waiting_; }
  size_t bulk_waiting() const;
  uint32_t under_way() const { return under_way_; }
  uint64_t waiting_bytes() const { return waiting_bytes_; }
  LinkState State() const;
  double bandwidth_bytes_per_s() const { return bandwidth_; }
  double latency_us() const { return latency_us_; }
  // The share of the last five seconds or so in which something moved or waited to.
  double busy_share() const;

 private:
  size_t MostUnderWay() const;
  // Waiting transfers of one priority: by deadline, and by the order asked.
  struct Waiting {
    std::map<std::pair<int64_t, uint64_t>, Transfer> by_deadline;
    std::map<uint64_t, int64_t> by_age;  // sequence to deadline
  };
  // One class: what waits, and how far it has been served, in bytes for a share of 1.
  struct Class {
    std::array<Waiting, kPriorityCount> waiting;
    std::array<Waiting, kPriorityCount> bulk;  // [kDemand] stays empty
    double served = 0;
  };
  // The next of a class.
  struct Next {
    Waiting* from = nullptr;  // null: nothing of it may start
    std::map<std::pair<int64_t, uint64_t>, Transfer>::iterator at;
  };
  Transfer Remove(Waiting& from, std::map<std::pair<int64_t, uint64_t>, Transfer>::iterator at);
  void Insert(const Transfer& transfer);
  Waiting& PlaceOf(const Transfer& transfer);
  Next NextOf(Class& of, bool hold_bulk, int64_t now_us) const;
  // The one to start, whose class is then charged for it.
  Next Choose(bool hold_bulk, int64_t now_us);
  std::vector<Transfer> TakeOwner(uint64_t owner);
  void Measure(const Transfer& transfer, int64_t now_us);
  double BusyShareAt(int64_t now_us) const;
  // Before anything starts or ends: whether the link was busy until now.
  void NoteBusy(int64_t now_us);

  const TransferQueueOptions options_;
  const Clock* const clock_;
  std::array<Class, kLinkClassCount> classes_;
  double served_ = 0;  // where the class that started last stood: who comes begins there
  size_t waiting_ = 0;
  size_t expected_ = 0;
  uint64_t waiting_bytes_ = 0;
  uint32_t under_way_ = 0;
  uint64_t next_sequence_ = 1;

  uint64_t bytes_ = 0;
  uint64_t transfers_ = 0;
  int64_t window_start_us_ = 0;  // since when the link is busy, or the current measurement runs
  uint64_t window_bytes_ = 0;
  bool window_held_ = false;  // some of it was spent holding transfers back
  double bandwidth_ = 0;
  double latency_us_ = 0;
  double busy_ = 0;  // a moving average over time, as of busy_noted_us_
  int64_t busy_noted_us_ = 0;
};

}  // namespace terrace::tier

#endif  // TERRACE_TIER_TRANSFER_QUEUE_H_
