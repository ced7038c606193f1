// Memory mapped by pages, over a stand-in for the driver whose addresses fault where no page is
// mapped: what is allocated can be used, no page is at two places, holes do not keep a large range
// from being had, and what comes back to where it was costs no call.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "base/random.h"
#include "device/cuda/cuda_driver.h"
#include "device/virtual_arena.h"
#include "vendor_library.h"

namespace terrace::device {
namespace {

constexpr uint64_t kPage = uint64_t{2} << 20;
constexpr uint64_t kUnit = 4096;

class VirtualArenaTest : public testing::Test {
 protected:
  void SetUp() override {
    fake_ = FakeOf("cuda");
    fake_->violations.clear();
    fake_->Arm(0, 0);
    auto opened = cuda::OpenDriver(cuda::LoadDriver(FakeLibrary("cuda")).value(), 0);
    ASSERT_TRUE(opened.ok()) << opened.status();
    api_ = std::move(opened->api);
    ASSERT_TRUE(api_->Enter().ok());
    ASSERT_EQ(api_->PageBytes().value(), kPage);
  }
  void TearDown() override {
    arena_.reset();
    api_.reset();
    EXPECT_EQ(fake_->Alive(), 0u);
    EXPECT_THAT(fake_->violations, testing::IsEmpty());
  }
  void Make(uint64_t pages) {
    auto made = VirtualArena::Create(api_.get(), pages * kPage, kPage);
    ASSERT_TRUE(made.ok()) << made.status();
    arena_ = *std::move(made);
  }
  // 0 if there are not enough pages.
  uint64_t Take(uint64_t bytes) { return arena_->Allocate(bytes).value().value_or(0); }

