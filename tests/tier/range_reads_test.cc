// Ranges of files beside the loads of segments, on one disk link.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "manager_fixture.h"
#include "os/mapping.h"

namespace terrace::tier {
namespace {

// Notes how each of some ranges ended, and waits for all of them.
class Ended {
 public:
  explicit Ended(size_t count) : status_(count, absl::UnknownError("not yet")), left_(count) {}
  TierManager::RangeDone Done() {
    return [this](size_t index, absl::Status status) {
      absl::MutexLock lock(&mutex_);
      EXPECT_TRUE(absl::IsUnknown(status_[index])) << "told twice of " << index;
      status_[index] = std::move(status);
      order_.push_back(index);
      --left_;
    };
  }
  std::vector<absl::Status> Wait() {
    absl::MutexLock lock(&mutex_);
    auto all = [this] { return left_ == 0; };
    mutex_.Await(absl::Condition(&all));
    return status_;
  }
  std::vector<size_t> order() {
    absl::MutexLock lock(&mutex_);
    return order_;
  }

 private:
  absl::Mutex mutex_;
  std::vector<absl::Status> status_;
  std::vector<size_t> order_;
  size_t left_;
};

class RangeReadsTest : public TierManagerTest {
 protected:
  static constexpr uint64_t kPiece = 256 * 1024;
  static constexpr size_t kPieces = 24;

  void Prepare() {
    source_ = MakeSource("ranges", {kPiece * kPieces});
    memory_ = os::Mapping::Anonymous(kPiece * kPieces).value();
  }
  std::vector<FileRange> Ranges() {
    std::vector<FileRange> ranges;
    for (size_t i = 0; i < kPieces; ++i) {
      ranges.push_back({&source_->file(), i * kPiece, memory_.span().subspan(i * kPiece, kPiece)});
    }
    return ranges;
  }

  std::shared_ptr<TestSource> source_;
  os::Mapping memory_;
};

TEST_P(RangeReadsTest, BringTheFilesBytesAndCountAsTheLinks) {
  Start(64 * kMiB);
  Prepare();
  Ended ended(kPieces);
  manager_->ReadRanges(Ranges(), Priority::kNextLayer, ended.Done());
  for (const absl::Status& status : ended.Wait()) EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(HoldsSegment(source_->seed(), 0, memory_.data(), kPiece * kPieces));
  EXPECT_EQ(manager_->Snapshot().links[0].bytes, kPiece * kPieces);
  EXPECT_EQ(manager_->disk_load().queued_bytes, 0u);
}

TEST_P(RangeReadsTest, AFailedRangeIsThatRangesAlone) {
  Start(64 * kMiB);
  Prepare();
  reader_->before = [](int, uint64_t offset) {
    return offset == 3 * kPiece ? absl::DataLossError("a bad sector") : absl::OkStatus();
  };
  Ended ended(kPieces);
  manager_->ReadRanges(Ranges(), Priority::kNextLayer, ended.Done());
  const std::vector<absl::Status> statuses = ended.Wait();
  for (size_t i = 0; i < kPieces; ++i) EXPECT_EQ(statuses[i].ok(), i != 3) << i;
}

// With the link held up, a segment that somebody waits for passes the ranges that were queued
// before it; cancelled ranges end at once, those on their way as they do.
TEST_P(RangeReadsTest, GiveWayToWhatIsWaitedForAndEndWhenCancelled) {
  Start(64 * kMiB);
  Prepare();
  auto model = MakeSource("model", {kPiece});
  const ModelId id = Add("model", model);
  absl::Notification open;
  absl::Mutex mutex;
  std::vector<uint64_t> asked;  // where reads of the ranges began
  reader_->after = [&](int, std::span<std::byte>) { open.WaitForNotification(); };
  reader_->before = [&](int, uint64_t offset) {
    absl::MutexLock lock(&mutex);
    asked.push_back(offset);
    return absl::OkStatus();
  };
  Ended ended(kPieces);
  const uint64_t number = manager_->ReadRanges(Ranges(), Priority::kNextLayer, ended.Done());
  EXPECT_GT(manager_->disk_load().queued_bytes, 0u);
  std::thread waiter([&] { EXPECT_TRUE(Acquire(id, 0).ok()); });
  while (manager_->Snapshot().links[0].queued <= kPieces) std::this_thread::yield();
  size_t before = 0;
  {
    absl::MutexLock lock(&mutex);
    before = asked.size();
  }
  open.Notify();
  waiter.join();
  manager_->CancelRanges(number);
  size_t cancelled = 0;
  for (const absl::Status& status : ended.Wait()) {
    EXPECT_TRUE(status.ok() || absl::IsCancelled(status)) << status;
    if (absl::IsCancelled(status)) ++cancelled;
  }
  absl::MutexLock lock(&mutex);
  ASSERT_GT(asked.size(), before);
  EXPECT_EQ(asked[before], 0u);  // the segment begins its own file
  EXPECT_EQ(asked.size(), 1 + kPieces - cancelled);
}

INSTANTIATE_TEST_SUITE_P(Devices, RangeReadsTest, testing::Values("cpu", "sim"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace terrace::tier
