#include "tier/transfer_queue.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <vector>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/random.h"
#include "base/units.h"

namespace terrace::tier {
namespace {

Transfer Make(uint64_t owner, Priority priority, int64_t deadline_us = kNoDeadline,
              uint64_t bytes = 4096) {
  Transfer transfer;
  transfer.owner = owner;
  transfer.priority = priority;
  transfer.deadline_us = deadline_us;
  transfer.bytes = bytes;
  return transfer;
}

std::vector<uint64_t> Drain(TransferQueue& queue) {
  std::vector<uint64_t> owners;
  while (auto next = queue.Start()) {
    owners.push_back(next->owner);
    queue.Finish(*next, true);
  }
  return owners;
}

TEST(TransferQueueTest, UrgentFirstThenDeadlineThenFirstAsked) {
  ManualClock clock;
  TransferQueue queue({"link", 1, 1'000'000}, &clock);
  queue.Push(Make(1, Priority::kScrub));
  queue.Push(Make(2, Priority::kNextLayer));
  queue.Push(Make(3, Priority::kNextLayer, 900));
  queue.Push(Make(4, Priority::kNextLayer, 500));
  queue.Push(Make(5, Priority::kDemand));
  queue.Push(Make(6, Priority::kDemand));
  queue.Push(Make(7, Priority::kPredicted));
  EXPECT_EQ(Drain(queue), (std::vector<uint64_t>{5, 6, 4, 3, 2, 7, 1}));
}

TEST(TransferQueueTest, DepthHoldsBack) {
  ManualClock clock;
  TransferQueue queue({"link", 2, 1'000'000}, &clock);
  for (uint64_t i = 0; i < 4; ++i) queue.Push(Make(i, Priority::kDemand));
  auto a = queue.Start();
  auto b = queue.Start();
  ASSERT_TRUE(a && b);
  EXPECT_FALSE(queue.Start());
  EXPECT_FALSE(queue.CanStart());
  queue.Finish(*a, false);
  EXPECT_TRUE(queue.Start());
  EXPECT_EQ(queue.State().queued, 3u);
  EXPECT_EQ(queue.State().bytes, 0u);  // the one that failed does not count
}

TEST(TransferQueueTest, LessIsUnderWayTowardsTheEnd) {
  ManualClock clock;
  TransferQueue queue({.name = "link", .depth = 8, .least_depth = 2}, &clock);
  for (uint64_t i = 0; i < 20; ++i) queue.Push({.owner = i, .bytes = 1});
  std::vector<uint32_t> most;
  std::vector<Transfer> under_way;
  while (queue.waiting() + queue.under_way() > 0) {
    while (std::optional<Transfer> transfer = queue.Start()) under_way.push_back(*transfer);
    most.push_back(queue.under_way());
    for (const Transfer& transfer : under_way) queue.Finish(transfer, true);  // all at once
    under_way.clear();
  }
  EXPECT_EQ(most, (std::vector<uint32_t>{8, 6, 3, 2, 1}));
}

TEST(TransferQueueTest, NothingEndsWhileMoreIsExpected) {
  ManualClock clock;
  TransferQueue queue({.name = "link", .depth = 8, .least_depth = 2}, &clock);
  for (uint64_t i = 0; i < 6; ++i) queue.Push({.owner = i, .bytes = 1});
  auto start_all = [&queue] {
    while (queue.Start().has_value()) {
    }
  };
  start_all();
  EXPECT_EQ(queue.under_way(), 3u);
  queue.Expect(4);
  start_all();
  EXPECT_EQ(queue.under_way(), 5u);
  queue.Expect(100);
  start_all();
  EXPECT_EQ(queue.under_way(), 6u);
}

TEST(TransferQueueTest, NothingStarvesUnderAFloodOfDemand) {
  ManualClock clock;
  TransferQueue queue({"link", 1, 1000}, &clock);
  queue.Push(Make(99, Priority::kNextLayer));
  int before = 0;
  for (int i = 0;; ++i) {
    ASSERT_LT(i, 100) << "the next layer starved";
    queue.Push(Make(1, Priority::kDemand));
    queue.Push(Make(2, Priority::kDemand));
    auto next = queue.Start();
    queue.Finish(*next, true);
    if (next->owner == 99) break;
    ++before;
    clock.AdvanceUs(100);
  }
  // One priority up at 1000 us, a step takes 100 us; and not much sooner.
  EXPECT_GE(before, 9);
  EXPECT_LE(before, 11);
}

Transfer Of(LinkClass link_class, uint64_t bytes, Priority priority = Priority::kNextLayer) {
  Transfer transfer = Make(static_cast<uint64_t>(link_class), priority, kNoDeadline, bytes);
  transfer.link_class = link_class;
  return transfer;
}

// Bytes of each class among the next `count` transfers of at most `most` bytes, while all have more
// waiting.
std::array<double, kLinkClassCount> Divide(TransferQueue& queue, int count, uint64_t most,
                                           std::initializer_list<LinkClass> classes) {
  Random random(7);
  auto push = [&](LinkClass each) {
    const Priority priority =
        each == LinkClass::kAhead ? Priority::kPredicted : static_cast<Priority>(random.Below(2));
    queue.Push(Of(each, 1 + random.Below(most), priority));
  };
  for (const LinkClass each : classes) push(each);
  std::array<double, kLinkClassCount> bytes = {};
  for (int i = 0; i < count; ++i) {
    const Transfer next = queue.Start().value();
    bytes[next.owner] += static_cast<double>(next.bytes);
    push(static_cast<LinkClass>(next.owner));
    queue.Finish(next, true);
  }
  return bytes;
}

TEST(TransferQueueTest, ClassesDivideTheLinkByBytesWhateverTheSizesOfTheirTransfers) {
  using enum LinkClass;
  constexpr uint64_t kMost = 64 * kKiB;
  ManualClock clock;
  for (const LinkShares& shares : {LinkShares{}, LinkShares{{8, 4, 2, 1}}}) {
    TransferQueue queue({.name = "link", .depth = 1, .shares = shares}, &clock);
    const auto all = Divide(queue, 20'000, kMost, {kRealtime, kStandard, kBatch, kAhead});
    for (const LinkClass other : {kStandard, kBatch, kAhead}) {
      // No class is further from its part than by one transfer of each, in the other's measure.
      const double expected = shares[other] / shares[kRealtime];
      const double realtime = all[0];
      EXPECT_NEAR(all[static_cast<size_t>(other)], expected * realtime, 2.0 * kMost)
          << static_cast<int>(other);
    }
  }
  // A share that nobody uses is the others'.
  TransferQueue queue({.name = "link", .depth = 1, .shares = {{8, 4, 2, 1}}}, &clock);
  const auto two = Divide(queue, 10'000, kMost, {kStandard, kAhead});
  EXPECT_NEAR(two[3], two[1] / 4, 2.0 * kMost);
}

TEST(TransferQueueTest, WhoComesIsServedAtItsShareFromThenOn) {
  using enum LinkClass;
  ManualClock clock;
  TransferQueue queue({.name = "link", .depth = 1, .shares = {{100, 25, 5, 1}}}, &clock);
  for (int i = 0; i < 1000; ++i) queue.Push(Of(kBatch, 4096));
  for (int i = 0; i < 500; ++i) queue.Finish(queue.Start().value(), true);
  // A realtime load comes: 20 of its transfers go for one of the others, the first at once.
  for (int i = 0; i < 40; ++i) queue.Push(Of(kRealtime, 4096));
  std::vector<uint64_t> owners;
  for (int i = 0; i < 42; ++i) {
    owners.push_back(queue.Start()->owner);
    queue.Finish(Of(kBatch, 4096), false);
  }
  EXPECT_EQ(owners.front(), static_cast<uint64_t>(kRealtime));
  EXPECT_EQ(std::count(owners.begin(), owners.end(), static_cast<uint64_t>(kBatch)), 2);
  // It had nothing to move for a while: that is not made up for.
  for (int i = 0; i < 100; ++i) queue.Finish(queue.Start().value(), true);
  for (int i = 0; i < 40; ++i) queue.Push(Of(kRealtime, 4096));
  owners.clear();
  for (int i = 0; i < 42; ++i) {
    owners.push_back(queue.Start()->owner);
    queue.Finish(Of(kBatch, 4096), false);
  }
  EXPECT_EQ(std::count(owners.begin(), owners.end(), static_cast<uint64_t>(kBatch)), 2);
}

TEST(TransferQueueTest, WhatWaitsMovesToAnotherClass) {
  ManualClock clock;
  TransferQueue queue({.name = "link", .depth = 1}, &clock);
  for (int i = 0; i < 3; ++i) queue.Push(Of(LinkClass::kStandard, 4096));
  Transfer other = Of(LinkClass::kBatch, 4096);
  other.owner = 77;
  queue.Push(other);
  EXPECT_EQ(queue.SetLinkClass(77, LinkClass::kRealtime), 1u);
  EXPECT_EQ(queue.Start()->owner, 77u);
  queue.Finish(other, true);
  EXPECT_EQ(queue.waiting(), 3u);
  EXPECT_EQ(queue.waiting_bytes(), 3u * 4096);
  // Whatever the class, guesses are guesses.
  Transfer guess = Of(LinkClass::kRealtime, 4096, Priority::kPredicted);
  guess.owner = 78;
  queue.Push(guess);
  EXPECT_EQ(Drain(queue), (std::vector<uint64_t>{1, 1, 1, 78}));
}

TEST(TransferQueueTest, CancelAndSetPriorityTouchWhatWaits) {
  ManualClock clock;
  TransferQueue queue({"link", 1, 1'000'000}, &clock);
  queue.Push(Make(1, Priority::kDemand));
  auto under_way = queue.Start();
  queue.Push(Make(1, Priority::kDemand));
  queue.Push(Make(2, Priority::kPredicted));
  queue.Push(Make(3, Priority::kNextLayer));
  EXPECT_EQ(queue.Cancel(1), 1u);
  EXPECT_EQ(queue.SetPriority(2, Priority::kDemand), 1u);
  EXPECT_EQ(queue.SetPriority(7, Priority::kDemand), 0u);
  queue.Finish(*under_way, true);
  EXPECT_EQ(Drain(queue), (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(queue.waiting_bytes(), 0u);
}

TEST(TransferQueueTest, MeasuresBandwidthOfABusyLinkOnly) {
  ManualClock clock;
  TransferQueue queue({"link", 2, 1'000'000}, &clock);
  // Two always under way; each 4 MiB take 4 ms of the link: 1 MiB a ms.
  std::vector<Transfer> under_way;
  for (int i = 0; i < 64; ++i) queue.Push(Make(1, Priority::kDemand, kNoDeadline, 4 << 20));
  under_way.push_back(*queue.Start());
  under_way.push_back(*queue.Start());
  while (!under_way.empty()) {
    clock.AdvanceUs(4000);
    queue.Finish(under_way.front(), true);
    under_way.erase(under_way.begin());
    if (auto next = queue.Start()) under_way.push_back(*next);
  }
  const double expected = 1048576.0 * 1000;
  EXPECT_NEAR(queue.bandwidth_bytes_per_s(), expected, expected * 0.01);
  // A pause is no reason to think the link slower.
  clock.AdvanceUs(60'000'000);
  queue.Push(Make(1, Priority::kDemand, kNoDeadline, 4 << 20));
  auto next = queue.Start();
  clock.AdvanceUs(4000);
  queue.Finish(*next, true);
  EXPECT_NEAR(queue.bandwidth_bytes_per_s(), expected, expected * 0.01);
}

TEST(TransferQueueTest, TellsTheShareOfTimeInWhichItIsBusy) {
  ManualClock clock;
  TransferQueue queue({"link", 1}, &clock);
  EXPECT_EQ(queue.busy_share(), 0);
  // Two of five milliseconds, for a minute; then one transfer that takes another.
  for (int i = 0; i < 12'000; ++i) {
    queue.Push({.owner = 1, .bytes = kMiB});
    const Transfer transfer = queue.Start().value();
    clock.AdvanceUs(2000);
    queue.Finish(transfer, true);
    clock.AdvanceUs(3000);
  }
  EXPECT_NEAR(queue.busy_share(), 0.4, 0.001);
  queue.Push({.owner = 1, .bytes = kMiB});
  const Transfer transfer = queue.Start().value();
  clock.AdvanceUs(60'000'000);
  EXPECT_NEAR(queue.busy_share(), 1, 0.001);
  queue.Finish(transfer, true);
  clock.AdvanceUs(60'000'000);
  EXPECT_NEAR(queue.busy_share(), 0, 0.001);
}

TEST(TransferQueueTest, MeasuresLatencyOfLoneTransfers) {
  ManualClock clock;
  TransferQueue queue({"link", 2, 1'000'000}, &clock);
  for (int i = 0; i < 20; ++i) {
    queue.Push(Make(1, Priority::kDemand));
    auto next = queue.Start();
    clock.AdvanceUs(100);
    queue.Finish(*next, true);
  }
  EXPECT_NEAR(queue.State().latency_us, 100, 1);
}

}  // namespace
}  // namespace terrace::tier
