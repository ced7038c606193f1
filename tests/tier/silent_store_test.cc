// Weights whose source waits for a store that gives nothing: who waits for them, and who is told.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "manager_fixture.h"

namespace terrace::tier {
namespace {

// Made from a store that a test lets answer.
class StoreSource final : public TestSource {
 public:
  using TestSource::TestSource;
  AwaitedStore Awaited() const override {
    if (!waits) return {};
    return {"s3://bucket/model", still_us};
  }
  std::atomic<bool> waits{false};
  std::atomic<int64_t> still_us{0};
};

class SilentStoreTest : public TierManagerTest {
 protected:
  void SetUp() override {
    TierManagerTest::SetUp();
    Start(16 * kMiB);
    source_ =
        std::make_shared<StoreSource>(folder_.path() + "/a", 7, std::vector<uint64_t>{4 * kMiB});
    source_->produce_only = true;
    source_->on_produce = [this](uint32_t, const CancelFlag*) {
      source_->waits = true;
      answer_.WaitForNotification();
      source_->waits = false;
      return end_;
    };
    model_ = Add("a", source_);
  }

  std::shared_ptr<StoreSource> source_;
  ModelId model_ = 0;
  absl::Notification answer_;
  absl::Status end_;
};

TEST_P(SilentStoreTest, IsToldAndNobodyWaitsLongerThanTheyMay) {
  EXPECT_FALSE(manager_->Snapshot().waits_for_store);
  manager_->SetAtWork(model_, true, LinkClass::kStandard);
  CancelFlag until;
  until.wait_until_us = manual_.NowUs() + 1000;
  std::thread later([&] {
    while (!source_->waits) std::this_thread::yield();
    EXPECT_EQ(manager_->Awaited(model_).name, "s3://bucket/model");
    EXPECT_EQ(State(model_).awaited.name, "s3://bucket/model");
    EXPECT_TRUE(manager_->Snapshot().waits_for_store);
    manual_.AdvanceUs(2000);
  });
  EXPECT_EQ(Acquire(model_, 0, &until).status().code(), absl::StatusCode::kCancelled);
  later.join();
  // The load goes on; nor does anybody wait for a store that has been silent for long.
  CancelFlag silence;
  silence.most_silence_us = 1000;
  source_->still_us = 1001;
  EXPECT_EQ(Acquire(model_, 0, &silence).status().code(), absl::StatusCode::kCancelled);
  EXPECT_GT(manager_->MissingOf(model_).store.still_us, 1000);
  source_->still_us = 0;
  answer_.Notify();
  EXPECT_TRUE(Acquire(model_, 0, &silence).ok());
  EXPECT_EQ(source_->produced, 1);
  EXPECT_FALSE(manager_->Snapshot().waits_for_store);
  // What is there is had however late it is.
  EXPECT_TRUE(Acquire(model_, 0, &until).ok());
}

TEST_P(SilentStoreTest, TheFailureOfALoadThatNobodyWaitsForIsToldToTheNext) {
  manager_->SetAtWork(model_, true, LinkClass::kStandard);
  CancelFlag silence;
  silence.most_silence_us = 1000;
  source_->still_us = 1001;
  end_ = absl::UnavailableError("the store is gone");
  EXPECT_EQ(Acquire(model_, 0, &silence).status().code(), absl::StatusCode::kCancelled);
  answer_.Notify();
  Settle();
  EXPECT_TRUE(manager_->MissingOf(model_).failed);
  const absl::Status told = Acquire(model_, 0).status();
  EXPECT_NE(told.message().find("the store is gone"), absl::string_view::npos) << told;
  EXPECT_EQ(source_->produced, 1) << "not tried again before it is told";
  EXPECT_FALSE(manager_->MissingOf(model_).failed);
  end_ = absl::OkStatus();
  EXPECT_TRUE(Acquire(model_, 0).ok());
  // Where no requests are there, the failure of a guess is nobody's.
  manager_->EvictModel(model_);
  manager_->SetAtWork(model_, false, LinkClass::kStandard);
  end_ = absl::UnavailableError("the store is gone");
  manager_->Prefetch(model_, 0, 1, Priority::kNextLayer);
  Settle();
  end_ = absl::OkStatus();
  EXPECT_TRUE(Acquire(model_, 0).ok());
}

INSTANTIATE_TEST_SUITE_P(Devices, SilentStoreTest, testing::Values("cpu", "sim"));

}  // namespace
}  // namespace terrace::tier
