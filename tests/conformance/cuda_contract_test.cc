// The CUDA device over a stand-in for the driver: how it calls, what it passes to kernels, and that
// each call that fails is told and leaves nothing behind. The conformance suite runs on it as well.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "cuda_fake.h"
#include "device/cuda/cuda_device.h"
#include "device/driver_queue.h"

namespace terrace::device {
namespace {

constexpr uint64_t kBytes = 64 << 10;

// Uses every part of the contract but kernels. True if all went well; then the result was right.
bool Scenario(const cuda::Driver& driver) {
  std::vector<uint32_t> data(kBytes / 4, 7), back(kBytes / 4);
  CudaOptions options;
  options.memory_bytes = 1 << 20;
  auto device = CreateCudaDevice(options, driver, nullptr);
  if (!device.ok()) return false;
  auto first = (*device)->CreateStream();
  auto second = (*device)->CreateStream();
  auto event = (*device)->CreateEvent();
  if (!first.ok() || !second.ok() || !event.ok()) return false;
  std::byte* a = (*device)->Allocate(kBytes).value();
  std::byte* b = (*device)->Allocate(kBytes).value();
  bool good = true;
  const auto keep = [&](const absl::Status& status) { good = status.ok() && good; };
  keep((*first)->CopyAsync(CopyDirection::kHostToDevice, a,
                           reinterpret_cast<std::byte*>(data.data()), kBytes));
  bool called = false;
  keep((*first)->HostCallback([&](absl::Status) { called = true; }));
  keep((*first)->Record(event->get()));
  keep((*second)->Wait(**event));
  keep((*second)->CopyAsync(CopyDirection::kDeviceToDevice, b, a, kBytes));
  keep((*second)->CopyAsync(CopyDirection::kDeviceToHost, reinterpret_cast<std::byte*>(back.data()),
                            b, kBytes));
  keep((*second)->Synchronize());
  keep((*event)->Synchronize());
  keep((*event)->Query().status());
  keep((*first)->Synchronize());
  EXPECT_TRUE(called);
  if (good) {
    EXPECT_EQ(back, data);
  }
  return good;
}

TEST(CudaContractTest, EachCallThatFailsIsToldAndNothingLeaks) {
  CudaFake fake;
  const cuda::Driver driver = FakeDriver(&fake);
  ASSERT_TRUE(Scenario(driver));
  EXPECT_EQ(fake.alive(), 0u);
  EXPECT_TRUE(fake.violations.empty()) << fake.violations.front();
  const int calls = fake.calls;
  ASSERT_GT(calls, 15);
  for (const cuda::Result code : {cuda::kOutOfMemory, 719}) {
    for (int n = 1; n <= calls; ++n) {
      fake.calls = 0;
      fake.failed = false;
      fake.fail_at = n;
      fake.fail_with = code;
      const bool good = Scenario(driver);
      SCOPED_TRACE(testing::Message() << "call " << n << ", " << fake.failed_call);
      // Nobody is there to be told when the last two calls, the waits of ending streams, fail.
      if (fake.failed && n <= calls - 2) {
        EXPECT_FALSE(good);
      }
      EXPECT_EQ(fake.alive(), 0u);
      EXPECT_TRUE(fake.violations.empty()) << fake.violations.front();
    }
  }
}

TEST(CudaContractTest, KernelsGetTheirArgumentsAsTheDialectDeclaresThem) {
  CudaFake fake;
  const cuda::Driver driver = FakeDriver(&fake);
  CudaOptions options;
  options.memory_bytes = 1 << 20;
  auto device = CreateCudaDevice(options, driver, nullptr).value();
  std::byte* data = device->Allocate(4096).value();
  EXPECT_EQ(device->KernelAddress(data), reinterpret_cast<uintptr_t>(data));
  auto stream = device->CreateStream().value();
  const DriverKernel kernel(&fake);
  fake.parameters = 6;
  const KernelArgument arguments[] = {
      KernelArgument::Memory(data + 8), KernelArgument::Space(), KernelArgument::Value(int32_t{5}),
      KernelArgument::Value(int64_t{-2}), KernelArgument::Value(1.0f)};
  ASSERT_TRUE(stream->Launch(kernel, {{3, 2, 1}, {64, 2, 1}}, arguments).ok());
  EXPECT_FALSE(stream->Launch(kernel, {{1, 1, 1}, {2048, 1, 1}}, arguments).ok());
  const KernelArgument outside[] = {KernelArgument::Memory(&fake)};
  EXPECT_FALSE(stream->Launch(kernel, {}, outside).ok());
  ASSERT_TRUE(stream->Synchronize().ok());
  ASSERT_EQ(fake.launches.size(), 1u);
  EXPECT_EQ(fake.launches[0].shape, (std::vector<unsigned>{3, 2, 1, 64, 2, 1}));
  EXPECT_EQ(fake.launches[0].parameters,
            (std::vector<uint64_t>{reinterpret_cast<uintptr_t>(data + 8), 0, 0, 5,
                                   static_cast<uint64_t>(-2), 0x3f800000}));
}

TEST(CudaContractTest, WhatIsNotThereIsSaid) {
  CudaFake fake;
  const cuda::Driver driver = FakeDriver(&fake);
  CudaOptions options;
  options.ordinal = 3;
  EXPECT_EQ(CreateCudaDevice(options, driver, nullptr).status().code(),
            absl::StatusCode::kNotFound);
  options.ordinal = 0;
  options.memory_bytes = fake.memory_bytes + 4096;
  EXPECT_EQ(CreateCudaDevice(options, driver, nullptr).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(fake.alive(), 0u);
  EXPECT_EQ(cuda::LoadDriver("libterrace-no-such-library.so").status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace terrace::device
