// Pieces of segments that are not on the device.
#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "manager_fixture.h"
#include "os/mapping.h"

namespace terrace::tier {
namespace {

constexpr uint64_t kBlock = 64 * 1024;
constexpr uint64_t kBytes = 10 * kBlock;

class PieceReadsTest : public TierManagerTest {
 protected:
  void Prepare(uint64_t budget = 64 * kMiB) {
    Start(budget);
    source_ = MakeSource("model", {kBytes, kBytes}, kBlock);
    id_ = Add("model", source_);
    expected_ = os::Mapping::Anonymous(kBytes).value();
    FillSegment(source_->seed(), 1, expected_.span());
  }

  // Reads [offset, offset + size) of the second segment for each of `places`.
  absl::StatusOr<bool> Read(const std::vector<std::pair<uint64_t, uint64_t>>& places,
                            const CancelFlag* cancel = nullptr) {
    places_ = places;
    pieces_.clear();
    std::vector<SegmentPiece> asked;
    for (const auto& [offset, size] : places) pieces_.emplace_back(size);
    for (size_t i = 0; i < places.size(); ++i) asked.push_back({places[i].first, pieces_[i]});
    return manager_->ReadPieces(id_, 1, asked, cancel);
  }

  void ExpectPieces() {
    for (size_t i = 0; i < pieces_.size(); ++i) {
      EXPECT_EQ(
          std::memcmp(pieces_[i].data(), expected_.data() + places_[i].first, pieces_[i].size()), 0)
          << "piece at " << places_[i].first;
    }
  }

  std::shared_ptr<TestSource> source_;
  ModelId id_ = 0;
  os::Mapping expected_;
  std::vector<std::pair<uint64_t, uint64_t>> places_;
  std::vector<std::vector<std::byte>> pieces_;
};

const std::vector<std::pair<uint64_t, uint64_t>> kPlaces = {
    {5 * kBlock + 64, 9216},       // inside a block
    {2 * kBlock - 100, 4096},      // over the end of one
    {0, 1},                        // the first byte
    {kBytes - 1, 1},               // the last
    {kBlock - 1, 3 * kBlock + 2},  // over four blocks
    {5 * kBlock, 4096},            // a page, which the first shares
};

TEST_P(PieceReadsTest, ComeFromDiskWithoutTheirSegment) {
  Prepare();
  ASSERT_TRUE(Read(kPlaces).value());
  ExpectPieces();
  EXPECT_EQ(State(id_).resident_bytes, 0u);
  EXPECT_LT(manager_->Snapshot().links[0].bytes, kBytes);
}

TEST_P(PieceReadsTest, OfASegmentOnTheDeviceOrToBeProducedAreNotRead) {
  Prepare();
  source_->produce_only = true;
  EXPECT_FALSE(Read(kPlaces).value());
  EXPECT_EQ(source_->produced, 0);
  source_->produce_only = false;
  ASSERT_TRUE(Acquire(id_, 1).ok());
  EXPECT_FALSE(Read(kPlaces).value());
}

TEST_P(PieceReadsTest, ThatCannotBeReadOrDoNotExistAreNotRead) {
  Prepare();
  EXPECT_FALSE(Read({{kBytes - 10, 11}}).value());
  EXPECT_FALSE(Read({{kBytes + 1, 1}}).value());
  reader_->before = [](int, uint64_t) { return absl::DataLossError("a bad sector"); };
  EXPECT_FALSE(Read(kPlaces).value());
  reader_->before = nullptr;
  EXPECT_TRUE(Read(kPlaces).value());
  ExpectPieces();
}

TEST_P(PieceReadsTest, EndWhenCancelled) {
  Prepare();
  CancelFlag cancel;
  absl::Notification open;
  reader_->after = [&](int, std::span<std::byte>) { open.WaitForNotification(); };
  std::thread reading([&] { EXPECT_TRUE(absl::IsCancelled(Read(kPlaces, &cancel).status())); });
  while (manager_->Snapshot().links[0].queued == 0) std::this_thread::yield();
  while (manager_->Snapshot().waiting == 0) std::this_thread::yield();
  cancel.cancelled = true;
  // More than can be under way: those that have not started end.
  while (manager_->Snapshot().links[0].queued > options_.read_depth) std::this_thread::yield();
  open.Notify();
  reading.join();
  EXPECT_EQ(manager_->Snapshot().links[0].queued, 0u);
}

TEST_P(PieceReadsTest, ComeFromTheCopyOnTheHost) {
  if (GetParam() == "cpu") GTEST_SKIP() << "the host is the device";
  options_.host_budget_bytes = 64 * kMiB;
  Prepare(kBytes);  // one segment at a time
  ASSERT_TRUE(Acquire(id_, 1).ok());
  ASSERT_TRUE(Acquire(id_, 0).ok());
  Settle();
  ASSERT_FALSE(Resident(id_)[1]);
  const int reads = reader_->reads;
  ASSERT_TRUE(Read(kPlaces).value());
  ExpectPieces();
  EXPECT_EQ(reader_->reads, reads) << "nothing came from disk";
}

INSTANTIATE_TEST_SUITE_P(Devices, PieceReadsTest, testing::Values("cpu", "sim"));

}  // namespace
}  // namespace terrace::tier
