// One suite for every device: whatever a chip's folder does inside, it must behave like this.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "base/random.h"
#include "device/ascend/ascend_device.h"
#include "device/cambricon/cambricon_device.h"
#include "device/cpu/cpu_device.h"
#include "device/cuda/cuda_device.h"
#include "device/device.h"
#include "device/hip/hip_device.h"
#include "device/musa/musa_device.h"
#include "device/opencl/opencl_device.h"
#include "device/sim/sim_device.h"
#include "os/mapping.h"
#include "vendor_library.h"

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
  std::byte* c = device_->Exchange(both, 60 << 20, {}).value();  // more than was free
  EXPECT_EQ(device_->GetMemoryInfo().allocated_bytes, 60u << 20);
  std::vector<std::byte> data = Pattern(60 << 20, 3);
  std::vector<std::byte> back(60 << 20);
  auto stream = device_->CreateStream().value();
  ASSERT_TRUE(stream->CopyAsync(CopyDirection::kHostToDevice, c, data.data(), 60 << 20).ok());
  ASSERT_TRUE(stream->CopyAsync(CopyDirection::kDeviceToHost, back.data(), c, 60 << 20).ok());
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(std::memcmp(back.data(), data.data(), back.size()), 0);
  const MemoryRange one[] = {{c, 60 << 20}};
  EXPECT_EQ(device_->Exchange(one, 65 << 20, {}).status().code(),
            absl::StatusCode::kResourceExhausted);
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
constexpr const char* kAxpy = R"(
KERNEL(axpy)(MEM(x), MEM(y), MEM(table), SPACE, float a, int n) {
  const int i = GROUP(0) * ITEMS(0) + ITEM(0);
  if (i < n) {
    GLOBAL float* z = (GLOBAL float*)RESOLVE(PTR(ulong, table)[i]);
    PTR(float, y)[i] = a * PTR(float, x)[i] + z[0] + PLUS;
  }
})";

