// The tier manager on both kinds of device: with the host's memory (cpu) and with its own (sim).
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "manager_fixture.h"
#include "os/process_memory.h"

namespace terrace::tier {
namespace {

TEST_P(TierManagerTest, LoadsWhatTheImageHolds) {
  Start(64 * kMiB);
  auto source = MakeSource("a", {4096, 9 * kMiB, 5 * kMiB + 4096, 8192}, kMiB);
  ModelId a = Add("a", source);
  EXPECT_EQ(State(a).resident_bytes, 0u);
  EXPECT_TRUE(Pass(a, *source));
  EXPECT_EQ(State(a).loads, 4u);
  EXPECT_TRUE(Pass(a, *source));
  EXPECT_EQ(State(a).loads, 4u);  // hot
  EXPECT_EQ(manager_->Snapshot().checksum_failures, 0u);
}

TEST_P(TierManagerTest, NeighbouringBlocksTravelTogether) {
  Start(64 * kMiB);
  auto source = MakeSource("a", {8 * kMiB}, 256 * kKiB);
  EXPECT_TRUE(Pass(Add("a", source), *source));
  EXPECT_EQ(reader_->reads, 2);  // 32 blocks
}

TEST_P(TierManagerTest, TheRestFollowsTheFirstSegmentByItself) {
  Start(64 * kMiB);
  auto source = MakeSource("a", std::vector<uint64_t>(8, 2 * kMiB));
  ModelId a = Add("a", source);
  ASSERT_TRUE(Acquire(a, 0).ok());
  Settle();
  EXPECT_EQ(Resident(a), std::vector<bool>(8, true));
}

TEST_P(TierManagerTest, A39_BothModelsStayWhereBothFit) {
  Start(17 * kMiB);
  auto source = MakeSource("a", {4 * kMiB, 4 * kMiB});
  auto source2 = MakeSource("b", {4 * kMiB, 4 * kMiB});
  ModelId a = Add("a", source), b = Add("b", source2);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(Pass(a, *source));
    EXPECT_TRUE(Pass(b, *source2));
  }
  EXPECT_EQ(State(a).loads + State(b).loads, 4u);
  EXPECT_EQ(State(a).evictions + State(b).evictions, 0u);
}

TEST_P(TierManagerTest, A39_TailsOfTheIdleModelMakeRoomAndTheHeadStays) {
  Start(16 * kMiB - 4096);
  auto source = MakeSource("a", std::vector<uint64_t>(4, 2 * kMiB));
  auto source2 = MakeSource("b", std::vector<uint64_t>(4, 2 * kMiB));
  ModelId a = Add("a", source), b = Add("b", source2);
  EXPECT_TRUE(Pass(a, *source));
  EXPECT_TRUE(Pass(b, *source2));
  EXPECT_EQ(Resident(a), (std::vector<bool>{true, true, true, false}));
  EXPECT_EQ(Resident(b), std::vector<bool>(4, true));
  EXPECT_TRUE(Pass(a, *source));
  EXPECT_EQ(Resident(a), std::vector<bool>(4, true));
  EXPECT_EQ(Resident(b), (std::vector<bool>{true, true, true, false}));
  EXPECT_LE(manager_->Snapshot().device_used_bytes, options_.device_budget_bytes);
}

TEST_P(TierManagerTest, A39_ASegmentAboveTheBudgetIsRefusedWithNeedAndBudget) {
  Start(8 * kMiB);
  auto source = MakeSource("a", {4 * kMiB, 12 * kMiB});
  absl::Status status = manager_->Register(source->Spec("a", source)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(std::string(status.message()).find("12582912"), std::string::npos) << status;
  EXPECT_NE(std::string(status.message()).find("8388608"), std::string::npos) << status;
}

TEST_P(TierManagerTest, HotModelOutlivesALeastRecentlyUsedOne) {
  Start(12 * kMiB);
  auto source = MakeSource("a", {4 * kMiB});
  auto source2 = MakeSource("b", {4 * kMiB});
  auto source3 = MakeSource("c", {8 * kMiB});
  ModelId hot = Add("hot", source, 1'000'000), plain = Add("plain", source2),
          big = Add("big", source3);
  EXPECT_TRUE(Pass(hot, *source));
  EXPECT_TRUE(Pass(plain, *source2));  // used later, yet it goes
  EXPECT_TRUE(Pass(big, *source3));
  EXPECT_EQ(State(hot).evictions, 0u);
  EXPECT_EQ(State(plain).evictions, 1u);
  // The floor gives way when nothing else fits.
  auto source4 = MakeSource("d", {12 * kMiB});
  ModelId whole = Add("whole", source4);
  EXPECT_TRUE(Pass(whole, *source4));
  EXPECT_EQ(State(hot).evictions, 1u);
}

TEST_P(TierManagerTest, PinnedSegmentsNeverMove) {
  Start(8 * kMiB, 1000);
  auto source = MakeSource("a", {4 * kMiB, 4 * kMiB});
  auto source2 = MakeSource("b", {8 * kMiB});
  ModelId a = Add("a", source), b = Add("b", source2);
  Pin pin = Acquire(a, 1).value();
  absl::StatusOr<Pin> other = Acquire(b, 0);
  EXPECT_EQ(other.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(std::string(other.status().message()).find("a weights"), std::string::npos)
      << other.status();
  EXPECT_TRUE(HoldsSegment(source->seed(), 1, pin.data(), pin.bytes()));
  manager_->EvictModel(a);
  EXPECT_EQ(Resident(a), (std::vector<bool>{false, true}));
  EXPECT_EQ(manager_->Unregister(a).code(), absl::StatusCode::kFailedPrecondition);
  pin.Release();
  EXPECT_TRUE(Pass(b, *source2));
  EXPECT_TRUE(manager_->Unregister(a).ok());
  EXPECT_EQ(manager_->Unregister(a).code(), absl::StatusCode::kNotFound);
}

TEST_P(TierManagerTest, AnAcquireWaitsForAPinToGo) {
  Start(8 * kMiB, 5'000'000);
  auto source = MakeSource("a", {8 * kMiB});
  auto source2 = MakeSource("b", {8 * kMiB});
  ModelId a = Add("a", source), b = Add("b", source2);
  Pin pin = Acquire(a, 0).value();
  std::thread other([&] {
    absl::StatusOr<Pin> second = manager_->Acquire(b, 0, Priority::kDemand, nullptr);
    EXPECT_TRUE(second.ok()) << second.status();
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_TRUE(HoldsSegment(source->seed(), 0, pin.data(), pin.bytes()));
  pin.Release();
  other.join();
}

// Each of two threads holds what the other needs. Neither waits for ever: at least one is refused,
// and after dropping its pin it succeeds.
TEST_P(TierManagerTest, ThreadsThatHoldPinsAndWantMoreDoNotWaitForEver) {
  Start(8 * kMiB, 50'000);
  auto source = MakeSource("a", {4 * kMiB, 4 * kMiB});
  auto source2 = MakeSource("b", {4 * kMiB, 4 * kMiB});
  ModelId ids[] = {Add("a", source), Add("b", source2)};
  std::vector<std::thread> threads;
  std::atomic<int> holding{0};
  for (ModelId id : ids) {
    threads.emplace_back([&, id] {
      Pin first = manager_->Acquire(id, 0, Priority::kDemand, nullptr).value();
      ++holding;
      while (holding < 2) std::this_thread::yield();
      for (int attempt = 0; attempt < 100; ++attempt) {
        absl::StatusOr<Pin> second = manager_->Acquire(id, 1, Priority::kDemand, nullptr);
        if (second.ok()) return;
        ASSERT_EQ(second.status().code(), absl::StatusCode::kResourceExhausted);
        first.Release();
      }
      FAIL() << "never served";
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(TierManagerTest, RequestsThatAreAnnouncedCountEach) {
  Start(16 * kMiB);
  auto source = MakeSource("a", {4 * kMiB}), source2 = MakeSource("b", {4 * kMiB});
  const ModelId a = Add("a", source), b = Add("b", source2);
  for (int i = 0; i < 5; ++i) {
    manager_->NoteRequest(a);
    EXPECT_TRUE(Pass(a, *source));
    EXPECT_TRUE(Pass(b, *source2));
    manual_.AdvanceUs(1000);
  }
  EXPECT_EQ(State(a).history.uses, 5u);
  EXPECT_EQ(State(b).history.uses, 1u) << "guessed from accesses close together";
  manager_->NoteRequest(77);  // none such
}

TEST_P(TierManagerTest, AModelLargerThanTheBudgetStreams) {
  Start(12 * kMiB);
  auto source = MakeSource("a", std::vector<uint64_t>(12, 2 * kMiB));
  ModelId a = Add("a", source);
  for (int round = 0; round < 3; ++round) EXPECT_TRUE(Pass(a, *source));
  Settle();
  const uint64_t loads = State(a).loads;
  for (int round = 0; round < 4; ++round) EXPECT_TRUE(Pass(a, *source));
  Settle();
  const double a_round = static_cast<double>(State(a).loads - loads) / 4;
  // 6 of 12 segments fit. Plain LRU would load all 12 each round; the best possible with one slot
  // in use by the running segment keeps 5 and loads 7.
  EXPECT_LE(a_round, 9) << "the scan evicts what comes next";
  EXPECT_GE(a_round, 6);
  EXPECT_LE(manager_->Snapshot().device_used_bytes, options_.device_budget_bytes);
}

TEST_P(TierManagerTest, ALeaseKeepsOthersOutUntilItEnds) {
  Start(8 * kMiB, 1000);
  auto source = MakeSource("a", {4 * kMiB, 4 * kMiB});
  auto source2 = MakeSource("b", {4 * kMiB});
  ModelId a = Add("a", source), b = Add("b", source2);
  EXPECT_TRUE(Pass(a, *source));
  Settle();
  manager_->Lease(a, manual_.NowUs() + 1'000'000);
  manager_->Lease(a, manual_.NowUs() + 10);  // does not shorten it
  EXPECT_EQ(Acquire(b, 0).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(manager_->Allocate({"b", "t", Kind::kKv}, 4096).status().code(),
            absl::StatusCode::kResourceExhausted);
  manual_.AdvanceUs(1'000'000);
  EXPECT_TRUE(Pass(b, *source2));
}

TEST_P(TierManagerTest, PastTheThresholdWhatIsNoLongerHotGoes) {
  options_.swap_threshold = 0.75;
  Start(16 * kMiB);
  auto source = MakeSource("a", {4 * kMiB, 4 * kMiB});
  auto source2 = MakeSource("b", {4 * kMiB});
  auto source3 = MakeSource("c", {4 * kMiB});
  ModelId a = Add("a", source, 1000), b = Add("b", source2), c = Add("c", source3, 1000);
  EXPECT_TRUE(Pass(a, *source));
  EXPECT_TRUE(Pass(b, *source2));
  Settle();
  EXPECT_EQ(State(a).evictions, 0u);  // at the threshold, not past it
  manual_.AdvanceUs(2000);
  EXPECT_TRUE(Pass(c, *source3));  // fits, and yet ...
  EXPECT_EQ(Resident(a), (std::vector<bool>{true, false}));
  EXPECT_EQ(State(b).evictions, 0u);  // has no hot_keep_time that could end
}

TEST_P(TierManagerTest, WhatIsAtWorkStaysHoweverShortItsKeepTime) {
  options_.swap_threshold = 0.25;
  Start(16 * kMiB);
  auto source = MakeSource("a", {4 * kMiB, 4 * kMiB});
  auto source2 = MakeSource("b", {4 * kMiB});
  const ModelId a = Add("a", source, 1000), b = Add("b", source2, 1000);
  manager_->SetAtWork(a, true, LinkClass::kStandard);
  EXPECT_TRUE(Pass(a, *source));
  Settle();
  for (int i = 0; i < 3; ++i) {  // steps of the other one, longer than a's keep time
    manual_.AdvanceUs(50'000);
    EXPECT_TRUE(Pass(b, *source2));
    Settle();
    manager_->EvictModel(b);
  }
  EXPECT_EQ(Resident(a), (std::vector<bool>{true, true}));
  manager_->SetAtWork(a, false, LinkClass::kStandard);
  manual_.AdvanceUs(50'000);
  EXPECT_TRUE(Pass(b, *source2));
  Settle();
  EXPECT_EQ(Resident(a), (std::vector<bool>{false, false}));
}

TEST_P(TierManagerTest, KvMakesIdleWeightsGoAndGivesBack) {
  Start(16 * kMiB, 1000);
  auto source = MakeSource("a", std::vector<uint64_t>(4, 3 * kMiB));
  ModelId a = Add("a", source);
  EXPECT_TRUE(Pass(a, *source));
  Settle();
  const Owner owner{"a", "tenant", Kind::kKv};
  EXPECT_TRUE(manager_->CouldFit(16 * kMiB));
  {
    DeviceBuffer kv = manager_->Allocate(owner, 6 * kMiB).value();
    std::memset(kv.data(), 3, device_->info().host_addressable ? kv.bytes() : 0);
    EXPECT_EQ(Resident(a), (std::vector<bool>{true, true, true, false}));
    EXPECT_TRUE(manager_->CouldFit(10 * kMiB));
    EXPECT_FALSE(manager_->CouldFit(10 * kMiB + 1));
    EXPECT_TRUE(manager_->CheckInvariants().ok());
    Pin pin = Acquire(a, 0).value();
    absl::Status refused = manager_->Allocate(owner, 9 * kMiB).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_NE(std::string(refused.message()).find("a kv 6.0 MiB"), std::string::npos) << refused;
    EXPECT_EQ(manager_->Allocate(owner, 17 * kMiB).status().code(),
              absl::StatusCode::kResourceExhausted);
    DeviceBuffer moved = std::move(kv);
    EXPECT_FALSE(kv);
  }
  EXPECT_TRUE(Pass(a, *source));
  Settle();
  EXPECT_EQ(manager_->Snapshot().device_used_bytes, 12 * kMiB);
}

TEST_P(TierManagerTest, PrefetchThatDoesNotFitIsDroppedAndEvictsNothingInUse) {
  Start(8 * kMiB);
  auto source = MakeSource("a", {4 * kMiB, 4 * kMiB});
  auto source2 = MakeSource("b", {4 * kMiB});
  ModelId hot = Add("a", source, 1'000'000'000), b = Add("b", source2);
  EXPECT_TRUE(Pass(hot, *source));
  manager_->Prefetch(b, 0, 1, Priority::kPredicted);
  manager_->Prefetch(b, 5, 9, Priority::kPredicted);
  manager_->Prefetch(77, 0, 1, Priority::kPredicted);
  Settle();
  EXPECT_EQ(State(hot).evictions, 0u);
  EXPECT_EQ(State(b).resident_bytes, 0u);
  manager_->EvictModel(hot);
  manager_->Prefetch(b, 0, 1, Priority::kPredicted);
  Settle();
  EXPECT_EQ(State(b).resident_bytes, 4 * kMiB);
}

TEST_P(TierManagerTest, ConcurrentCallersShareOneLoad) {
  Start(64 * kMiB);
  auto source = MakeSource("a", {16 * kMiB});
  ModelId a = Add("a", source);
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&] {
      Pin pin = manager_->Acquire(a, 0, Priority::kDemand, nullptr).value();
      EXPECT_TRUE(HoldsSegment(source->seed(), 0, pin.data(), pin.bytes()));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(State(a).loads, 1u);
  EXPECT_EQ(State(a).segments[0].pins, 0u);
}

TEST_P(TierManagerTest, SegmentsAreProducedWhileTheImageIsStillBeingWritten) {
  Start(64 * kMiB);
  auto source = MakeSource("a", {9 * kMiB, 4096, 5 * kMiB});
  source->produces = [](uint32_t segment) { return segment != 1; };
  EXPECT_TRUE(Pass(Add("a", source), *source));
  EXPECT_EQ(source->produced, 2);
  Settle();
  for (const LedgerLine& line : manager_->Snapshot().ledger) {
    if (line.owner.model != "a") continue;
    EXPECT_EQ(line.owner.kind, Kind::kWeights);  // staging went back
  }
}

TEST_P(TierManagerTest, MemoryLeavesTheProcessWithEviction) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "a sanitizer's own memory grows with ours";
#endif
  Start(128 * kMiB);
  auto source = MakeSource("a", {100 * kMiB});
  ModelId a = Add("a", source);
  const uint64_t before = os::ReadProcessMemory().value().rss_bytes;
  EXPECT_TRUE(Pass(a, *source));
  EXPECT_GE(os::ReadProcessMemory().value().rss_bytes, before + 100 * kMiB);
  manager_->EvictModel(a);
  // The staging ring may have been touched in between; nothing else may stay.
  EXPECT_LE(os::ReadProcessMemory().value().rss_bytes, before + options_.staging_bytes + 8 * kMiB);
}

// --- the host tier ---

TEST_P(TierManagerTest, WhatLeftTheDeviceComesBackFromTheHostWithoutTheDisk) {
  if (device_->info().unified_memory) GTEST_SKIP() << "host and device are one on unified memory";
  options_.host_budget_bytes = 16 * kMiB + 24 * kMiB;  // staging and both models
  Start(13 * kMiB);
  auto source = MakeSource("a", std::vector<uint64_t>(4, 3 * kMiB));
  auto source2 = MakeSource("b", std::vector<uint64_t>(4, 3 * kMiB));
  source2->produces = [](uint32_t segment) { return segment == 2; };
  ModelId a = Add("a", source), b = Add("b", source2);
  EXPECT_TRUE(Pass(a, *source));
  EXPECT_TRUE(Pass(b, *source2));
  Settle();
  EXPECT_EQ(State(a).host_bytes, 12 * kMiB);
  EXPECT_EQ(State(b).host_bytes, 12 * kMiB);
  EXPECT_EQ(State(a).resident_bytes, 0u);
  const int reads = reader_->reads;
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(Pass(a, *source));
    EXPECT_TRUE(Pass(b, *source2));
  }
  EXPECT_EQ(reader_->reads, reads);
  EXPECT_EQ(source2->produced, 1);
  EXPECT_GE(State(a).loads_from_host, 9u);
  manager_->EvictModel(a);
  EXPECT_EQ(State(a).host_bytes, 0u);
  EXPECT_TRUE(Pass(a, *source));
  EXPECT_GT(reader_->reads, reads);
}

TEST_P(TierManagerTest, TheHostBudgetHoldsAndTheOldestCopiesGo) {
  if (device_->info().unified_memory) GTEST_SKIP() << "host and device are one on unified memory";
  options_.host_budget_bytes = 16 * kMiB + 10 * kMiB;
  Start(64 * kMiB);
  std::vector<std::shared_ptr<TestSource>> sources;
  std::vector<ModelId> ids;
  for (const char* name : {"a", "b", "c"}) {
    sources.push_back(MakeSource(name, std::vector<uint64_t>(2, 3 * kMiB)));
    ids.push_back(Add(name, sources.back()));
    EXPECT_TRUE(Pass(ids.back(), *sources.back()));
    EXPECT_LE(manager_->Snapshot().host_used_bytes, options_.host_budget_bytes);
  }
  Settle();
  EXPECT_EQ(State(ids[0]).host_bytes, 0u);
  EXPECT_EQ(State(ids[1]).host_bytes, 3 * kMiB);  // its head
  EXPECT_EQ(State(ids[2]).host_bytes, 6 * kMiB);
  // A model larger than the host tier's room keeps what it has and reads the rest past it.
  auto big = MakeSource("big", std::vector<uint64_t>(6, 3 * kMiB));
  ModelId id = Add("big", big);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(Pass(id, *big));
    Settle();
    EXPECT_EQ(State(id).host_bytes, 9 * kMiB);
    std::vector<Pin> pins;
    // Push it out of the device, not out of the host.
    DeviceBuffer all = manager_->Allocate({"kv", "t", Kind::kKv}, 64 * kMiB).value();
  }
  EXPECT_GE(State(id).loads_from_host, 3u);
}

TEST_P(TierManagerTest, ABadBlockLeavesNoCopyOnTheHost) {
  if (device_->info().unified_memory) GTEST_SKIP() << "host and device are one on unified memory";
  options_.host_budget_bytes = 64 * kMiB;
  Start(64 * kMiB);
  auto source = MakeSource("a", {9 * kMiB});
  source->blocks()[0][1].checksum ^= 1;
  source->on_produce = [&](uint32_t, const CancelFlag*) {
    return source->produced == 1 ? absl::DataLossError("gone") : absl::OkStatus();
  };
  ModelId a = Add("a", source);
  EXPECT_EQ(Acquire(a, 0).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(State(a).host_bytes, 0u);
  EXPECT_EQ(manager_->Snapshot().host_used_bytes, options_.staging_bytes);
  source->blocks()[0][1].checksum ^= 1;
  EXPECT_TRUE(Pass(a, *source));
}

INSTANTIATE_TEST_SUITE_P(Devices, TierManagerTest, testing::Values("cpu", "sim"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace terrace::tier
