// Host memory that is pinned in large pieces and given out in small ones.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "conformance/vendor_library.h"
#include "device/cuda/cuda_device.h"
#include "tier/pinned_arena.h"
#include "tier/tier_manager.h"

namespace terrace::tier {
namespace {

// A GPU's device over a stand-in for its driver, which notes what is pinned.
class PinnedArenaTest : public testing::Test {
 protected:
  void SetUp() override {
    fake_ = device::FakeOf("cuda");
    fake_->violations.clear();
    fake_->Arm(0, 0);
    device::CudaOptions options;
    options.memory_bytes = 64 * kMiB;
    auto made = device::CreateCudaDevice(
        options, device::cuda::LoadDriver(device::FakeLibrary("cuda")).value(), nullptr);
    ASSERT_TRUE(made.ok()) << made.status();
    device_ = *std::move(made);
  }
  void TearDown() override {
    device_.reset();
    EXPECT_EQ(fake_->Alive(), 0u);
    EXPECT_TRUE(fake_->violations.empty());
  }
  bool Pinned(const std::byte* data, uint64_t bytes) const {
    for (const auto& [begin, size] : fake_->pinned) {
      const auto* first = static_cast<const std::byte*>(begin);
      if (data >= first && data + bytes <= first + size) return true;
    }
    return false;
  }

  device::VendorFake* fake_ = nullptr;
  std::unique_ptr<device::Device> device_;
};

TEST_F(PinnedArenaTest, ManyPiecesArePinnedByOneCall) {
  PinnedArena arena(device_.get(), kMiB);
  std::vector<PinnedArena::Piece> pieces;
  for (int i = 0; i < 8; ++i) {
    pieces.push_back(arena.Allocate(100 << 10).value());
    EXPECT_TRUE(Pinned(pieces.back().data(), 100 << 10));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pieces.back().data()) % 4096, 0u);
    std::memset(pieces.back().data(), i, 100 << 10);
  }
  EXPECT_EQ(fake_->pinned.size(), 1u);
  EXPECT_EQ(arena.held_bytes(), kMiB);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(static_cast<int>(pieces[static_cast<size_t>(i)].data()[(100 << 10) - 1]), i);
  }
  // A ninth of 100 KiB is in the rest, a further one in a second chunk.
  pieces.push_back(arena.Allocate(100 << 10).value());
  pieces.push_back(arena.Allocate(100 << 10).value());
  pieces.push_back(arena.Allocate(100 << 10).value());
  EXPECT_EQ(fake_->pinned.size(), 2u);
  EXPECT_TRUE(arena.pinned());
}

TEST_F(PinnedArenaTest, WhatIsGivenBackIsUsedAgainAndOneEmptyChunkStays) {
  PinnedArena arena(device_.get(), kMiB);
  {
    auto a = arena.Allocate(kMiB).value(), b = arena.Allocate(kMiB).value();
    EXPECT_EQ(arena.held_bytes(), 2 * kMiB);
  }
  EXPECT_EQ(arena.held_bytes(), kMiB);
  fake_->Arm(0, 0);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(Pinned(arena.Allocate(kMiB / 2).value().data(), 1));
  EXPECT_EQ(fake_->calls, 0);
  // One that is larger than a chunk has its own, which does not stay.
  {
    EXPECT_TRUE(Pinned(arena.Allocate(3 * kMiB).value().data(), 3 * kMiB));
  }
  EXPECT_EQ(arena.held_bytes(), kMiB);
}

TEST_F(PinnedArenaTest, WithoutPinningMemoryIsJustNotPinned) {
  fake_->Arm(1, 2);
  PinnedArena arena(device_.get(), kMiB);
  const auto piece = arena.Allocate(5000).value();
  EXPECT_FALSE(arena.pinned());
  EXPECT_FALSE(Pinned(piece.data(), 5000));
  std::memset(piece.data(), 1, 5000);
}

TEST_F(PinnedArenaTest, TheHostsSideOfKvIsPinned) {
  RealClock clock;
  TierManagerOptions options;
  options.device_budget_bytes = 32 * kMiB;
  options.host_budget_bytes = 64 * kMiB;
  options.staging_bytes = 8 * kMiB;
  auto manager = TierManager::Create(options, device_.get(), &clock);
  ASSERT_TRUE(manager.ok()) << manager.status();
  const Owner owner{"m", "", Kind::kKv};
  {
    auto block = (*manager)->Allocate(owner, 96 << 10).value();
    auto kept = (*manager)->AllocateHost(owner, 96 << 10).value();
    auto other = (*manager)->AllocateHost(owner, 96 << 10).value();
    EXPECT_TRUE(Pinned(kept.data(), 96 << 10));
    EXPECT_TRUE(Pinned(other.data(), 96 << 10));
    // The staging ring, and one chunk for both.
    EXPECT_EQ(fake_->pinned.size(), 2u);
    std::memset(kept.data(), 7, 96 << 10);
    ASSERT_TRUE((*manager)->CopyToDevice({kept.data(), 96 << 10}, block.data()).ok());
    ASSERT_TRUE((*manager)->CopyToHost(block.data(), {other.data(), 96 << 10}).ok());
    EXPECT_EQ(std::memcmp(kept.data(), other.data(), 96 << 10), 0);
  }
}

}  // namespace
}  // namespace terrace::tier
