// One suite for every device: whatever a chip's folder does inside, it must behave like this.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "base/random.h"
#include "device/cpu/cpu_device.h"
#include "device/device.h"
#include "device/opencl/opencl_device.h"
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
  KernelSource bad{"bad",
                   [](std::span<const KernelArgument>) { return absl::InternalError("boom"); }, ""};
  int runs = 0;
  KernelSource good{"good",
                    [](std::span<const KernelArgument> arguments) {
                      ++*reinterpret_cast<int*>(arguments[0].memory);
                      return absl::OkStatus();
                    },
                    ""};
  auto bad_kernel = device_->CreateKernel(bad);
  if (absl::IsUnimplemented(bad_kernel.status())) GTEST_SKIP() << "no host kernels here";
  auto good_kernel = device_->CreateKernel(good).value();
  const KernelArgument arguments[] = {KernelArgument::Memory(&runs)};
  auto stream = device_->CreateStream().value();
  absl::Status seen;
  ASSERT_TRUE(stream->Launch(*good_kernel, {}, arguments).ok());
  ASSERT_TRUE(stream->Launch(**bad_kernel, {}, arguments).ok());
  ASSERT_TRUE(stream->Launch(*good_kernel, {}, arguments).ok());
  ASSERT_TRUE(stream->HostCallback([&](absl::Status status) { seen = status; }).ok());
  EXPECT_EQ(stream->Synchronize().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(seen.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(runs, 1);
  stream->ClearError();
  ASSERT_TRUE(stream->Launch(*good_kernel, {}, arguments).ok());
  EXPECT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(runs, 2);
}

// y[i] = a x[i] + table[i]'s pointee, over work-groups of 32: every kind of argument.
TEST_P(DeviceConformanceTest, ASourceKernelComputesOnTheDevice) {
  KernelSource source{"axpy", nullptr, R"(
KERNEL(axpy)(MEM(x), MEM(y), MEM(table), SPACE, float a, int n) {
  const int i = GROUP(0) * ITEMS(0) + ITEM(0);
  if (i < n) {
    GLOBAL float* z = (GLOBAL float*)RESOLVE(PTR(ulong, table)[i]);
    PTR(float, y)[i] = a * PTR(float, x)[i] + z[0] + PLUS;
  }
})",
                      "PLUS=0.5f"};
  auto kernel = device_->CreateKernel(source);
  if (absl::IsUnimplemented(kernel.status())) GTEST_SKIP() << "no run-time compiler here";
  ASSERT_TRUE(kernel.ok()) << kernel.status();
  constexpr int kCount = 1000;
  std::vector<float> x(kCount), z(kCount), y(kCount);
  std::vector<uint64_t> table(kCount);
  // Three allocations, so that addresses of the table lie in different buffers where there are
  // some.
  std::byte* first = device_->Allocate(40 << 20).value();
  std::byte* second = device_->Allocate(16 << 20).value();
  std::byte* tables = device_->Allocate(1 << 20).value();
  for (int i = 0; i < kCount; ++i) {
    const auto at = static_cast<size_t>(i);
    x[at] = static_cast<float>(i);
    z[at] = static_cast<float>(i % 7);
    table[at] = device_->KernelAddress(second + 4 * at);
  }
  const uint64_t bytes = kCount * sizeof(float);
  auto stream = device_->CreateStream().value();
  const auto up = [&](std::byte* to, const void* from, uint64_t n) {
    return stream->CopyAsync(CopyDirection::kHostToDevice, to, static_cast<const std::byte*>(from),
                             n);
  };
  std::byte* out = first + (1 << 20) + 4096 * 3 + 64;  // inside an allocation
  ASSERT_TRUE(up(first, x.data(), bytes).ok());
  ASSERT_TRUE(up(second, z.data(), bytes).ok());
  ASSERT_TRUE(up(tables, table.data(), kCount * sizeof(uint64_t)).ok());
  const KernelArgument arguments[] = {
      KernelArgument::Memory(first), KernelArgument::Memory(out), KernelArgument::Memory(tables),
      KernelArgument::Space(),       KernelArgument::Value(2.0f), KernelArgument::Value(kCount)};
  ASSERT_TRUE(stream->Launch(**kernel, {{32, 1, 1}, {32, 1, 1}}, arguments).ok());
  ASSERT_TRUE(stream
                  ->CopyAsync(CopyDirection::kDeviceToHost, reinterpret_cast<std::byte*>(y.data()),
                              out, bytes)
                  .ok());
  ASSERT_TRUE(stream->Synchronize().ok());
  for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(y[i], 2 * x[i] + z[i] + 0.5f) << i;

  // What cannot run is refused or stops the stream until its error is cleared.
  EXPECT_FALSE(stream->Launch(**kernel, {{1, 1, 1}, {0, 1, 1}}, arguments).ok());
  EXPECT_FALSE(stream->Launch(**kernel, {{1, 1, 1}, {1u << 31, 1, 1}}, arguments).ok());
  KernelArgument outside[6];
  std::copy(std::begin(arguments), std::end(arguments), outside);
  outside[0] = KernelArgument::Memory(x.data());
  EXPECT_FALSE(stream->Launch(**kernel, {{32, 1, 1}, {32, 1, 1}}, outside).ok());
  ASSERT_TRUE(stream->Launch(**kernel, {{1, 1, 1}, {1, 1, 1}}, std::span(arguments, 2)).ok());
  EXPECT_FALSE(stream->Synchronize().ok()) << "arguments are missing";
  stream->ClearError();
  EXPECT_TRUE(stream->Synchronize().ok());
  source.source = "KERNEL(axpy)(int n) { this is no kernel }";
  EXPECT_EQ(device_->CreateKernel(source).status().code(), absl::StatusCode::kInvalidArgument);
  source.source = "KERNEL(other)(int n) {}";
  EXPECT_EQ(device_->CreateKernel(source).status().code(), absl::StatusCode::kInvalidArgument);
  for (std::byte* data : {first, second, tables}) device_->Free(data, 1);
  EXPECT_EQ(device_->GetMemoryInfo().allocated_bytes, 0u);
}

