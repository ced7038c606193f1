#include "tier/transfer_queue.h"

#include <vector>

#include <gtest/gtest.h>

#include "base/clock.h"
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
  queue.Push(Make(99, Priority::kScrub));
  int before = 0;
  for (int i = 0;; ++i) {
    ASSERT_LT(i, 100) << "the scrub read starved";
    queue.Push(Make(1, Priority::kDemand));
    queue.Push(Make(2, Priority::kDemand));
    auto next = queue.Start();
    queue.Finish(*next, true);
    if (next->owner == 99) break;
    ++before;
    clock.AdvanceUs(100);
  }
  // Four classes up at 1000 us each, a step takes 100 us; and not much sooner.
  EXPECT_GE(before, 39);
  EXPECT_LE(before, 41);
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
