// One suite for every device: whatever a chip's folder does inside, it must behave like this.
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "device/cpu/cpu_device.h"
#include "device/device.h"
#include "device/sim/sim_device.h"
#include "os/mapping.h"

namespace terrace::device {
namespace {

struct Subject {
  std::string name;
  std::function<std::unique_ptr<Device>(uint64_t memory_bytes, const Clock* clock)> create;
};

constexpr uint64_t kMemory = 64 << 20;

class DeviceConformanceTest : public testing::TestWithParam<Subject> {
 protected:
  void SetUp() override { device_ = GetParam().create(kMemory, &clock_); }
  std::vector<std::byte> Pattern(uint64_t bytes, int seed) {
    std::vector<std::byte> data(bytes);
    for (uint64_t i = 0; i < bytes; ++i) {
      data[i] = static_cast<std::byte>((i * 131 + static_cast<uint64_t>(seed)) >> 3);
    }
    return data;
  }

  RealClock clock_;
  std::unique_ptr<Device> device_;
};

TEST_P(DeviceConformanceTest, SaysWhatItIs) {
  const DeviceInfo& info = device_->info();
  EXPECT_FALSE(info.name.empty());
  EXPECT_FALSE(info.kind.empty());
  EXPECT_EQ(info.memory_bytes, kMemory);
  EXPECT_GT(info.alignment, 0u);
  EXPECT_EQ(info.alignment & (info.alignment - 1), 0u);
  EXPECT_GT(info.granularity, 0u);
}

TEST_P(DeviceConformanceTest, CountsWhatItGivesAndRefusesWhatItHasNot) {
  EXPECT_EQ(device_->GetMemoryInfo().allocated_bytes, 0u);
  std::byte* a = device_->Allocate(1 << 20).value();
  std::byte* b = device_->Allocate(5000).value();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % device_->info().alignment, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b) % device_->info().alignment, 0u);
  const MemoryInfo info = device_->GetMemoryInfo();
  EXPECT_GE(info.allocated_bytes, (1u << 20) + 5000u);
  EXPECT_EQ(info.allocated_bytes % device_->info().granularity, 0u);
  EXPECT_EQ(info.free_bytes + info.allocated_bytes, info.total_bytes);
  EXPECT_EQ(device_->Allocate(kMemory).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(device_->Allocate(~uint64_t{0}).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(device_->Allocate(0).status().code(), absl::StatusCode::kInvalidArgument);
  device_->Free(a, 1 << 20);
  device_->Free(b, 5000);
  device_->Free(nullptr, 0);
  EXPECT_EQ(device_->GetMemoryInfo().allocated_bytes, 0u);
  std::byte* all = device_->Allocate(kMemory).value();
  device_->Free(all, kMemory);
}

TEST_P(DeviceConformanceTest, ExchangeFreesAndAllocatesInOneStep) {
  std::byte* a = device_->Allocate(24 << 20).value();
  std::byte* b = device_->Allocate(24 << 20).value();
  const MemoryRange both[] = {{a, 24 << 20}, {b, 24 << 20}};
  std::byte* c = device_->Exchange(both, 60 << 20).value();  // more than was free
  EXPECT_EQ(device_->GetMemoryInfo().allocated_bytes, 60u << 20);
  std::vector<std::byte> data = Pattern(60 << 20, 3);
  std::vector<std::byte> back(60 << 20);
  auto stream = device_->CreateStream().value();
  ASSERT_TRUE(stream->CopyAsync(CopyDirection::kHostToDevice, c, data.data(), 60 << 20).ok());
  ASSERT_TRUE(stream->CopyAsync(CopyDirection::kDeviceToHost, back.data(), c, 60 << 20).ok());
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(std::memcmp(back.data(), data.data(), back.size()), 0);
  const MemoryRange one[] = {{c, 60 << 20}};
  EXPECT_EQ(device_->Exchange(one, 65 << 20).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(device_->GetMemoryInfo().allocated_bytes, 0u);  // freed all the same
}

TEST_P(DeviceConformanceTest, BytesSurviveTheRoundTrip) {
  constexpr uint64_t kBytes = 3 << 20;
  std::vector<std::byte> data = Pattern(kBytes, 1);
  std::vector<std::byte> back(kBytes);
  std::byte* a = device_->Allocate(kBytes).value();
  std::byte* b = device_->Allocate(kBytes).value();
  auto stream = device_->CreateStream().value();
  ASSERT_TRUE(stream->CopyAsync(CopyDirection::kHostToDevice, a, data.data(), kBytes).ok());
  ASSERT_TRUE(stream->CopyAsync(CopyDirection::kDeviceToDevice, b, a, kBytes).ok());
  ASSERT_TRUE(stream->CopyAsync(CopyDirection::kDeviceToHost, back.data(), b, kBytes).ok());
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(std::memcmp(back.data(), data.data(), kBytes), 0);
  const Telemetry telemetry = device_->ReadTelemetry().value();
  EXPECT_EQ(telemetry.copied_to_device_bytes, kBytes);
  EXPECT_EQ(telemetry.copied_to_host_bytes, kBytes);
  EXPECT_EQ(telemetry.copied_on_device_bytes, kBytes);
  device_->Free(a, kBytes);
  device_->Free(b, kBytes);
}

TEST_P(DeviceConformanceTest, OneStreamRunsInOrder) {
  std::vector<std::byte> data = Pattern(1 << 20, 2);
  std::byte* a = device_->Allocate(1 << 20).value();
  auto stream = device_->CreateStream().value();
  std::vector<int> order;
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(stream->CopyAsync(CopyDirection::kHostToDevice, a, data.data(), 1 << 20).ok());
    ASSERT_TRUE(stream
                    ->HostCallback([&order, i](absl::Status status) {
                      EXPECT_TRUE(status.ok());
                      order.push_back(i);
                    })
                    .ok());
  }
  ASSERT_TRUE(stream->Synchronize().ok());
  ASSERT_EQ(order.size(), 20u);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
  device_->Free(a, 1 << 20);
}

TEST_P(DeviceConformanceTest, EventsOrderTwoStreams) {
  auto first = device_->CreateStream().value();
  auto second = device_->CreateStream().value();
  auto event = device_->CreateEvent().value();
  EXPECT_TRUE(event->Query().value());  // never recorded
  absl::Notification gate;
  std::atomic<bool> first_ran{false};
  std::atomic<bool> in_order{false};
  ASSERT_TRUE(first
                  ->HostCallback([&](absl::Status) {
                    gate.WaitForNotification();
                    first_ran = true;
                  })
                  .ok());
  ASSERT_TRUE(first->Record(event.get()).ok());
  ASSERT_TRUE(second->Wait(*event).ok());
  ASSERT_TRUE(second->HostCallback([&](absl::Status) { in_order = first_ran.load(); }).ok());
  EXPECT_FALSE(event->Query().value());
  gate.Notify();
  ASSERT_TRUE(second->Synchronize().ok());
  EXPECT_TRUE(in_order);
  EXPECT_TRUE(event->Synchronize().ok());
  EXPECT_TRUE(event->Query().value());
}

TEST_P(DeviceConformanceTest, ACallbackMayAskForMore) {
  auto stream = device_->CreateStream().value();
  absl::Notification done;
  ASSERT_TRUE(stream
                  ->HostCallback([&](absl::Status) {
                    EXPECT_TRUE(stream->HostCallback([&](absl::Status) { done.Notify(); }).ok());
                  })
                  .ok());
  done.WaitForNotification();
  EXPECT_TRUE(stream->Synchronize().ok());
}

TEST_P(DeviceConformanceTest, AFailedKernelStopsTheStreamUntilCleared) {
  KernelSource bad{"bad", [](std::span<void* const>) { return absl::InternalError("boom"); }, ""};
  int runs = 0;
  KernelSource good{"good",
                    [](std::span<void* const> arguments) {
                      ++*static_cast<int*>(arguments[0]);
                      return absl::OkStatus();
                    },
                    ""};
  auto bad_kernel = device_->CreateKernel(bad);
  if (absl::IsUnimplemented(bad_kernel.status())) GTEST_SKIP() << "no host kernels here";
  auto good_kernel = device_->CreateKernel(good).value();
  void* arguments[] = {&runs};
  auto stream = device_->CreateStream().value();
  absl::Status seen;
  ASSERT_TRUE(stream->Launch(*good_kernel, arguments).ok());
  ASSERT_TRUE(stream->Launch(**bad_kernel, arguments).ok());
  ASSERT_TRUE(stream->Launch(*good_kernel, arguments).ok());
  ASSERT_TRUE(stream->HostCallback([&](absl::Status status) { seen = status; }).ok());
  EXPECT_EQ(stream->Synchronize().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(seen.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(runs, 1);
  stream->ClearError();
  ASSERT_TRUE(stream->Launch(*good_kernel, arguments).ok());
  EXPECT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(runs, 2);
}

TEST_P(DeviceConformanceTest, BadRequestsAreRefused) {
  auto stream = device_->CreateStream().value();
  std::byte byte{};
  EXPECT_EQ(stream->CopyAsync(CopyDirection::kHostToDevice, nullptr, &byte, 1).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(stream->CopyAsync(CopyDirection::kDeviceToHost, &byte, nullptr, 1).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(stream->HostCallback(nullptr).ok());
  EXPECT_FALSE(stream->Record(nullptr).ok());
  EXPECT_FALSE(device_->CreateKernel({"empty", nullptr, ""}).ok());
}

TEST_P(DeviceConformanceTest, DestroyingAStreamWaits) {
  std::atomic<int> ran{0};
  {
    auto stream = device_->CreateStream().value();
    for (int i = 0; i < 50; ++i) {
      ASSERT_TRUE(stream->HostCallback([&](absl::Status) { ++ran; }).ok());
    }
  }
  EXPECT_EQ(ran, 50);
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceConformanceTest,
                         testing::Values(Subject{"cpu",
                                                 [](uint64_t bytes, const Clock*) {
                                                   CpuDeviceOptions options;
                                                   options.memory_bytes = bytes;
                                                   return CreateCpuDevice(options);
                                                 }},
                                         Subject{"sim",
                                                 [](uint64_t bytes,
                                                    const Clock* clock) -> std::unique_ptr<Device> {
                                                   SimDeviceOptions options;
                                                   options.memory_bytes = bytes;
                                                   options.to_device = {4e9, 20};
                                                   options.to_host = {4e9, 20};
                                                   return CreateSimDevice(options, clock).value();
                                                 }}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace terrace::device