// Allocations, copies of every direction at every offset and frees, against a model in host memory.
TEST_P(DeviceConformanceTest, RandomOperationsLeaveWhatAModelSays) {
  constexpr uint64_t kSeed = 20261130;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  struct Range {
    std::byte* data;
    std::vector<std::byte> model;
  };
  std::vector<Range> ranges;
  std::unique_ptr<Stream> streams[2] = {device_->CreateStream().value(),
                                        device_->CreateStream().value()};
  auto event = device_->CreateEvent().value();
  // What copies read or write in host memory stays until they have run.
  std::vector<std::vector<std::byte>> held;
  std::vector<std::pair<std::vector<std::byte>*, std::vector<std::byte>>> expected;
  std::vector<std::unique_ptr<std::vector<std::byte>>> arrived;
  size_t on = 0;
  const auto settle = [&] {
    for (auto& stream : streams) ASSERT_TRUE(stream->Synchronize().ok());
    for (const auto& [got, want] : expected) ASSERT_EQ(*got, want);
    held.clear();
    expected.clear();
    arrived.clear();
  };
  for (int step = 0; step < 10'000; ++step) {
    const uint64_t choice = random.Below(100);
    if (ranges.empty() || (choice < 4 && ranges.size() < 40)) {
      const uint64_t bytes = 1 + random.Below(200'000);
      auto data = device_->Allocate(bytes);
      ASSERT_TRUE(data.ok()) << data.status();
      held.push_back(Pattern(bytes, static_cast<int>(random.Below(1000))));
      ranges.push_back({*data, held.back()});
      ASSERT_TRUE(streams[on]
                      ->CopyAsync(CopyDirection::kHostToDevice, *data, held.back().data(), bytes)
                      .ok());
      continue;
    }
    Range& range = ranges[random.Below(ranges.size())];
    const uint64_t offset = random.Below(range.model.size());
    const uint64_t bytes = std::min<uint64_t>(1 + random.Below(3000), range.model.size() - offset);
    if (choice < 7) {
      settle();
      device_->Free(range.data, range.model.size());
      std::swap(range, ranges.back());
      ranges.pop_back();
    } else if (choice < 10) {  // go on on the other stream, after this one
      ASSERT_TRUE(streams[on]->Record(event.get()).ok());
      on = 1 - on;
      ASSERT_TRUE(streams[on]->Wait(*event).ok());
    } else if (choice < 40) {
      held.push_back(Pattern(bytes, step));
      std::copy(held.back().begin(), held.back().end(),
                range.model.begin() + static_cast<ptrdiff_t>(offset));
      ASSERT_TRUE(streams[on]
                      ->CopyAsync(CopyDirection::kHostToDevice, range.data + offset,
                                  held.back().data(), bytes)
                      .ok());
    } else if (choice < 70) {
      arrived.push_back(std::make_unique<std::vector<std::byte>>(bytes));
      const auto from = range.model.begin() + static_cast<ptrdiff_t>(offset);
      expected.emplace_back(arrived.back().get(),
                            std::vector<std::byte>(from, from + static_cast<ptrdiff_t>(bytes)));
      ASSERT_TRUE(streams[on]
                      ->CopyAsync(CopyDirection::kDeviceToHost, arrived.back()->data(),
                                  range.data + offset, bytes)
                      .ok());
    } else {
      Range& other = ranges[random.Below(ranges.size())];
      if (&other == &range) continue;  // copies on the device do not overlap
      const uint64_t most = std::min<uint64_t>(bytes, other.model.size());
      const uint64_t to = random.Below(other.model.size() - most + 1);
      std::copy_n(range.model.begin() + static_cast<ptrdiff_t>(offset), most,
                  other.model.begin() + static_cast<ptrdiff_t>(to));
      ASSERT_TRUE(streams[on]
                      ->CopyAsync(CopyDirection::kDeviceToDevice, other.data + to,
                                  range.data + offset, most)
                      .ok());
    }
    if (step % 500 == 499) settle();
  }
  settle();
  for (Range& range : ranges) {
    std::vector<std::byte> back(range.model.size());
    ASSERT_TRUE(streams[0]
                    ->CopyAsync(CopyDirection::kDeviceToHost, back.data(), range.data, back.size())
                    .ok());
    ASSERT_TRUE(streams[0]->Synchronize().ok());
    ASSERT_EQ(back, range.model);
    device_->Free(range.data, range.model.size());
  }
  EXPECT_EQ(device_->GetMemoryInfo().allocated_bytes, 0u);
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

std::vector<Subject> Subjects() {
  std::vector<Subject> subjects = {
      Subject{"cpu",
              [](uint64_t bytes, const Clock*) {
                CpuDeviceOptions options;
                options.memory_bytes = bytes;
                return CreateCpuDevice(options);
              }},
      Subject{"sim", [](uint64_t bytes, const Clock* clock) -> std::unique_ptr<Device> {
                SimDeviceOptions options;
                options.memory_bytes = bytes;
                options.to_device = {4e9, 20};
                options.to_host = {4e9, 20};
                return CreateSimDevice(options, clock).value();
              }}};
  // `./dev setup` installs one that computes on the CPU; without any, the others are still tested.
  const absl::StatusOr<std::vector<OpenClDeviceName>> found = ListOpenClDevices();
  if (!found.ok() || found->empty()) return subjects;
  subjects.push_back({"opencl", [](uint64_t bytes, const Clock*) {
                        OpenClOptions options;
                        options.memory_bytes = bytes;
                        return CreateOpenClDevice(options).value();
                      }});
  return subjects;
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceConformanceTest, testing::ValuesIn(Subjects()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace terrace::device
