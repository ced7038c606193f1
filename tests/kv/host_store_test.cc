// KV that has to leave a device with memory of its own lies in host memory and comes back.
#include "kv/host_store.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/units.h"
#include "device/sim/sim_device.h"
#include "kv/cache.h"

namespace terrace::kv {
namespace {

constexpr uint64_t kBlockBytes = 256 * kKiB;
constexpr int64_t kEver = std::numeric_limits<int64_t>::max();

class HostStoreTest : public testing::Test {
 protected:
  void Start(uint64_t cap_bytes, uint64_t host_budget_bytes = 64 * kMiB) {
    device::SimDeviceOptions device;
    device.memory_bytes = 64 * kMiB;
    device.before_copy = [this](device::CopyDirection direction) {
      copies_ += direction == device::CopyDirection::kDeviceToHost;
      return direction == device::CopyDirection::kDeviceToHost && broken_
                 ? absl::UnavailableError("the link is down")
                 : absl::OkStatus();
    };
    device_ = device::CreateSimDevice(device, &clock_).value();
    tier::TierManagerOptions options;
    options.device_budget_bytes = 4 * kMiB;
    options.host_budget_bytes = host_budget_bytes;
    options.staging_bytes = 4 * kMiB;
    manager_ = tier::TierManager::Create(options, device_.get(), &clock_).value();
    host_ = std::make_unique<HostStore>(manager_.get(), cap_bytes);
    cache_ = std::make_unique<Cache>(manager_.get(), nullptr, &clock_);
    cache_->SetHost(host_.get());
    manager_->SetIdleMemory(cache_.get());
  }
  void TearDown() override {
    for (const absl::Status& status :
         {cache_->CheckInvariants(), host_->CheckInvariants(), manager_->CheckInvariants()}) {
      EXPECT_TRUE(status.ok()) << status;
    }
    manager_->SetIdleMemory(nullptr);
    cache_.reset();
    host_.reset();
    EXPECT_EQ(HostKv(), 0u) << "nothing stays booked";
    manager_.reset();
  }

  // The key of the `index`th block of a conversation whose tokens all are `first + index`.
  std::vector<int32_t> Tokens(int32_t first, int32_t blocks) {
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < blocks * kBlockTokens; ++i) tokens.push_back(first + i / kBlockTokens);
    return tokens;
  }
  std::vector<BlockKey> Keys(const std::vector<int32_t>& tokens) {
    std::vector<BlockKey> keys;
    BlockKey key = root_;
    for (size_t i = 0; i + kBlockTokens <= tokens.size(); i += kBlockTokens) {
      keys.push_back(key = ChildKey(key, std::span(tokens).subspan(i, kBlockTokens)));
    }
    return keys;
  }
  // Publishes the conversation's blocks, each full of bytes that its key tells.
  void Compute(const std::vector<int32_t>& tokens) {
    for (const BlockKey& key : Keys(tokens)) {
      tier::DeviceBuffer buffer = manager_->Allocate(owner_, kBlockBytes).value();
      std::memset(buffer.data(), key.bytes[0], kBlockBytes);
      cache_->Publish(key, std::move(buffer));
    }
  }
  Cache::Loaded Load(std::vector<BlockKey> keys) {
    Cache::Loaded out;
    absl::Notification done;
    RestoreAsk ask;
    ask.keys = std::move(keys);
    ask.owner = owner_;
    ask.block_bytes = kBlockBytes;
    cache_->LoadHost(std::move(ask), [&](Cache::Loaded loaded) {
      out = std::move(loaded);
      done.Notify();
    });
    done.WaitForNotification();
    return out;
  }
  uint64_t HostKv() {
    uint64_t bytes = 0;
    for (const tier::LedgerLine& line : manager_->Snapshot().ledger) {
      if (line.tier == tier::Tier::kHost && line.owner.kind == tier::Kind::kKv) bytes += line.bytes;
    }
    return bytes;
  }