  VendorFake* fake_ = nullptr;
  std::unique_ptr<DriverApi> api_;
  std::unique_ptr<VirtualArena> arena_;
};

TEST_F(VirtualArenaTest, HolesDoNotKeepALargeRangeFromBeingHad) {
  Make(16);
  std::vector<uint64_t> ranges;
  for (int i = 0; i < 8; ++i) ranges.push_back(Take(2 * kPage));
  EXPECT_EQ(Take(kUnit), 0u);
  // Half of it free, in holes of two pages.
  for (size_t i = 0; i < ranges.size(); i += 2) EXPECT_TRUE(arena_->Free(ranges[i]));
  const uint64_t large = Take(8 * kPage);
  ASSERT_NE(large, 0u);
  std::memset(reinterpret_cast<void*>(large), 7, 8 * kPage);
  // What stayed has not moved, nor lost its pages.
  for (size_t i = 1; i < ranges.size(); i += 2) {
    EXPECT_TRUE(arena_->Holds(ranges[i], 2 * kPage));
    std::memset(reinterpret_cast<void*>(ranges[i]), 1, 2 * kPage);
  }
  EXPECT_EQ(Take(kUnit), 0u);
}

TEST_F(VirtualArenaTest, WhatComesBackToWhereItWasCostsNoCall) {
  Make(8);
  const uint64_t a = Take(3 * kPage + kUnit), b = Take(4 * kPage);
  ASSERT_NE(a, 0u);
  ASSERT_NE(b, 0u);
  EXPECT_TRUE(arena_->Free(a));
  const uint64_t mapped = arena_->mapped_pages();
  const int calls = fake_->calls;
  EXPECT_EQ(Take(3 * kPage), a);
  EXPECT_EQ(arena_->mapped_pages(), mapped);
  EXPECT_EQ(fake_->calls, calls);
}

TEST_F(VirtualArenaTest, PagesAreTakenWhenTheyAreFirstNeeded) {
  fake_->Arm(0, 0);
  Make(400);
  EXPECT_EQ(fake_->order, std::vector<std::string>{"cuMemAddressReserve"});
  fake_->Arm(0, 0);
  const uint64_t a = Take(5 * kPage);
  // Each page is made and mapped; access is allowed once.
  EXPECT_EQ(fake_->calls, 2 * 5 + 1);
  fake_->Arm(0, 0);
  EXPECT_TRUE(arena_->Free(a));
  EXPECT_EQ(Take(5 * kPage), a);
  EXPECT_EQ(fake_->calls, 0);
  EXPECT_EQ(fake_->pages.size(), 5u);
  EXPECT_EQ(arena_->free_bytes(), 395 * kPage);
}

// What another process has taken from the driver meanwhile is made up for by what lies idle.
TEST_F(VirtualArenaTest, ADriverThatHasNoMoreIsMadeUpForByWhatLiesIdle) {
  Make(8);
  const uint64_t a = Take(3 * kPage);
  EXPECT_TRUE(arena_->Free(a));
  fake_->Arm(1, 2);  // the fourth page cannot be had
  const uint64_t b = Take(2 * kPage), c = Take(kPage);
  EXPECT_NE(b, 0u);
  EXPECT_NE(c, 0u);
  const uint64_t memory = fake_->memory_bytes;
  fake_->memory_bytes = fake_->Used();
  EXPECT_EQ(arena_->Allocate(4 * kPage).status().code(), absl::StatusCode::kResourceExhausted);
  fake_->memory_bytes = memory;
  EXPECT_NE(Take(4 * kPage), 0u);
}

TEST_F(VirtualArenaTest, NeighboursShareThePageAtTheirBorder) {
  Make(2);
  const uint64_t a = Take(kPage + kUnit), b = Take(kPage - kUnit);
  EXPECT_EQ(b, a + kPage + kUnit);  // all of both pages is given out
  EXPECT_TRUE(arena_->Free(a));
  std::memset(reinterpret_cast<void*>(b), 3, kPage - kUnit);
  EXPECT_FALSE(arena_->Free(a));
  EXPECT_FALSE(arena_->Holds(a, kUnit));
}

TEST_F(VirtualArenaTest, ACallThatFailsLeavesEverythingAsItWas) {
  Make(6);
  const uint64_t kept = Take(kPage);
  for (const int n : {1, 2, 3, 4, 4}) {
    // Three pages: each is made, unless an attempt before has, and mapped; then access is allowed.
    fake_->Arm(n, 2);
    EXPECT_EQ(arena_->Allocate(3 * kPage).status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(arena_->allocated(), kPage);
    EXPECT_EQ(arena_->free_bytes(), 5 * kPage);
  }
  fake_->Arm(0, 0);
  const uint64_t all = Take(5 * kPage);
  ASSERT_NE(all, 0u);
  std::memset(reinterpret_cast<void*>(all), 1, 5 * kPage);
  EXPECT_TRUE(arena_->Holds(kept, kPage));
}

TEST_F(VirtualArenaTest, RandomRangesKeepWhatIsWrittenToThem) {
  Make(12);
  const uint64_t seed = 20261130;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  struct Range {
    uint64_t bytes;
    uint8_t mark;
  };
  std::map<uint64_t, Range> live;
  uint64_t most = 0, refused = 0;
  for (int i = 0; i < 4000; ++i) {
    if (!live.empty() && random.Below(5) < 2) {
      auto it = std::next(live.begin(), static_cast<ptrdiff_t>(random.Below(live.size())));
      const auto* bytes = reinterpret_cast<const uint8_t*>(it->first);
      ASSERT_EQ(bytes[0], it->second.mark);
      ASSERT_EQ(bytes[it->second.bytes - 1], it->second.mark);
      ASSERT_TRUE(arena_->Free(it->first));
      live.erase(it);
      continue;
    }
    const uint64_t bytes =
        random.Below(8) == 0 ? (1 + random.Below(1536)) * kUnit : (1 + random.Below(40)) * kUnit;
    const uint64_t address = Take(bytes);
    if (address == 0) {
      ++refused;
      continue;
    }
    auto after = live.lower_bound(address);
    if (after != live.end()) {
      ASSERT_LE(address + bytes, after->first);
    }
    if (after != live.begin()) {
      auto before = std::prev(after);
      ASSERT_LE(before->first + before->second.bytes, address);
    }
    const auto mark = static_cast<uint8_t>(random.Below(256));
    auto* data = reinterpret_cast<uint8_t*>(address);
    data[0] = data[bytes - 1] = mark;
    live[address] = {bytes, mark};
    most = std::max(most, arena_->allocated());
  }
  EXPECT_GT(refused, 0u);
  // Borders that are shared with what is gone cost little.
  EXPECT_GT(most, 12 * kPage * 3 / 4);
}

}  // namespace
}  // namespace terrace::device
