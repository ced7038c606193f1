// What the tier manager does when disks, sources and links err, and when callers give up.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "manager_fixture.h"

namespace terrace::tier {
namespace {

class TierFaultTest : public TierManagerTest {};

TEST_P(TierFaultTest, ASpoiledReadIsReadAgain) {
  Start(64 * kMiB);
  auto source = MakeSource("a", {9 * kMiB});
  reader_->after = [](int number, std::span<std::byte> bytes) {
    if (number == 2) bytes[bytes.size() / 2] ^= std::byte{64};
  };
  EXPECT_TRUE(Pass(Add("a", source), *source));
  EXPECT_EQ(manager_->Snapshot().checksum_failures, 1u);
  EXPECT_EQ(reader_->reads, 4);
}

TEST_P(TierFaultTest, ADamagedSegmentIsMadeAnewByItsSource) {
  Start(64 * kMiB);
  auto source = MakeSource("a", {4096, 21 * kMiB});
  source->blocks()[1][1].checksum ^= 1;
  EXPECT_TRUE(Pass(Add("a", source), *source));
  EXPECT_EQ(source->produced, 1);
  EXPECT_EQ(manager_->Snapshot().remade, 1u);
  EXPECT_EQ(manager_->Snapshot().checksum_failures, 2u);
}

TEST_P(TierFaultTest, SegmentsThatTheDiskRefusesComeFromTheirSource) {
  Start(64 * kMiB);
  auto source = MakeSource("a", {20 * kMiB, 8 * kMiB});
  reader_->before = [](int, uint64_t) { return absl::UnavailableError("disk gone"); };
  EXPECT_TRUE(Pass(Add("a", source), *source));
  EXPECT_EQ(manager_->Snapshot().remade, 2u);
}

TEST_P(TierFaultTest, ABadBlockThatCannotBeMadeAnewIsNeverServed) {
  Start(64 * kMiB);
  auto source = MakeSource("a", {4096, 9 * kMiB});
  source->blocks()[1][1].checksum ^= 1;
  source->on_produce = [](uint32_t, const CancelFlag*) {
    return absl::DataLossError("the source is gone");
  };
  ModelId a = Add("a", source);
  EXPECT_TRUE(Acquire(a, 0).ok());
  absl::Status status = Acquire(a, 1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(std::string(status.message()).find("the source is gone"), std::string::npos) << status;
  EXPECT_NE(std::string(status.message()).find("seg.1"), std::string::npos) << status;
  EXPECT_EQ(Resident(a), (std::vector<bool>{true, false}));
  EXPECT_EQ(manager_->Snapshot().device_used_bytes, 4096u);
  EXPECT_GE(manager_->Snapshot().checksum_failures, 2u);
}

TEST_P(TierFaultTest, A38_AFailedLoadLeavesNothingAndTheNextOneWorks) {
  Start(64 * kMiB);
  auto source = MakeSource("a", {20 * kMiB});
  ModelId a = Add("a", source);
  reader_->before = [&](int number, uint64_t) {
    return number == 3 ? absl::UnavailableError("disk gone") : absl::OkStatus();
  };
  source->on_produce = [&](uint32_t, const CancelFlag*) {
    return absl::UnavailableError("source gone");
  };
  absl::Status status = Acquire(a, 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(std::string(status.message()).find("seg.0 of model a"), std::string::npos) << status;
  EXPECT_EQ(manager_->Snapshot().device_used_bytes, 0u);
  EXPECT_TRUE(manager_->CheckInvariants().ok());
  EXPECT_TRUE(Pass(a, *source));
}

TEST_P(TierFaultTest, ACutOffImageIsMadeAnew) {
  Start(64 * kMiB);
  auto source = MakeSource("a", {8 * kMiB, 8 * kMiB});
  ASSERT_EQ(::truncate(source->file().path().c_str(), 10 * kMiB + 100), 0);
  ModelId a = Add("a", source);
  EXPECT_TRUE(Pass(a, *source));
  EXPECT_EQ(manager_->Snapshot().remade, 1u);
}

TEST_P(TierFaultTest, AnImpossibleBlockListIsRefused) {
  Start(64 * kMiB);
  for (int kind = 0; kind < 5; ++kind) {
    const std::string name = "a" + std::to_string(kind);
    auto source = MakeSource(name, {8 * kMiB});
    std::vector<DiskBlock>& blocks = source->blocks()[0];
    if (kind == 0) blocks.pop_back();
    if (kind == 1) blocks.push_back(blocks[0]);
    if (kind == 2) blocks[0].bytes = 0;
    if (kind == 3) blocks[0].offset = 512;
    if (kind == 4) blocks[0].bytes = 8 << 20;
    ModelId id = Add(name, source);
    EXPECT_EQ(Acquire(id, 0).status().code(), absl::StatusCode::kDataLoss) << kind;
  }
  EXPECT_EQ(manager_->Snapshot().device_used_bytes, 0u);
}

TEST_P(TierFaultTest, AFailingSourceTellsItsOwnError) {
  Start(64 * kMiB);
  auto source = MakeSource("a", {5 * kMiB});
  source->produce_only = true;
  source->on_produce = [&](uint32_t, const CancelFlag*) {
    return source->produced == 1 ? absl::PermissionDeniedError("secret file") : absl::OkStatus();
  };
  ModelId a = Add("a", source);
  EXPECT_EQ(Acquire(a, 0).status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(manager_->Snapshot().device_used_bytes, 0u);
  EXPECT_TRUE(Pass(a, *source));
}

TEST_P(TierFaultTest, ACancelledCallerLeavesAndTheLoadHarmsNobody) {
  Start(64 * kMiB);
  auto source = MakeSource("a", {8 * kMiB});
  ModelId a = Add("a", source);
  absl::Notification asked, go_on;
  reader_->after = [&](int number, std::span<std::byte>) {
    if (number == 1) {
      asked.Notify();
      go_on.WaitForNotification();
    }
  };
  CancelFlag cancel;
  std::thread caller([&] {
    EXPECT_EQ(manager_->Acquire(a, 0, Priority::kDemand, &cancel).status().code(),
              absl::StatusCode::kCancelled);
  });
  asked.WaitForNotification();
  cancel.cancelled = true;
  caller.join();  // while the read still hangs
  EXPECT_EQ(Acquire(a, 0, &cancel).status().code(), absl::StatusCode::kCancelled);
  go_on.Notify();
  EXPECT_TRUE(Pass(a, *source));
}

TEST_P(TierFaultTest, UnregisterEndsALoadUnderWay) {
  Start(64 * kMiB);
  auto source = MakeSource("a", {4 * kMiB, 4 * kMiB});
  source->produce_only = true;
  absl::Notification begun;
  source->on_produce = [&](uint32_t, const CancelFlag* cancel) {
    begun.Notify();
    while (!cancel->cancelled) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return absl::CancelledError("told to stop");
  };
  ModelId a = Add("a", source);
  manager_->Prefetch(a, 0, 2, Priority::kNextLayer);
  begun.WaitForNotification();
  EXPECT_TRUE(manager_->Unregister(a).ok());
  EXPECT_EQ(manager_->Snapshot().device_used_bytes, 0u);
  EXPECT_EQ(Acquire(a, 0).status().code(), absl::StatusCode::kNotFound);
}

TEST_P(TierFaultTest, DestroyingTheManagerEndsLoadsUnderWay) {
  Start(64 * kMiB);
  auto source = MakeSource("a", std::vector<uint64_t>(10, 4 * kMiB));
  ModelId a = Add("a", source);
  manager_->Prefetch(a, 0, 10, Priority::kNextLayer);
  manager_.reset();
  EXPECT_EQ(device_->GetMemoryInfo().allocated_bytes, 0u);
}

TEST_P(TierFaultTest, AFailedCopyIsTriedAgainThenTold) {
  if (device_->info().unified_memory) GTEST_SKIP() << "no copies on unified memory";
  Start(64 * kMiB);
  auto source = MakeSource("a", {12 * kMiB});
  auto source2 = MakeSource("b", {12 * kMiB});
  ModelId a = Add("a", source), b = Add("b", source2);
  std::atomic<int> copies{0};
  copy_fault_ = [&] { return ++copies == 2 ? absl::UnavailableError("link") : absl::OkStatus(); };
  EXPECT_TRUE(Pass(a, *source));
  EXPECT_GE(copies, 4);
  copy_fault_ = [] { return absl::UnavailableError("link down"); };
  EXPECT_EQ(Acquire(b, 0).status().code(), absl::StatusCode::kUnavailable);
  copy_fault_ = nullptr;
  EXPECT_TRUE(Pass(b, *source2));
}

TEST_P(TierFaultTest, AStrictCheckSeesWhatTheLinkSpoiled) {
  if (device_->info().unified_memory) GTEST_SKIP() << "no copies on unified memory";
  options_.strict_check = true;
  Start(64 * kMiB);
  auto source = MakeSource("a", {12 * kMiB}), source2 = MakeSource("b", {12 * kMiB});
  std::atomic<int> copies{0};
  spoil_copy_ = [&](std::span<std::byte> bytes) {
    if (++copies == 2) bytes[bytes.size() - 1] ^= std::byte{1};
  };
  EXPECT_TRUE(Pass(Add("a", source), *source));
  EXPECT_EQ(copies, 4);
  spoil_copy_ = [](std::span<std::byte> bytes) { bytes[0] ^= std::byte{1}; };
  EXPECT_EQ(Acquire(Add("b", source2), 0).status().code(), absl::StatusCode::kDataLoss);
}

TEST_P(TierFaultTest, ADeviceWithLessThanTheBudgetEvictsInsteadOfFailing) {
  if (device_->info().unified_memory) GTEST_SKIP() << "the sim device has a set size";
  Start(512 * kMiB);  // the device has 256
  auto source = MakeSource("a", {100 * kMiB, 100 * kMiB});
  auto source2 = MakeSource("b", {100 * kMiB});
  EXPECT_TRUE(Pass(Add("a", source), *source));
  EXPECT_TRUE(Pass(Add("b", source2), *source2));
}

INSTANTIATE_TEST_SUITE_P(Devices, TierFaultTest, testing::Values("cpu", "sim"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace terrace::tier