TEST_P(DeviceConformanceTest, ASourceKernelComputesOnTheDevice) {
  auto kernel = device_->CreateKernel({"axpy", nullptr, kAxpy, "PLUS=0.5f"});
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
  for (size_t i = 0; i < kCount; ++i) {
    x[i] = static_cast<float>(i);
    z[i] = static_cast<float>(i % 7);
    table[i] = device_->KernelAddress(second + 4 * i);
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
  for (std::byte* data : {first, second, tables}) device_->Free(data, 1);
  EXPECT_EQ(device_->GetMemoryInfo().allocated_bytes, 0u);
}

TEST_P(DeviceConformanceTest, KernelsThatCannotRunAreRefusedOrStopTheStreamUntilCleared) {
  auto kernel = device_->CreateKernel({"axpy", nullptr, kAxpy, "PLUS=0.5f"});
  if (absl::IsUnimplemented(kernel.status())) GTEST_SKIP() << "no run-time compiler here";
  ASSERT_TRUE(kernel.ok()) << kernel.status();
  std::byte* data = device_->Allocate(4096).value();
  float host = 0;
  std::vector<KernelArgument> arguments(3, KernelArgument::Memory(data));
  arguments.push_back(KernelArgument::Space());
  arguments.push_back(KernelArgument::Value(2.0f));
  arguments.push_back(KernelArgument::Value(0));
  auto stream = device_->CreateStream().value();
  const LaunchShape one{{1, 1, 1}, {1, 1, 1}};
  EXPECT_TRUE(stream->Launch(**kernel, one, arguments).ok());
  EXPECT_FALSE(stream->Launch(**kernel, {{1, 1, 1}, {0, 1, 1}}, arguments).ok());
  EXPECT_FALSE(stream->Launch(**kernel, {{1, 1, 1}, {1u << 31, 1, 1}}, arguments).ok());
  EXPECT_TRUE(stream->Synchronize().ok());
  ASSERT_TRUE(stream->Launch(**kernel, one, std::span(arguments).first(2)).ok());
  EXPECT_FALSE(stream->Synchronize().ok()) << "arguments are missing";
  stream->ClearError();
  EXPECT_TRUE(stream->Synchronize().ok());
  arguments[0] = KernelArgument::Memory(&host);
  EXPECT_FALSE(stream->Launch(**kernel, one, arguments).ok());
  const KernelSource broken{"axpy", nullptr, "KERNEL(axpy)(int n) { this is no kernel }"};
  EXPECT_EQ(device_->CreateKernel(broken).status().code(), absl::StatusCode::kInvalidArgument);
  const KernelSource other{"axpy", nullptr, "KERNEL(other)(int n) {}"};
  EXPECT_EQ(device_->CreateKernel(other).status().code(), absl::StatusCode::kInvalidArgument);
  device_->Free(data, 4096);
}

// Allocations, copies of every direction at every offset and frees on two streams, each with what a
// model in host memory says of it.
class RandomOperations {
 public:
  RandomOperations(Device* device, uint64_t seed) : device_(device), random_(seed) {
    for (auto& stream : streams_) stream = device->CreateStream().value();
    event_ = device->CreateEvent().value();
  }

  void Step() {
    const uint64_t choice = random_.Below(100);
    if (ranges_.empty() || (choice < 4 && ranges_.size() < 40)) return Allocate();
    Range& range = ranges_[random_.Below(ranges_.size())];
    const uint64_t offset = random_.Below(range.model.size());
    const uint64_t bytes = std::min<uint64_t>(1 + random_.Below(3000), range.model.size() - offset);
    if (choice < 7) return Free(range);
    if (choice < 10) return ChangeStream();
    if (choice < 40) return Write(range, offset, bytes);
    if (choice < 70) return Read(range, offset, bytes);
    CopyTo(ranges_[random_.Below(ranges_.size())], range, offset, bytes);
  }

  // Waits, and compares everything that was read.
  void Settle() {
    for (auto& stream : streams_) ASSERT_TRUE(stream->Synchronize().ok());
    for (const auto& [got, want] : expected_) ASSERT_EQ(*got, want);
    held_.clear();
    expected_.clear();
    arrived_.clear();
  }

  void FreeAll() {
    while (!ranges_.empty()) {
      Read(ranges_.front(), 0, ranges_.front().model.size());
      Free(ranges_.front());
    }
  }

 private:
  struct Range {
    std::byte* data;
    std::vector<std::byte> model;
  };

  std::vector<std::byte>& Held(uint64_t bytes) {
    held_.emplace_back(bytes);
    for (std::byte& byte : held_.back()) byte = static_cast<std::byte>(random_.Below(256));
    return held_.back();
  }
  void Copy(CopyDirection direction, std::byte* to, const std::byte* from, uint64_t bytes) {
    ASSERT_TRUE(streams_[on_]->CopyAsync(direction, to, from, bytes).ok());
  }
  void Allocate() {
    std::vector<std::byte>& content = Held(1 + random_.Below(200'000));
    auto data = device_->Allocate(content.size());
    ASSERT_TRUE(data.ok()) << data.status();
    ranges_.push_back({*data, content});
    Copy(CopyDirection::kHostToDevice, *data, content.data(), content.size());
  }
  void Free(Range& range) {
    Settle();
    device_->Free(range.data, range.model.size());
    std::swap(range, ranges_.back());
    ranges_.pop_back();
  }
  void ChangeStream() {
    ASSERT_TRUE(streams_[on_]->Record(event_.get()).ok());
    on_ = 1 - on_;
    ASSERT_TRUE(streams_[on_]->Wait(*event_).ok());
  }
  void Write(Range& range, uint64_t offset, uint64_t bytes) {
    const std::vector<std::byte>& content = Held(bytes);
    std::copy(content.begin(), content.end(), range.model.begin() + static_cast<ptrdiff_t>(offset));
    Copy(CopyDirection::kHostToDevice, range.data + offset, content.data(), bytes);
  }
  void Read(Range& range, uint64_t offset, uint64_t bytes) {
    arrived_.push_back(std::make_unique<std::vector<std::byte>>(bytes));
    const auto from = range.model.begin() + static_cast<ptrdiff_t>(offset);
    expected_.emplace_back(arrived_.back().get(),
                           std::vector<std::byte>(from, from + static_cast<ptrdiff_t>(bytes)));
    Copy(CopyDirection::kDeviceToHost, arrived_.back()->data(), range.data + offset, bytes);
  }
  void CopyTo(Range& target, Range& range, uint64_t offset, uint64_t bytes) {
    if (&target == &range) return;  // copies on the device do not overlap
    const uint64_t most = std::min<uint64_t>(bytes, target.model.size());
    const uint64_t to = random_.Below(target.model.size() - most + 1);
    std::copy_n(range.model.begin() + static_cast<ptrdiff_t>(offset), most,
                target.model.begin() + static_cast<ptrdiff_t>(to));
    Copy(CopyDirection::kDeviceToDevice, target.data + to, range.data + offset, most);
  }

  Device* const device_;
  Random random_;
  std::vector<Range> ranges_;
  // What copies read or write in host memory stays until they have run.
  std::deque<std::vector<std::byte>> held_;
  std::vector<std::unique_ptr<std::vector<std::byte>>> arrived_;
  std::vector<std::pair<std::vector<std::byte>*, std::vector<std::byte>>> expected_;
  std::unique_ptr<Stream> streams_[2];
  std::unique_ptr<Event> event_;
  size_t on_ = 0;
};

TEST_P(DeviceConformanceTest, TenThousandRandomOperationsLeaveWhatAModelSays) {
  constexpr uint64_t kSeed = 20261130;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  RandomOperations operations(device_.get(), kSeed);
  for (int step = 0; step < 10'000 && !HasFatalFailure(); ++step) {
    operations.Step();
    if (step % 500 == 499) operations.Settle();
  }
  operations.FreeAll();
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

// Over stand-ins for the vendors' libraries.
void AddVendors(std::vector<Subject>* subjects) {
  subjects->push_back({"ascend_fake", [](uint64_t bytes, const Clock*) -> std::unique_ptr<Device> {
                         AscendOptions options;
                         options.memory_bytes = bytes;
                         options.library = FakeLibrary("ascend");
                         return CreateAscendDevice(options).value();
                       }});
  subjects->push_back(
      {"cambricon_fake", [](uint64_t bytes, const Clock*) -> std::unique_ptr<Device> {
         CambriconOptions options;
         options.memory_bytes = bytes;
         options.library = FakeLibrary("cambricon");
         return CreateCambriconDevice(options).value();
       }});
  subjects->push_back({"cuda_fake", [](uint64_t bytes, const Clock*) {
                         CudaOptions options;
                         options.memory_bytes = bytes;
                         const cuda::Driver driver = cuda::LoadDriver(FakeLibrary("cuda")).value();
                         return CreateCudaDevice(options, driver, nullptr).value();
                       }});
  subjects->push_back({"hip_fake", [](uint64_t bytes, const Clock*) {
                         CudaOptions options;
                         options.kind = "hip";
                         options.memory_bytes = bytes;
                         const cuda::Driver driver = hip::LoadDriver(FakeLibrary("hip")).value();
                         return CreateCudaDevice(options, driver, nullptr).value();
                       }});
  subjects->push_back({"musa_fake", [](uint64_t bytes, const Clock*) {
                         CudaOptions options;
                         options.kind = "musa";
                         options.memory_bytes = bytes;
                         const cuda::Driver driver = musa::LoadDriver(FakeLibrary("musa")).value();
                         return CreateCudaDevice(options, driver, nullptr).value();
                       }});
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
  AddVendors(&subjects);
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
