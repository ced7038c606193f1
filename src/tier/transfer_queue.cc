#include "tier/transfer_queue.h"

#include <algorithm>

#include "base/clock.h"
#include "base/units.h"

namespace terrace::tier {
namespace {

// Each measurement moves the estimate by this much of the difference.
constexpr double kWeight = 0.3;
// A measurement spans this many bytes of a busy link, so that it means more than one lucky read.
constexpr uint64_t kWindowBytes = 32 * kMiB;
constexpr uint64_t kLeastWindowBytes = 1 * kMiB;

void MoveTowards(double& estimate, double measured) {
  estimate = estimate == 0 ? measured : estimate + kWeight * (measured - estimate);
}

}  // namespace

size_t TransferQueue::MostUnderWay() const {
  const size_t depth = options_.depth;
  if (options_.least_depth == 0) return depth;
  return std::clamp<size_t>((waiting_ + under_way_) / 2,
                            std::min<size_t>(options_.least_depth, depth), depth);
}

void TransferQueue::Insert(const Transfer& transfer) {
  Class& to = classes_[static_cast<size_t>(transfer.priority)];
  to.by_age[transfer.sequence] = transfer.deadline_us;
  to.by_deadline[{transfer.deadline_us, transfer.sequence}] = transfer;
  ++waiting_;
  waiting_bytes_ += transfer.bytes;
}

Transfer TransferQueue::Remove(Class& from,
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
  Insert(transfer);
}

std::optional<Transfer> TransferQueue::Start() {
  if (!CanStart()) return std::nullopt;
  const int64_t now = clock_->NowUs();
  size_t best = kPriorityCount;
  int64_t best_rank = 0;
  uint64_t best_sequence = 0;
  bool best_aged = false;
  for (size_t i = 0; i < kPriorityCount; ++i) {
    Class& candidate = classes_[i];
    if (candidate.by_age.empty()) continue;
    const auto [sequence, deadline] = *candidate.by_age.begin();
    const Transfer& oldest = candidate.by_deadline.at({deadline, sequence});
    const int64_t steps = std::max<int64_t>(0, now - oldest.asked_us) / options_.aging_us;
    const int64_t rank = std::max<int64_t>(0, static_cast<int64_t>(i) - steps);
    const bool aged = rank < static_cast<int64_t>(i);
    // Of equals the one that was asked for first: a promoted transfer does get its turn.
    if (best == kPriorityCount || rank < best_rank ||
        (rank == best_rank && aged && sequence < best_sequence)) {
      best = i;
      best_rank = rank;
      best_sequence = sequence;
      best_aged = aged;
    }
  }
  Class& from = classes_[best];
  auto at = best_aged ? from.by_deadline.find({from.by_age.begin()->second, best_sequence})
                      : from.by_deadline.begin();
  Transfer transfer = Remove(from, at);
  transfer.started_us = now;
  transfer.started_alone = under_way_ == 0;
  if (under_way_++ == 0) {
    window_start_us_ = now;
    window_bytes_ = 0;
  }
  return transfer;
}

void TransferQueue::Finish(const Transfer& transfer, bool moved) {
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
  if (long_enough && window_us > 0) {
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
  std::vector<Transfer> taken;
  for (Class& from : classes_) {
    for (auto at = from.by_deadline.begin(); at != from.by_deadline.end();) {
      auto next = std::next(at);
      if (at->second.owner == owner) taken.push_back(Remove(from, at));
      at = next;
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

size_t TransferQueue::Cancel(uint64_t owner) { return TakeOwner(owner).size(); }

LinkState TransferQueue::State() const {
  return {options_.name, bytes_, transfers_, waiting_ + under_way_, bandwidth_, latency_us_};
}

}  // namespace terrace::tier
