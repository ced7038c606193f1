// Stored KV on its way back: layer by layer, checked before it counts, and what of it is good when
// some of it is not.
#include "kv/restore.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/stream_hash.h"
#include "base/units.h"
#include "device/cpu/cpu_device.h"
#include "kv/cache.h"
#include "os/mapping.h"
#include "storage/disk/block_reader.h"
#include "tier/parts.h"

namespace terrace::kv {
namespace {

namespace fs = std::filesystem;

// Twelve layers of 128 KiB: slices of 256 KiB hold two each.
constexpr uint64_t kLayerBytes = 128 * kKiB;
constexpr int32_t kLayers = 12;
constexpr uint64_t kBlockBytes = kLayers * kLayerBytes;
constexpr size_t kBlocks = 20;

// A reader that can fail a read or hold it up, by file and place.
class HeldReader final : public storage::BlockReader {
 public:
  HeldReader() : below_(storage::DiskReader::Create({}).value()) {}
  void Read(const os::DirectFile& file, uint64_t offset, std::span<std::byte> out,
            Done done) override {
    if (fail != nullptr && fail(file.path(), offset)) {
      done(absl::UnavailableError("the bus hiccups"));
      return;
    }
    below_->Read(file, offset, out, [this, offset, done = std::move(done)](absl::Status status) {
      {
        absl::MutexLock lock(&mutex_);
        if (offset >= hold_from && !open_) {  // others' reads end meanwhile
          held_.emplace_back([done, status] { done(status); });
          return;
        }
      }
      done(std::move(status));
    });
  }
  // From now on nothing is held up.
  void Open() {
    std::vector<std::function<void()>> held;
    {
      absl::MutexLock lock(&mutex_);
      open_ = true;
      held.swap(held_);
    }
    for (const auto& end : held) end();
  }

  std::function<bool(const std::string&, uint64_t)> fail;  // set before use
  uint64_t hold_from = UINT64_MAX;

