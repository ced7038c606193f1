// Images that are read in idle time, and what is done about damage on the disk.
#include "tier/scrubber.h"

#include <fcntl.h>

#include <gmock/gmock.h>

#include "manager_fixture.h"

namespace terrace::tier {
namespace {

using ::testing::HasSubstr;

class ScrubberTest : public TierManagerTest {
 protected:
  void MakeScrubber(ScrubOptions options = {}) {
    options.round_us = 0;
    options.idle_us = 0;
    options.notice = [this](const std::string& model, const std::string& message) {
      notices_.push_back(model + ": " + message);
    };
    scrubber_ = std::make_unique<Scrubber>(manager_.get(), options);
  }
  void TearDown() override {
    scrubber_.reset();
    TierManagerTest::TearDown();
  }
  // Changes one byte of the file that `source` reads.
  void Damage(const TestSource& source, uint64_t offset) {
    const int fd = ::open(source.file().path().c_str(), O_RDWR);
    char byte = 0;
    ASSERT_EQ(::pread(fd, &byte, 1, static_cast<off_t>(offset)), 1);
    byte = static_cast<char>(byte ^ 1);
    ASSERT_EQ(::pwrite(fd, &byte, 1, static_cast<off_t>(offset)), 1);
    ::close(fd);
  }

  std::unique_ptr<Scrubber> scrubber_;
  std::vector<std::string> notices_;
};

TEST_P(ScrubberTest, EverySegmentOfEveryModelIsReadInTurn) {
  Start(64 * kMiB);
  auto a = MakeSource("a", {kMiB, 2 * kMiB}), b = MakeSource("b", {5 * kMiB});
  Add("a", a);
  Add("b", b);
  MakeScrubber();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(scrubber_->Step());
  EXPECT_EQ(scrubber_->State().bytes, 8 * kMiB);
  EXPECT_EQ(scrubber_->State().rounds, 0u);
  EXPECT_TRUE(scrubber_->Step());
  EXPECT_EQ(scrubber_->State().rounds, 1u);
  EXPECT_EQ(scrubber_->State().damaged, 0u);
  EXPECT_EQ(a->produced + b->produced, 0);
  EXPECT_EQ(manager_->Snapshot().device_used_bytes, 0u) << "it takes no place on the device";
}

TEST_P(ScrubberTest, WhatIsDamagedIsMadeAnewAndTold) {
  Start(64 * kMiB);
  auto source = MakeSource("m", {kMiB, 9 * kMiB, kMiB});
  Add("m", source);
  Damage(*source, 6 * kMiB + 5);  // in the second block of the second segment
  MakeScrubber();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(scrubber_->Step());
  EXPECT_EQ(source->produced, 1);
  EXPECT_EQ(scrubber_->State().damaged, 1u);
  EXPECT_EQ(scrubber_->State().mended, 1u);
  EXPECT_EQ(scrubber_->State().bytes, 2 * kMiB) << "only what was good counts";
  ASSERT_EQ(notices_.size(), 1u);
  EXPECT_THAT(notices_[0], HasSubstr("m: scrubbing made seg.1"));
}

TEST_P(ScrubberTest, AReadThatIsWrongOnceIsNoDamage) {
  Start(64 * kMiB);
  auto source = MakeSource("m", {kMiB});
  Add("m", source);
  reader_->after = [](int number, std::span<std::byte> out) {
    if (number == 1) out[100] ^= std::byte{1};
  };
  MakeScrubber();
  EXPECT_TRUE(scrubber_->Step());
  EXPECT_EQ(scrubber_->State().bytes, kMiB);
  EXPECT_EQ(scrubber_->State().damaged, 0u);
}

TEST_P(ScrubberTest, ASourceThatIsGoneIsToldAndDoesNotStopTheRound) {
  Start(64 * kMiB);
  auto source = MakeSource("m", {kMiB, kMiB});
  source->on_produce = [](uint32_t, const CancelFlag*) {
    return absl::NotFoundError("the source is gone");
  };
  Add("m", source);
  Damage(*source, 7);
  MakeScrubber();
  EXPECT_TRUE(scrubber_->Step());
  EXPECT_TRUE(scrubber_->Step());
  EXPECT_EQ(scrubber_->State().damaged, 1u);
  EXPECT_EQ(scrubber_->State().mended, 0u);
  EXPECT_EQ(scrubber_->State().bytes, kMiB);
  ASSERT_EQ(notices_.size(), 1u);
  EXPECT_THAT(notices_[0], HasSubstr("the source is gone"));
}

TEST_P(ScrubberTest, AnImageThatIsStillWrittenIsPassedBy) {
  Start(64 * kMiB);
  auto writing = MakeSource("writing", {kMiB, kMiB}), whole = MakeSource("whole", {2 * kMiB});
  writing->produce_only = true;
  Add("writing", writing);
  MakeScrubber();
  EXPECT_FALSE(scrubber_->Step());
  Add("whole", whole);
  EXPECT_TRUE(scrubber_->Step());
  EXPECT_EQ(scrubber_->State().bytes, 2 * kMiB);
}

TEST_P(ScrubberTest, ItsThreadReadsWhileNothingHappensAndEnds) {
  Start(64 * kMiB);
  auto source = MakeSource("m", {kMiB, kMiB, kMiB});
  const ModelId id = Add("m", source);
  MakeScrubber();
  scrubber_->Start();
  while (scrubber_->State().rounds < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(manager_->Unregister(id).ok()) << "it stands in nobody's way";
}

INSTANTIATE_TEST_SUITE_P(Devices, ScrubberTest, testing::Values("cpu", "sim"));

}  // namespace
}  // namespace terrace::tier
