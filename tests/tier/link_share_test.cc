// How loads for requests of several classes divide the link, counted in bytes.
#include <algorithm>
#include <array>
#include <cstring>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "manager_fixture.h"

namespace terrace::tier {
namespace {

constexpr uint64_t kSegment = 1 * kMiB;
constexpr uint32_t kSegments = 16;
constexpr size_t kModels = kLinkClassCount;

class LinkShareTest : public TierManagerTest {
 protected:
  // Loads a model of each class (its number is the class), the least urgent first, while the disk
  // stands still until all of them wait. Returns whose bytes were read, in order: segment by
  // segment. `late`: the classes are told when everything waits already.
  std::vector<size_t> Load(bool late) {
    options_.read_depth = 1;
    options_.link_shares = {{8, 4, 2, 1}};
    Start(uint64_t{2} * kModels * kSegments * kSegment);
    std::array<std::shared_ptr<TestSource>, kModels> sources;
    std::array<ModelId, kModels> ids;
    for (size_t i = kModels; i-- > 0;) {
      const std::string name = "m" + std::to_string(i);
      sources[i] = MakeSource(name, std::vector<uint64_t>(kSegments, kSegment));
      ids[i] = Add(name, sources[i]);
    }
    absl::Mutex mutex;
    std::vector<size_t> order;
    absl::Notification go_on;
    reader_->after = [&](int, std::span<std::byte> bytes) {
      go_on.WaitForNotification();
      uint64_t word = 0;
      std::memcpy(&word, bytes.data(), sizeof word);
      for (size_t i = 0; i < kModels; ++i) {
        for (uint32_t segment = 0; segment < kSegments; ++segment) {
          if (word != Hash64(&segment, sizeof segment, sources[i]->seed())) continue;
          EXPECT_EQ(bytes.size(), kSegment);
          absl::MutexLock lock(&mutex);
          order.push_back(i);
        }
      }
    };
    auto tell = [&] {
      for (size_t i = 0; i + 1 < kModels; ++i) {
        manager_->SetAtWork(ids[i], true, static_cast<LinkClass>(i));
      }
    };
    if (!late) tell();
    for (size_t i = kModels; i-- > 0;) {
      const bool ahead = static_cast<LinkClass>(i) == LinkClass::kAhead;
      manager_->Prefetch(ids[i], 0, kSegments, ahead ? Priority::kPredicted : Priority::kNextLayer);
    }
    while (manager_->Snapshot().links[0].queued < kModels * kSegments) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (late) tell();
    go_on.Notify();
    Settle();
    for (const ModelId id : ids) EXPECT_EQ(manager_->LoadedBytes(id), kSegments * kSegment);
    absl::MutexLock lock(&mutex);
    return order;
  }
};

TEST_P(LinkShareTest, BytesComeByTheSharesOfTheirRequestsClasses) {
  for (const bool late : {false, true}) {
    SCOPED_TRACE(late);
    const std::vector<size_t> order = Load(late);
    ASSERT_EQ(order.size(), kModels * kSegments);
    EXPECT_EQ(order[0], 3u) << "under way before the others were asked for";
    // Until a class has all of its bytes the others have had their part for one of its share, but
    // for the segment under way.
    const std::array<double, kModels> shares = {8, 4, 2, 1};
    std::array<double, kModels> had = {};
    for (size_t at = 0; at < order.size() && had[0] < kSegments; ++at) ++had[order[at]];
    for (size_t i = 1; i < kModels; ++i) {
      EXPECT_NEAR(had[i], kSegments * shares[i] / shares[0], 1) << "class " << i;
    }
    manager_.reset();
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, LinkShareTest, testing::Values("cpu", "sim"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace terrace::tier