 private:
  absl::Mutex mutex_;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::function<void()>> held_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<storage::DiskReader> below_;
};

class RestoreTest : public testing::Test {
 protected:
  RestoreTest() {
    std::string pattern = (fs::temp_directory_path() / "terrace-restore-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    storage::BlockStoreOptions options;
    options.folder = folder_;
    options.cap_bytes = kGiB;
    store_ = *storage::BlockStore::Open(options, &clock_);
    content_ = *os::Mapping::Anonymous(kBlockBytes);
    for (size_t i = 0; i < kBlocks; ++i) {
      BlockKey key;
      key.bytes[0] = static_cast<uint8_t>(i + 1);
      keys_.push_back(key);
      EXPECT_TRUE(store_->Write(key, Content(i)).ok());
    }
  }
  ~RestoreTest() override {
    cache_.reset();
    if (manager_ != nullptr) {
      EXPECT_TRUE(manager_->CheckInvariants().ok()) << manager_->CheckInvariants();
      // The reader's thread lets go of a restore a moment after it has told of the last range.
      for (int ms = 0; ms < 5000 && manager_->Snapshot().device_used_bytes > 0; ++ms) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      EXPECT_EQ(manager_->Snapshot().device_used_bytes, 0u);
    }
    manager_.reset();
    fs::remove_all(folder_);
  }

  void Start(uint64_t budget_bytes) {
    tier::TierManagerOptions options;
    options.device_budget_bytes = budget_bytes;
    options.pin_wait_us = 1000;
    tier::TierManagerParts parts;
    auto reader = std::make_unique<HeldReader>();
    reader_ = reader.get();
    parts.reader = std::move(reader);
    parts.checks = std::make_unique<os::WorkerPool>("check", 1);
    parts.producers = std::make_unique<os::WorkerPool>("import", 1);
    parts.policy = tier::CreateEvictionPolicy("lru").value();
    manager_ = tier::TierManager::CreateFromParts(options, device_.get(), &clock_, std::move(parts))
                   .value();
    cache_ = std::make_unique<Cache>(manager_.get(), store_.get(), &clock_);
    manager_->SetIdleMemory(cache_.get());
  }

  // What block `i` holds; each 4 KiB differs.
  std::span<const std::byte> Content(size_t i) {
    for (uint64_t at = 0; at < kBlockBytes; at += 8) {
      const uint64_t word = (i + 1) << 32 | at;
      std::memcpy(content_.data() + at, &word, 8);
    }
    return content_.span();
  }
  bool Holds(const std::byte* data, size_t i, uint64_t bytes = kBlockBytes) {
    return std::memcmp(data, Content(i).data(), bytes) == 0;
  }
  std::string PathOf(size_t i) const { return folder_ + "/" + keys_[i].Hex() + ".kv"; }

  void Load() {
    RestoreAsk ask;
    ask.keys = keys_;
    ask.owner = {"model", "tenant", tier::Kind::kKv};
    ask.block_bytes = kBlockBytes;
    ask.layer_bytes = kLayerBytes;
    cache_->LoadStored(
        std::move(ask),
        [this](std::shared_ptr<Restore> restore) {
          restore_ = std::move(restore);
          begun_.Notify();
        },
        [this](Cache::Loaded loaded) {
          loaded_ = std::move(loaded);
          done_.Notify();
        });
  }

  RealClock clock_;
  std::unique_ptr<device::Device> device_ = device::CreateCpuDevice();
  std::string folder_;
  os::Mapping content_;
  std::vector<BlockKey> keys_;
  std::unique_ptr<storage::BlockStore> store_;
  std::unique_ptr<tier::TierManager> manager_;
  HeldReader* reader_ = nullptr;
  std::unique_ptr<Cache> cache_;
  absl::Notification begun_, done_;
  std::shared_ptr<Restore> restore_;
  Cache::Loaded loaded_;
};

TEST(StreamHash, IsTheHashOfTheWhole) {
  std::vector<char> bytes(100'003);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 + i / 251);
  StreamHash64 hash;
  for (size_t at = 0, step = 1; at < bytes.size(); at += step, step = step * 3 % 8191 + 1) {
    step = std::min(step, bytes.size() - at);
    hash.Add(bytes.data() + at, step);
  }
  EXPECT_EQ(hash.Value(), Hash64(bytes.data(), bytes.size()));
}

TEST_F(RestoreTest, FirstLayersAreThereWhileLaterOnesAreStillRead) {
  Start(kGiB);
  // From the sixth layer on nothing arrives yet.
  reader_->hold_from = storage::BlockStore::kDataOffset + 6 * kLayerBytes;
  Load();
  begun_.WaitForNotification();
  ASSERT_EQ(restore_->size(), kBlocks);
  EXPECT_TRUE(restore_->AwaitLayer(5, nullptr).ok());
  for (size_t i = 0; i < kBlocks; ++i) {
    EXPECT_TRUE(Holds(restore_->address(i), i, 6 * kLayerBytes)) << i;
  }
  tier::CancelFlag cancel;
  cancel.cancelled = true;
  EXPECT_TRUE(absl::IsCancelled(restore_->AwaitLayer(6, &cancel)));
  EXPECT_FALSE(done_.HasBeenNotified());
  reader_->Open();
  EXPECT_TRUE(restore_->AwaitLayer(kLayers - 1, nullptr).ok());
  EXPECT_TRUE(restore_->AwaitAll(nullptr).ok());
  done_.WaitForNotification();
  ASSERT_EQ(loaded_.blocks.size(), kBlocks);
  for (size_t i = 0; i < kBlocks; ++i) {
    EXPECT_EQ(loaded_.blocks[i]->key, keys_[i]);
    EXPECT_EQ(loaded_.blocks[i]->buffer.data(), restore_->address(i));
    EXPECT_TRUE(Holds(loaded_.blocks[i]->buffer.data(), i)) << i;
  }
  EXPECT_EQ(cache_->State().disk_hits, kBlocks);
  EXPECT_EQ(store_->State().read, kBlocks);
  EXPECT_GT(cache_->disk_rate(), 0);
  loaded_ = {};
  restore_.reset();
}

TEST_F(RestoreTest, LoadingIsChosenOnlyWhereItIsSooner) {
  Start(kGiB);
  const LoadChoice first = cache_->Weigh(kBlocks, kBlockBytes, 0);
  EXPECT_TRUE(first.load) << "how to learn what loads get";
  EXPECT_EQ(first.why, "loaded: no rates measured yet");
  Load();
  done_.WaitForNotification();
  begun_.WaitForNotification();
  const LoadChoice slow = cache_->Weigh(kBlocks, kBlockBytes, 1e-9);
  EXPECT_FALSE(slow.load);
  EXPECT_EQ(slow.why.rfind("recomputed: loading takes ", 0), 0u) << slow.why;
  const LoadChoice fast = cache_->Weigh(kBlocks, kBlockBytes, 1e6);
  EXPECT_TRUE(fast.load);
  EXPECT_EQ(fast.why.rfind("loaded: loading takes ", 0), 0u) << fast.why;
  loaded_ = {};
  restore_.reset();
}

TEST_F(RestoreTest, ADamagedBlockEndsItAndWhatStandsBeforeIsGood) {
  {
    std::fstream file(PathOf(7), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(storage::BlockStore::kDataOffset + 11 * kLayerBytes));
    file.put('x');
  }
  Start(kGiB);
  Load();
  begun_.WaitForNotification();
  EXPECT_TRUE(absl::IsUnavailable(restore_->AwaitAll(nullptr)));
  done_.WaitForNotification();
  ASSERT_EQ(loaded_.blocks.size(), 7u);
  for (size_t i = 0; i < 7; ++i) EXPECT_TRUE(Holds(loaded_.blocks[i]->buffer.data(), i)) << i;
  EXPECT_EQ(store_->State().damaged, 1u);
  EXPECT_FALSE(store_->Contains(keys_[7]));
  EXPECT_TRUE(store_->Contains(keys_[8]));
  EXPECT_EQ(cache_->State().lost, 1u);
  loaded_ = {};
  restore_.reset();
}

TEST_F(RestoreTest, AnotherBlocksFileUnderTheNameIsNotTaken) {
  fs::copy_file(PathOf(3), PathOf(12), fs::copy_options::overwrite_existing);
  Start(kGiB);
  Load();
  done_.WaitForNotification();
  EXPECT_EQ(loaded_.blocks.size(), 12u);
  EXPECT_EQ(store_->State().damaged, 1u);
  begun_.WaitForNotification();
  loaded_ = {};
  restore_.reset();
}

// A read that fails once is made again, and the block is good; only who computed with it must not
// believe the result. What it computes with is not written to meanwhile.
TEST_F(RestoreTest, AReadThatFailsOnceCostsTheStepButNoBlock) {
  Start(kGiB);
  std::atomic<bool> failed{false};
  reader_->fail = [&](const std::string& path, uint64_t offset) {
    const bool fail = path == PathOf(5) && offset > storage::BlockStore::kDataOffset;
    return fail && !failed.exchange(true);
  };
  Load();
  begun_.WaitForNotification();
  EXPECT_TRUE(absl::IsUnavailable(restore_->AwaitAll(nullptr)));
  done_.WaitForNotification();
  ASSERT_EQ(loaded_.blocks.size(), kBlocks);
  for (size_t i = 0; i < kBlocks; ++i) {
    EXPECT_TRUE(Holds(loaded_.blocks[i]->buffer.data(), i)) << i;
    EXPECT_EQ(loaded_.blocks[i]->buffer.data() == restore_->address(i), i != 5) << i;
  }
  EXPECT_TRUE(failed);
  EXPECT_EQ(store_->State().damaged, 0u);
  loaded_ = {};
  restore_.reset();
}

TEST_F(RestoreTest, MissingMemoryMakesItShorter) {
  Start(17 * kBlockBytes);
  Load();
  done_.WaitForNotification();
  begun_.WaitForNotification();
  EXPECT_EQ(restore_->size(), 17u);
  EXPECT_EQ(loaded_.blocks.size(), 17u);
  loaded_ = {};
  restore_.reset();
}

TEST_F(RestoreTest, AMissingFileMakesItShorter) {
  fs::remove(PathOf(18));
  Start(kGiB);
  Load();
  done_.WaitForNotification();
  begun_.WaitForNotification();
  EXPECT_EQ(restore_->size(), 18u);
  EXPECT_EQ(loaded_.blocks.size(), 18u);
  EXPECT_FALSE(store_->Contains(keys_[18]));
  loaded_ = {};
  restore_.reset();
}

TEST_F(RestoreTest, ACacheThatEndsDoesNotWaitForTheDisk) {
  Start(kGiB);
  reader_->hold_from = 0;
  Load();
  begun_.WaitForNotification();
  std::thread opener([this] {
    while (manager_->disk_load().queued_bytes > 0) std::this_thread::yield();
    reader_->Open();  // what was on its way when the rest was given up
  });
  cache_.reset();
  opener.join();
  EXPECT_TRUE(done_.HasBeenNotified());
  EXPECT_TRUE(absl::IsUnavailable(restore_->AwaitAll(nullptr)));
  EXPECT_LT(loaded_.blocks.size(), kBlocks);
  EXPECT_EQ(store_->State().damaged, 0u);
  loaded_ = {};
  restore_.reset();
}

TEST_F(RestoreTest, BlocksThatAreMovedDownAreOnDiskAndTheirMemoryIsFree) {
  Start(64 * kMiB);
  std::vector<BlockRef> blocks;
  for (size_t i = 0; i < 4; ++i) {
    auto buffer = manager_->Allocate({"model", "tenant", tier::Kind::kKv}, kBlockBytes);
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    std::memcpy(buffer->data(), Content(i).data(), kBlockBytes);
    BlockKey key = keys_[i];
    key.bytes[1] = 1;  // other blocks than those in the store
    blocks.push_back(std::make_shared<const Block>(Block{key, *std::move(buffer)}));
  }
  std::vector<BlockKey> moved;
  for (const BlockRef& block : blocks) moved.push_back(block->key);
  cache_->MoveDown(blocks);
  EXPECT_EQ(cache_->State().moved, 4u);
  blocks.clear();
  cache_->Flush();
  EXPECT_FALSE(cache_->moving());
  EXPECT_EQ(manager_->Snapshot().device_used_bytes, 0u);
  keys_ = moved;
  Load();
  done_.WaitForNotification();
  ASSERT_EQ(loaded_.blocks.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(Holds(loaded_.blocks[i]->buffer.data(), i));
  loaded_ = {};
  restore_.reset();
}

}  // namespace
}  // namespace terrace::kv
