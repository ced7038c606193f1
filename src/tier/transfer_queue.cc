#include "tier/transfer_queue.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/units.h"

namespace terrace::tier {
namespace {

// Each measurement moves the estimate by this much of the difference.
constexpr double kWeight = 0.3;
// A measurement spans this many bytes of a busy link, so that it means more than one lucky read.
constexpr uint64_t kWindowBytes = 32 * kMiB;
constexpr uint64_t kLeastWindowBytes = 1 * kMiB;

// Time constant of the busy share.
constexpr double kBusyUs = 5e6;

void MoveTowards(double& estimate, double measured) {
  estimate = estimate == 0 ? measured : estimate + kWeight * (measured - estimate);
}

}  // namespace

size_t TransferQueue::MostUnderWay() const {
  const size_t depth = options_.depth;
  if (options_.least_depth == 0) return depth;
  return std::clamp<size_t>((waiting_ + under_way_ + expected_) / 2,
                            std::min<size_t>(options_.least_depth, depth), depth);
}

TransferQueue::Waiting& TransferQueue::PlaceOf(const Transfer& transfer) {
  const bool ahead = transfer.priority >= Priority::kPredicted;
  Class& to = classes_[static_cast<size_t>(ahead ? LinkClass::kAhead : transfer.link_class)];
  const bool may_be_held = transfer.bulk && transfer.priority != Priority::kDemand;
  return (may_be_held ? to.bulk : to.waiting)[static_cast<size_t>(transfer.priority)];
}

size_t TransferQueue::bulk_waiting() const {
  size_t count = 0;
  for (const Class& of : classes_) {
    for (const Waiting& each : of.bulk) count += each.by_age.size();
  }
  return count;
}

void TransferQueue::Insert(const Transfer& transfer) {
  Waiting& to = PlaceOf(transfer);
  to.by_age[transfer.sequence] = transfer.deadline_us;
  to.by_deadline[{transfer.deadline_us, transfer.sequence}] = transfer;
  ++waiting_;
  waiting_bytes_ += transfer.bytes;
}

Transfer TransferQueue::Remove(Waiting& from,
                               std::map<std::pair<int64_t, uint64_t>, Transfer>::iterator at) {
  Transfer transfer = at->second;
  from.by_age.erase(transfer.sequence);
  from.by_deadline.erase(at);
  --waiting_;
  waiting_bytes_ -= transfer.bytes;
  return transfer;
}

void TransferQueue::Push(Transfer transfer) {
  transfer.sequence = next_sequence_++;
  transfer.asked_us = clock_->NowUs();
  NoteBusy(transfer.asked_us);
  Insert(transfer);
}

TransferQueue::Next TransferQueue::NextOf(Class& of, bool hold_bulk, int64_t now_us) const {
  Waiting* best = nullptr;
  int64_t best_rank = 0;
  uint64_t best_sequence = 0;
  bool best_aged = false;
  auto consider = [&](Waiting& candidate, int64_t priority) {
    if (candidate.by_age.empty()) return;
    const auto [sequence, deadline] = *candidate.by_age.begin();
    const Transfer& oldest = candidate.by_deadline.at({deadline, sequence});
    const int64_t steps = std::max<int64_t>(0, now_us - oldest.asked_us) / options_.aging_us;
    const int64_t rank = std::max<int64_t>(0, priority - steps);
    const bool aged = rank < priority;
    // Of equals the one that was asked for first: a promoted transfer does get its turn. Where
    // nobody was promoted, the two halves of a priority are one.
    const bool halves = best != nullptr && rank == best_rank && !aged && !best_aged;
    if (best == nullptr || rank < best_rank ||
        (rank == best_rank && aged && sequence < best_sequence) ||
        (halves && candidate.by_deadline.begin()->first < best->by_deadline.begin()->first)) {
      best = &candidate;
      best_rank = rank;
      best_sequence = sequence;
      best_aged = aged;
    }
  };
  for (size_t i = 0; i < kPriorityCount; ++i) {
    consider(of.waiting[i], static_cast<int64_t>(i));
    if (!hold_bulk) consider(of.bulk[i], static_cast<int64_t>(i));
  }
  if (best == nullptr) return {};
  return {best, best_aged ? best->by_deadline.find({best->by_age.begin()->second, best_sequence})
                          : best->by_deadline.begin()};
}

TransferQueue::Next TransferQueue::Choose(bool hold_bulk, int64_t now_us) {
  Next best;
  Class* of = nullptr;
  double best_end = 0;
  for (size_t i = 0; i < kLinkClassCount; ++i) {
    Class& each = classes_[i];
    const Next next = NextOf(each, hold_bulk, now_us);
    if (next.from == nullptr) {
      each.served = std::max(each.served, served_);  // what it does not use now it does not save
      continue;
    }
    const double end = each.served + static_cast<double>(next.at->second.bytes) /
                                         options_.shares[static_cast<LinkClass>(i)];
    if (of != nullptr && end >= best_end) continue;
    best = next;
    of = &each;
    best_end = end;
  }
  if (of == nullptr) return best;
  served_ = std::max(served_, of->served);
  of->served = best_end;
  return best;
}

std::optional<Transfer> TransferQueue::Start(bool hold_bulk) {
  if (hold_bulk && bulk_waiting() > 0) window_held_ = true;
  if (!CanStart()) return std::nullopt;
  const int64_t now = clock_->NowUs();
  const Next next = Choose(hold_bulk, now);
  if (next.from == nullptr) return std::nullopt;
  Transfer transfer = Remove(*next.from, next.at);
  transfer.started_us = now;
  transfer.started_alone = under_way_ == 0;
  if (under_way_++ == 0) {
    window_start_us_ = now;
    window_bytes_ = 0;
    window_held_ = hold_bulk && bulk_waiting() > 0;
  }
  return transfer;
}

double TransferQueue::BusyShareAt(int64_t now_us) const {
  const double kept = std::exp(-static_cast<double>(now_us - busy_noted_us_) / kBusyUs);
  return busy_ * kept + (waiting_ + under_way_ > 0 ? 1 - kept : 0);
}

double TransferQueue::busy_share() const { return BusyShareAt(clock_->NowUs()); }

void TransferQueue::NoteBusy(int64_t now_us) {
  busy_ = BusyShareAt(now_us);
  busy_noted_us_ = now_us;
}

void TransferQueue::Finish(const Transfer& transfer, bool moved) {
  NoteBusy(clock_->NowUs());
  --under_way_;
  if (!moved) return;
  bytes_ += transfer.bytes;
  ++transfers_;
  window_bytes_ += transfer.bytes;
  Measure(transfer, clock_->NowUs());
}

void TransferQueue::Measure(const Transfer& transfer, int64_t now_us) {
  const int64_t window_us = now_us - window_start_us_;
  const bool long_enough =
      window_bytes_ >= kWindowBytes || (under_way_ == 0 && window_bytes_ >= kLeastWindowBytes);
  if (window_held_ && under_way_ == 0) return;  // a new window begins with the next transfer
  if (window_held_ && long_enough) {
    window_start_us_ = now_us;
    window_bytes_ = 0;
    window_held_ = false;  // until something is held back again
  } else if (long_enough && window_us > 0) {
    MoveTowards(bandwidth_,
                static_cast<double>(window_bytes_) * 1e6 / static_cast<double>(window_us));
    window_start_us_ = now_us;
    window_bytes_ = 0;
  }
  // What a lone transfer took beyond its bytes' share of the bandwidth is the link's latency.
  if (transfer.started_alone && under_way_ == 0) {
    double took_us = static_cast<double>(now_us - transfer.started_us);
    if (bandwidth_ > 0) took_us -= static_cast<double>(transfer.bytes) * 1e6 / bandwidth_;
    MoveTowards(latency_us_, std::max(0.0, took_us));
  }
}

std::vector<Transfer> TransferQueue::TakeOwner(uint64_t owner) {
  NoteBusy(clock_->NowUs());
  std::vector<Transfer> taken;
  for (Class& of : classes_) {
    for (auto* waiting : {&of.waiting, &of.bulk}) {
      for (Waiting& from : *waiting) {
        for (auto at = from.by_deadline.begin(); at != from.by_deadline.end();) {
          auto next = std::next(at);
          if (at->second.owner == owner) taken.push_back(Remove(from, at));
          at = next;
        }
      }
    }
  }
  return taken;
}

size_t TransferQueue::SetPriority(uint64_t owner, Priority priority) {
  std::vector<Transfer> taken = TakeOwner(owner);
  for (Transfer& transfer : taken) {
    transfer.priority = priority;
    Insert(transfer);
  }
  return taken.size();
}

size_t TransferQueue::SetLinkClass(uint64_t owner, LinkClass link_class) {
  std::vector<Transfer> taken = TakeOwner(owner);
  for (Transfer& transfer : taken) {
    transfer.link_class = link_class;
    Insert(transfer);
  }
  return taken.size();
}

size_t TransferQueue::Cancel(uint64_t owner) { return TakeOwner(owner).size(); }

LinkState TransferQueue::State() const {
  return {options_.name, bytes_, transfers_, waiting_ + under_way_, bandwidth_, latency_us_};
}

}  // namespace terrace::tier