  RealClock clock_;
  std::atomic<int> copies_{0};
  std::atomic<bool> broken_{false};
  const tier::Owner owner_{"m", "tenant", tier::Kind::kKv};
  const BlockKey root_ = RootKey({.fingerprint = "f", .kv_dtype = "f16"});
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<tier::TierManager> manager_;
  std::unique_ptr<HostStore> host_;
  std::unique_ptr<Cache> cache_;
};

TEST_F(HostStoreTest, WhatLeavesTheDeviceIsFoundOnTheHostAndComesBackTheSame) {
  Start(8 * kMiB);
  const std::vector<int32_t> tokens = Tokens(10, 4);
  Compute(tokens);
  EXPECT_EQ(cache_->Reclaim(4 * kBlockBytes, kEver), 4 * kBlockBytes);
  EXPECT_EQ(HostKv(), 4 * kBlockBytes);
  Cache::Found found = cache_->Find(root_, tokens);
  EXPECT_TRUE(found.device.empty());
  ASSERT_EQ(found.host, Keys(tokens));
  const Cache::Loaded loaded = Load(found.host);
  ASSERT_EQ(loaded.blocks.size(), 4u);
  EXPECT_EQ(loaded.tier, "host");
  for (const BlockRef& block : loaded.blocks) {
    const std::vector<std::byte> expected(kBlockBytes, std::byte{block->key.bytes[0]});
    EXPECT_EQ(std::memcmp(block->buffer.data(), expected.data(), kBlockBytes), 0);
  }
  EXPECT_EQ(cache_->Find(root_, tokens).device.size(), 4u);
  EXPECT_EQ(cache_->State().host_hits, 4u);
}

TEST_F(HostStoreTest, ABlockThatLiesThereAlreadyIsNotCopiedAgain) {
  Start(8 * kMiB);
  const std::vector<int32_t> tokens = Tokens(10, 3);
  Compute(tokens);
  cache_->Reclaim(3 * kBlockBytes, kEver);
  Load(Keys(tokens));
  cache_->Reclaim(3 * kBlockBytes, kEver);
  EXPECT_EQ(copies_, 3);
  EXPECT_EQ(cache_->Find(root_, tokens).host.size(), 3u);
}

TEST_F(HostStoreTest, TheLeastRecentlyUsedGivesWayWithinTheCap) {
  Start(5 * kBlockBytes);
  const std::vector<int32_t> first = Tokens(10, 3), second = Tokens(50, 3);
  for (const std::vector<int32_t>& tokens : {first, second}) {
    Compute(tokens);
    cache_->Find(root_, tokens);  // after it children are older than their parents
    cache_->Reclaim(3 * kBlockBytes, kEver);
  }
  EXPECT_EQ(HostKv(), 5 * kBlockBytes);
  EXPECT_EQ(cache_->Find(root_, second).host.size(), 3u);
  EXPECT_EQ(cache_->Find(root_, first).host.size() + 1, Keys(first).size())
      << "of the older one a block went, its last";
}

TEST_F(HostStoreTest, MemoryOfTheDeviceIsFreeWhetherTheHostHasRoomOrNot) {
  Start(8 * kMiB, 4 * kMiB + kBlockBytes);  // beside the staging ring: one block
  Compute(Tokens(10, 16));                  // all of the budget
  // Someone needs it all.
  absl::StatusOr<tier::DeviceBuffer> all = manager_->Allocate(owner_, 4 * kMiB);
  EXPECT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(HostKv(), kBlockBytes);
  EXPECT_EQ(host_->State().refused, 15u);
}

TEST_F(HostStoreTest, ACopyThatFailsLeavesNothingBooked) {
  Start(8 * kMiB);
  const std::vector<int32_t> tokens = Tokens(10, 2);
  Compute(tokens);
  broken_ = true;
  EXPECT_EQ(cache_->Reclaim(2 * kBlockBytes, kEver), 2 * kBlockBytes);
  EXPECT_EQ(HostKv(), 0u);
  EXPECT_TRUE(cache_->Find(root_, tokens).host.empty());
}

TEST_F(HostStoreTest, AKeyThatIsGoneEndsTheLoadBeforeIt) {
  Start(8 * kMiB);
  const std::vector<int32_t> tokens = Tokens(10, 3);
  Compute(tokens);
  cache_->Reclaim(3 * kBlockBytes, kEver);
  std::vector<BlockKey> keys = Keys(tokens);
  keys[1] = root_;
  EXPECT_EQ(Load(keys).blocks.size(), 1u);
  host_->Clear();
  EXPECT_TRUE(Load(Keys(tokens)).blocks.empty());
}

}  // namespace
}  // namespace terrace::kv
