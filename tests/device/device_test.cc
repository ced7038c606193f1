// What cpu and sim do beyond the common contract (that is in tests/conformance).
#include <algorithm>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "device/cpu/cpu_device.h"
#include "device/sim/sim_device.h"
#include "os/mapping.h"
#include "os/process_memory.h"

namespace terrace::device {
namespace {

TEST(CpuDeviceTest, FreedMemoryLeavesTheProcess) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "a sanitizer's own memory grows with ours";
#endif
  auto device = CreateCpuDevice();
  constexpr uint64_t kBytes = 96 << 20;
  const uint64_t before = os::ReadProcessMemory().value().rss_bytes;
  std::byte* data = device->Allocate(kBytes).value();
  std::memset(data, 1, kBytes);
  EXPECT_GE(os::ReadProcessMemory().value().rss_bytes, before + kBytes);
  device->Free(data, kBytes);
  EXPECT_LT(os::ReadProcessMemory().value().rss_bytes, before + (8 << 20));
}

TEST(CpuDeviceTest, ExchangeMovesPagesAndKeepsNoMoreThanWasEverAllocated) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "a sanitizer's own memory grows with ours";
#endif
  constexpr uint64_t kMiB = 1 << 20;
  auto device = CreateCpuDevice();
  const uint64_t before = os::ReadProcessMemory().value().rss_bytes;
  auto rss = [&] { return os::ReadProcessMemory().value().rss_bytes - before; };
  // Odd sizes, exchanged back and forth: never more resident than was allocated at the highest, and
  // every byte is usable.
  uint64_t highest = 0;
  std::vector<MemoryRange> held;
  uint64_t seed = 1;
  for (int round = 0; round < 40; ++round) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    const uint64_t bytes = (1 + (seed >> 33) % 24) * kMiB + ((seed >> 20) % 500) * 4096;
    std::byte* data = device->Exchange(held, bytes, {}).value();
    std::memset(data, round + 1, bytes);
    held = {{data, bytes}};
    if (round % 3 == 0) {
      std::byte* more = device->Allocate(7 * kMiB).value();
      std::memset(more, 99, 7 * kMiB);
      held.push_back({more, 7 * kMiB});
    }
    highest = std::max(highest, device->GetMemoryInfo().allocated_bytes);
    EXPECT_LE(rss(), highest + 8 * kMiB);
    for (uint64_t i = 0; i < bytes; i += 4096) {
      ASSERT_EQ(data[i], static_cast<std::byte>(round + 1));
    }
  }
  for (const MemoryRange& range : held) device->Free(range.data, range.bytes);
  device->Trim();
  EXPECT_LE(rss(), 8 * kMiB);
}

TEST(CpuDeviceTest, MemoryIsUnifiedAndAlignedForHugePages) {
  auto device = CreateCpuDevice();
  EXPECT_TRUE(device->info().unified_memory);
  std::byte* data = device->Allocate(4 << 20).value();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % os::kHugePageBytes, 0u);
  device->Free(data, 4 << 20);
}

