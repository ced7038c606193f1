// Loads of one model while streams of another decode.

#include "manager_fixture.h"

namespace terrace::tier {
namespace {

constexpr uint64_t kSegment = 4 * kMiB;
constexpr uint32_t kSegments = 8;

class BesideTest : public TierManagerTest {
 protected:
  // The first model is there, the second is not; the clock stands still unless a test moves it.
  void StartWithTwo() {
    Start(40 * kSegment);
    reader_->after = [this](int, std::span<std::byte>) { ++read_; };
    first_source_ = MakeSource("first", std::vector<uint64_t>(kSegments, kSegment));
    second_source_ = MakeSource("second", std::vector<uint64_t>(kSegments, kSegment));
    first_ = Add("first", first_source_);
    second_ = Add("second", second_source_);
    ASSERT_TRUE(Pass(first_, *first_source_));
    Settle();
  }
  void LoadSecond() { manager_->Prefetch(second_, 0, kSegments, Priority::kNextLayer); }
  // Steps of 20 ms: by the first figures 8 MB may move in one.
  void Step(bool gives_way = false) {
    manager_->StepBegins({.model = first_, .rows = 1, .gives_way = gives_way});
    manual_.AdvanceUs(20'000);
    manager_->StepEnds(20'000);
  }
  // Once what has been read is there and nothing is being read.
  uint64_t MovedOfSecond() {
    for (;;) {
      const auto read = static_cast<uint64_t>(read_.load());
      const uint64_t there = manager_->LoadedBytes(first_) + manager_->LoadedBytes(second_);
      if (there == read * kSegment && read_ == reader_->reads) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return manager_->LoadedBytes(second_);
  }

  std::atomic<int> read_{0};
  std::shared_ptr<TestSource> first_source_, second_source_;
  ModelId first_ = 0, second_ = 0;
};

TEST_P(BesideTest, LoadsWaitForSteps) {
  StartWithTwo();
  Step();
  manager_->StepBegins({.model = first_, .rows = 1});
  LoadSecond();
  const uint64_t in_one = MovedOfSecond();
  EXPECT_GE(in_one, kSegment);
  EXPECT_LE(in_one, 3 * kSegment);
  manual_.AdvanceUs(20'000);
  manager_->StepEnds(20'000);
  const TierSnapshot snapshot = manager_->Snapshot();
  ASSERT_EQ(snapshot.held_loads.size(), 1u);
  EXPECT_EQ(snapshot.held_loads[0].model, "second");
  EXPECT_EQ(snapshot.held_loads[0].by, "first");
  EXPECT_EQ(snapshot.held_loads[0].us, 20'000);
  EXPECT_GT(snapshot.load_limit_bytes_per_s, 1e8);
  EXPECT_LT(snapshot.load_limit_bytes_per_s, 1e9);
  // Each step brings more, until all is there.
  int steps = 0;
  for (uint64_t moved = in_one; moved < kSegments * kSegment; ++steps) {
    ASSERT_LT(steps, 100);
    Step();
    moved = MovedOfSecond();
  }
  EXPECT_GE(steps, 2);
  EXPECT_TRUE(Pass(second_, *second_source_));
}

TEST_P(BesideTest, NobodyComputesAnyMore) {
  StartWithTwo();
  Step();
  manager_->StepBegins({.model = first_, .rows = 1});
  LoadSecond();
  manager_->StepEnds(20'000);
  EXPECT_LT(MovedOfSecond(), kSegments * kSegment);
  manager_->StepsPause();
  Settle();
  EXPECT_EQ(manager_->LoadedBytes(second_), kSegments * kSegment);
  EXPECT_EQ(manager_->Snapshot().load_limit_bytes_per_s, 0);
}

TEST_P(BesideTest, WhoWaitsIsNotHeldBack) {
  StartWithTwo();
  Step();
  manager_->StepBegins({.model = first_, .rows = 1});
  LoadSecond();
  EXPECT_TRUE(Pass(second_, *second_source_));
  manager_->StepEnds(20'000);
}

TEST_P(BesideTest, AMoreUrgentLoadIsNotHeldBack) {
  StartWithTwo();
  Step();
  manager_->StepBegins({.model = first_, .rows = 1, .gives_way = true});
  LoadSecond();
  Settle();
  EXPECT_EQ(manager_->LoadedBytes(second_), kSegments * kSegment);
  manager_->StepEnds(20'000);
  EXPECT_TRUE(manager_->Snapshot().held_loads.empty());
}

TEST_P(BesideTest, AModelWhoseOwnWeightsComeHoldsNothingBack) {
  StartWithTwo();
  Step();
  manager_->EvictModel(first_);
  manager_->StepBegins({.model = first_, .rows = 1});
  LoadSecond();
  Settle();
  EXPECT_EQ(manager_->LoadedBytes(second_), kSegments * kSegment);
  manager_->StepEnds(20'000);
}

// What a load that is held back has booked must not keep a step waiting for room.
TEST_P(BesideTest, RoomThatLoadsHoldIsNotWaitedForInVain) {
  StartWithTwo();
  Step();
  manager_->StepBegins({.model = first_, .rows = 1});
  LoadSecond();
  MovedOfSecond();
  Pin pin = Acquire(first_, 0).value();
  absl::StatusOr<DeviceBuffer> buffer =
      manager_->Allocate({"first", "tenant", Kind::kWorkspace}, 38 * kSegment);
  EXPECT_TRUE(buffer.ok()) << buffer.status();
  manager_->StepEnds(20'000);
}

TEST_P(BesideTest, OffMeansFullSpeed) {
  options_.decode_slowdown = 0;
  StartWithTwo();
  Step();
  manager_->StepBegins({.model = first_, .rows = 1});
  LoadSecond();
  Settle();
  EXPECT_EQ(manager_->LoadedBytes(second_), kSegments * kSegment);
  manager_->StepEnds(20'000);
}

TEST_P(BesideTest, ModelsAndManagerMayGoWhileLoadsAreHeld) {
  StartWithTwo();
  Step();
  manager_->StepBegins({.model = first_, .rows = 1});
  LoadSecond();
  EXPECT_TRUE(manager_->Unregister(second_).ok());
  manager_->StepEnds(20'000);
  const ModelId again = Add("again", second_source_);
  manager_->StepBegins({.model = first_, .rows = 1});
  manager_->Prefetch(again, 0, kSegments, Priority::kNextLayer);
}

INSTANTIATE_TEST_SUITE_P(Devices, BesideTest, testing::Values("cpu", "sim"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace terrace::tier
