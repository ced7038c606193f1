// The disk store of KV blocks: what it takes over from an earlier process, its cap, its checks
// (hard cases A41 to A43).
#include "storage/disk/block_store.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "base/units.h"
#include "os/mapping.h"

namespace terrace::storage {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kData = 16 * kKiB;

BlockKey Key(uint64_t number) {
  BlockKey key;
  std::memcpy(key.bytes.data(), &number, sizeof(number));
  return key;
}

uint64_t FolderBytes(const std::string& folder) {
  uint64_t bytes = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    std::error_code gone;
    const uint64_t size = entry.file_size(gone);
    if (!gone) bytes += size;
  }
  return bytes;
}

class BlockStoreTest : public testing::Test {
 protected:
  BlockStoreTest() {
    std::string pattern = (fs::temp_directory_path() / "terrace-kv-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    buffer_ = *os::Mapping::Anonymous(kData);
  }
  ~BlockStoreTest() override { fs::remove_all(folder_); }

  std::unique_ptr<BlockStore> Open(uint64_t cap_bytes) {
    BlockStoreOptions options;
    options.folder = folder_;
    options.cap_bytes = cap_bytes;
    auto store = BlockStore::Open(options, &clock_);
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  std::span<std::byte> Filled(uint64_t number) {
    std::memset(buffer_.data(), static_cast<int>(number % 251), kData);
    return {buffer_.data(), kData};
  }
  bool Holds(BlockStore& store, uint64_t number) {
    std::memset(buffer_.data(), 255, kData);
    if (!store.Read(Key(number), {buffer_.data(), kData}).ok()) return false;
    for (uint64_t i = 0; i < kData; ++i) {
      EXPECT_EQ(static_cast<uint64_t>(buffer_.data()[i]), number % 251);
      if (static_cast<uint64_t>(buffer_.data()[i]) != number % 251) break;
    }
    return true;
  }

  RealClock clock_;
  std::string folder_;
  os::Mapping buffer_;
};

TEST_F(BlockStoreTest, FindsAgainWhatAnEarlierProcessLeft) {
  {
    auto store = Open(8 * kMiB);
    for (uint64_t i = 0; i < 20; ++i) ASSERT_TRUE(store->Write(Key(i), Filled(i)).ok());
  }
  auto store = Open(8 * kMiB);
  EXPECT_EQ(store->State().blocks, 20u);
  EXPECT_EQ(store->State().bytes, FolderBytes(folder_));
  for (uint64_t i = 0; i < 20; ++i) EXPECT_TRUE(Holds(*store, i)) << i;
}

TEST_F(BlockStoreTest, AnotherCapThanBeforeHoldsFromTheStart) {
  {
    auto store = Open(8 * kMiB);
    for (uint64_t i = 0; i < 100; ++i) ASSERT_TRUE(store->Write(Key(i), Filled(i)).ok());
  }
  auto store = Open(kMiB);
  EXPECT_LE(FolderBytes(folder_), kMiB);
  EXPECT_GT(store->State().blocks, 0u);
  EXPECT_TRUE(store->CheckInvariants().ok());
}

TEST_F(BlockStoreTest, OldestGoFirstInBatchesAboveTheWatermark) {
  auto store = Open(100 * (kData + 4 * kKiB));
  for (uint64_t i = 0; i < 90; ++i) ASSERT_TRUE(store->Write(Key(i), Filled(i)).ok());
  EXPECT_EQ(store->State().blocks, 90u);
  EXPECT_TRUE(Holds(*store, 0));  // used again: no longer the oldest
  ASSERT_TRUE(store->Write(Key(90), Filled(90)).ok());
  EXPECT_EQ(store->State().blocks, 86u) << "five of a hundred go at once";
  EXPECT_TRUE(store->Contains(Key(0)));
  EXPECT_FALSE(store->Contains(Key(1)));
  EXPECT_FALSE(store->Contains(Key(5)));
  EXPECT_TRUE(store->Contains(Key(6)));
}

// A41: a process writes to a store near its cap and is killed at any moment; the next one takes
// over or removes what is there, and the folder's bytes never pass the cap.
TEST_F(BlockStoreTest, AfterAKillTheRestIsTakenOverAndTheCapWasNeverPassed) {
  constexpr uint64_t kCap = 2 * kMiB;
  uint64_t worst = 0;
  for (int round = 0; round < 5; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto store = Open(kCap);
      for (uint64_t i = 0;; ++i) {
        if (!store->Write(Key(i), Filled(i)).ok()) _exit(1);
      }
    }
    const int64_t until_us = clock_.NowUs() + 50'000 + 30'000 * round;
    while (clock_.NowUs() < until_us) {
      worst = std::max(worst, FolderBytes(folder_));
      std::this_thread::yield();
    }
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself";
    auto store = Open(kCap);
    EXPECT_TRUE(store->CheckInvariants().ok()) << store->CheckInvariants();
    EXPECT_EQ(store->State().bytes, FolderBytes(folder_)) << "something foreign was left";
    EXPECT_GT(store->State().blocks, 0u);
    const auto damaged_before = store->State().damaged;
    uint64_t held = 0;
    for (uint64_t i = 0; i < 100'000 && held < store->State().blocks; ++i) {
      if (store->Contains(Key(i))) held += Holds(*store, i) ? 1 : 0;
    }
    EXPECT_EQ(store->State().damaged, damaged_before)
        << "a half-written block stood under its name";
  }
  EXPECT_LE(worst, kCap);
  EXPECT_GT(worst, kCap / 2) << "the cap was never tried";
}

// Half-written and cut files go; what was never ours stays untouched.
TEST_F(BlockStoreTest, TheStartRemovesWhatIsNoWholeBlock) {
  const std::string half = folder_ + "/0.partial", notes = folder_ + "/notes.txt";
  const std::string cut = folder_ + "/00000000000000000000000000000000.kv";
  for (const std::string& path : {half, notes, cut}) {
    std::FILE* file = std::fopen(path.c_str(), "w");
    ASSERT_NE(file, nullptr);
    std::fputs("x", file);
    std::fclose(file);
  }
  auto store = Open(kMiB);
  EXPECT_EQ(store->State().blocks, 0u);
  EXPECT_FALSE(fs::exists(half));
  EXPECT_FALSE(fs::exists(cut));
  EXPECT_TRUE(fs::exists(notes));
}

TEST_F(BlockStoreTest, ConcurrentWritersReadersAndEvictionKeepTheCap) {
  const uint64_t seed = 5;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  constexpr uint64_t kCap = 12 * (kData + 4 * kKiB);
  auto store = Open(kCap);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> worst{0}, bad{0};
  std::thread sampler([&] {
    while (!stop) worst = std::max<uint64_t>(worst, FolderBytes(folder_));
  });
  std::vector<std::thread> users;
  for (uint64_t user = 0; user < 4; ++user) {
    users.emplace_back([&, user] {
      Random random(seed + user);
      os::Mapping mine = *os::Mapping::Anonymous(kData);
      for (int i = 0; i < 150; ++i) {
        const uint64_t number = random.Below(20);
        if (random.Below(2) == 0) {
          std::memset(mine.data(), static_cast<int>(number), kData);
          store->Write(Key(number), {mine.data(), kData}).IgnoreError();
        } else if (store->Read(Key(number), {mine.data(), kData}).ok()) {
          for (uint64_t at : {uint64_t{0}, kData - 1}) {
            if (static_cast<uint64_t>(mine.data()[at]) != number) ++bad;
          }
        }
      }
    });
  }
  for (std::thread& user : users) user.join();
  stop = true;
  sampler.join();
  EXPECT_EQ(bad, 0u);
  EXPECT_LE(worst, kCap);
  EXPECT_TRUE(store->CheckInvariants().ok()) << store->CheckInvariants();
  EXPECT_FALSE(store->State().read_only);
}

}  // namespace
}  // namespace terrace::storage