TEST(SimDeviceTest, ALinkTakesItsTime) {
  RealClock clock;
  SimDeviceOptions options;
  options.memory_bytes = 64 << 20;
  options.to_device = {1e9, 500};
  auto device = CreateSimDevice(options, &clock).value();
  constexpr uint64_t kBytes = 4 << 20;
  std::vector<std::byte> data(kBytes, std::byte{7});
  std::byte* a = device->Allocate(kBytes).value();
  std::memset(a, 0, kBytes);  // pages present: not part of the link
  auto stream = device->CreateStream().value();
  // 10 copies of 4.19 ms share the link one after the other; the latency shows once. A loaded
  // machine wakes us late, hence the best of some tries; without load it is a few percent above.
  int64_t best_us = 1'000'000;
  // Never faster than the link; how much slower a busy machine makes it decides nothing.
  for (int attempt = 0; attempt < 3 && best_us > 41'900 * 2; ++attempt) {
    const int64_t start = clock.NowUs();
    for (int i = 0; i < 10; ++i) {
      ASSERT_TRUE(stream->CopyAsync(CopyDirection::kHostToDevice, a, data.data(), kBytes).ok());
    }
    ASSERT_TRUE(stream->Synchronize().ok());
    best_us = std::min(best_us, clock.NowUs() - start);
    EXPECT_GE(best_us, 41'900);
  }
}

TEST(SimDeviceTest, SteppedCopiesFollowTheManualClock) {
  ManualClock clock(1000);
  SimDeviceOptions options;
  options.memory_bytes = 1 << 20;
  options.to_device = {1e6, 100};  // 4096 bytes in 4096 us
  options.stepped = true;
  auto device = CreateSimDevice(options, &clock).value();
  std::vector<std::byte> data(4096, std::byte{9});
  std::byte* a = device->Allocate(4096).value();
  auto stream = device->CreateStream().value();
  bool called = false;
  ASSERT_TRUE(stream->CopyAsync(CopyDirection::kHostToDevice, a, data.data(), 4096).ok());
  ASSERT_TRUE(stream->HostCallback([&](absl::Status) { called = true; }).ok());
  EXPECT_FALSE(device->Step());
  clock.AdvanceUs(4195);
  EXPECT_FALSE(device->Step());
  EXPECT_EQ(a[0], std::byte{0});
  EXPECT_FALSE(stream->Synchronize().ok());  // would wait for ever
  clock.AdvanceUs(1);
  EXPECT_TRUE(device->Step());
  EXPECT_TRUE(called);
  EXPECT_EQ(a[0], std::byte{9});
}

TEST(SimDeviceTest, CopiesOutsideAnAllocationAreRefused) {
  RealClock clock;
  SimDeviceOptions options;
  options.memory_bytes = 1 << 20;
  auto device = CreateSimDevice(options, &clock).value();
  std::vector<std::byte> data(8192);
  std::byte* a = device->Allocate(4096).value();
  auto stream = device->CreateStream().value();
  auto copy = [&](CopyDirection direction, std::byte* to, const std::byte* from, uint64_t bytes) {
    return stream->CopyAsync(direction, to, from, bytes).code();
  };
  EXPECT_EQ(copy(CopyDirection::kHostToDevice, a, data.data(), 4096), absl::StatusCode::kOk);
  EXPECT_EQ(copy(CopyDirection::kHostToDevice, a, data.data(), 4097),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(copy(CopyDirection::kHostToDevice, data.data(), data.data(), 16),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(copy(CopyDirection::kHostToDevice, a, a, 16), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(copy(CopyDirection::kDeviceToHost, a, a, 16), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(stream->Synchronize().ok());
  device->Free(a, 4096);
  EXPECT_EQ(copy(CopyDirection::kHostToDevice, a, data.data(), 16),
            absl::StatusCode::kInvalidArgument);
}

TEST(SimDeviceTest, InjectedFaultsFailAndSpoilCopies) {
  RealClock clock;
  SimDeviceOptions options;
  options.memory_bytes = 1 << 20;
  int copies = 0;
  options.before_copy = [&](CopyDirection) {
    return ++copies == 1 ? absl::UnavailableError("link down") : absl::OkStatus();
  };
  options.after_copy = [](CopyDirection, std::span<std::byte> bytes) { bytes[0] ^= std::byte{1}; };
  auto device = CreateSimDevice(options, &clock).value();
  std::vector<std::byte> data(4096, std::byte{4});
  std::byte* a = device->Allocate(4096).value();
  auto stream = device->CreateStream().value();
  ASSERT_TRUE(stream->CopyAsync(CopyDirection::kHostToDevice, a, data.data(), 4096).ok());
  EXPECT_EQ(stream->Synchronize().code(), absl::StatusCode::kUnavailable);
  stream->ClearError();
  ASSERT_TRUE(stream->CopyAsync(CopyDirection::kHostToDevice, a, data.data(), 4096).ok());
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(a[0], std::byte{5});
  EXPECT_EQ(a[1], std::byte{4});
}

TEST(SimDeviceTest, FreedRangesJoinAgain) {
  RealClock clock;
  SimDeviceOptions options;
  options.memory_bytes = 16 * 4096;
  auto device = CreateSimDevice(options, &clock).value();
  std::vector<std::byte*> pieces;
  for (int i = 0; i < 16; ++i) pieces.push_back(device->Allocate(4096).value());
  for (int i : {3, 1, 2, 0, 15, 14, 7, 5, 6, 4, 8, 10, 9, 12, 13, 11}) {
    device->Free(pieces[static_cast<size_t>(i)], 4096);
  }
  EXPECT_TRUE(device->Allocate(16 * 4096).ok());
}

}  // namespace
}  // namespace terrace::device
