// Sums by makers' libraries, each over stand-ins for its driver and for the library: all members
// get the sum, what they exchange is counted as the documents say, and where one member cannot, all
// sum through the host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "conformance/vendor_library.h"
#include "device/ascend/ascend_device.h"
#include "device/ascend/hccl.h"
#include "device/cambricon/cambricon_device.h"
#include "device/cambricon/cncl.h"
#include "device/cpu/cpu_device.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/nccl.h"
#include "device/hip/hip_device.h"
#include "device/musa/musa_device.h"
#include "parallel/device_sums.h"
#include "parallel/thread_group.h"

namespace terrace::parallel {
namespace {

constexpr uint64_t kMemory = 8 << 20;
using device::FakeLibrary;
using Made = std::unique_ptr<device::Device>;

struct Maker {
  std::string driver;  // whose stand-in
  std::function<absl::StatusOr<device::CollectiveCalls>(const std::string& library)> load;
};

std::vector<Maker> Makers() {
  return {{"cuda", [](const std::string& library) { return device::cuda::LoadNccl(library); }},
          {"hip", [](const std::string& library) { return device::hip::LoadRccl(library); }},
          {"musa", [](const std::string& library) { return device::musa::LoadMccl(library); }},
          {"ascend", [](const std::string& library) { return device::ascend::LoadHccl(library); }},
          {"cambricon",
           [](const std::string& library) { return device::cambricon::LoadCncl(0, library); }}};
}

class DeviceSumsTest : public testing::TestWithParam<Maker> {
 protected:
  void SetUp() override {
    driver_ = device::FakeOf(GetParam().driver);
    library_ = device::FakeOf("collectives");
    for (device::VendorFake* fake : {driver_, library_}) {
      fake->violations.clear();
      fake->Arm(0, 0);
    }
  }
  void TearDown() override {
    for (device::VendorFake* fake : {driver_, library_}) {
      EXPECT_THAT(fake->violations, testing::IsEmpty());
      EXPECT_EQ(fake->Alive(), 0u);
    }
  }

  // Over the stand-ins; the maker's libraries are those of `collectives`.
  Made MakeDevice(const std::string& collectives) {
    const std::string& name = GetParam().driver;
    if (name == "ascend") {
      device::AscendOptions options;
      options.library = FakeLibrary(name);
      options.collective_library = collectives;
      options.memory_bytes = kMemory;
      return device::CreateAscendDevice(options).value();
    }
    if (name == "cambricon") {
      device::CambriconOptions options;
      options.library = FakeLibrary(name);
      options.collective_library = collectives;
      options.memory_bytes = kMemory;
      return device::CreateCambriconDevice(options).value();
    }
    device::CudaOptions options;
    options.memory_bytes = kMemory;
    options.collectives = [load = GetParam().load, collectives] { return load(collectives); };
    const auto driver = name == "cuda"  ? device::cuda::LoadDriver(FakeLibrary(name))
                        : name == "hip" ? device::hip::LoadDriver(FakeLibrary(name))
                                        : device::musa::LoadDriver(FakeLibrary(name));
    return device::CreateCudaDevice(options, driver.value(), nullptr).value();
  }

  device::VendorFake* driver_ = nullptr;
  device::VendorFake* library_ = nullptr;
};

// Runs `member` for each rank on a thread of its own.
void ForAll(ThreadGroup& group, const std::function<void(Communicator&)>& member) {
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < group.size(); ++rank) {
    threads.emplace_back([&, rank] { member(group.member(rank)); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(DeviceSumsTest, AllMembersGetTheSumAndCountWhatItTook) {
  constexpr uint64_t kCount = 1001;
  for (const int32_t size : {2, 4}) {
    ThreadGroup group(size);
    std::vector<Made> devices;
    for (int32_t i = 0; i < size; ++i) devices.push_back(MakeDevice(FakeLibrary("collectives")));
    ForAll(group, [&](Communicator& me) {
      device::Device& device = *devices[static_cast<size_t>(me.rank())];
      const auto why = JoinDeviceSums(&me, device);
      ASSERT_TRUE(why.ok()) << why.status();
      ASSERT_EQ(*why, "");
      ASSERT_TRUE(me.sums_on_device());
      // The stand-in's memory is the host's.
      auto* values = reinterpret_cast<float*>(device.Allocate(kCount * 4).value());
      for (int round = 1; round <= 3; ++round) {
        for (uint64_t i = 0; i < kCount; ++i) {
          values[i] = static_cast<float>(i + 1) * static_cast<float>(me.rank() + round);
        }
        ASSERT_TRUE(me.AllReduceOnDevice(values, kCount).ok());
        const int all = size * (size - 1) / 2 + size * round;
        for (uint64_t i = 0; i < kCount; ++i) {
          ASSERT_EQ(values[i], static_cast<float>(i + 1) * static_cast<float>(all));
        }
      }
      me.set_device_sums(nullptr);
      device.Free(reinterpret_cast<std::byte*>(values), kCount * 4);
    });
    uint64_t sent = 0;
    for (int32_t rank = 0; rank < size; ++rank) {
      sent += group.member(rank).traffic().sent_bytes;
      EXPECT_EQ(group.member(rank).traffic().reduces, 3u);
    }
    // docs/PARALLEL.md: 2 (N - 1) times the values' bytes, by all members together.
    EXPECT_EQ(sent, 3 * 2 * static_cast<uint64_t>(size - 1) * kCount * 4);
  }
}

TEST_P(DeviceSumsTest, WhereOneMemberCannotNobodyDoes) {
  ThreadGroup group(2);
  std::vector<Made> devices;
  devices.push_back(MakeDevice(FakeLibrary("collectives")));
  devices.push_back(MakeDevice("libterrace-no-such-library.so"));
  ForAll(group, [&](Communicator& me) {
    const auto why = JoinDeviceSums(&me, *devices[static_cast<size_t>(me.rank())]);
    ASSERT_TRUE(why.ok()) << why.status();
    EXPECT_NE(*why, "");
    EXPECT_FALSE(me.sums_on_device());
    std::vector<float> values(10, static_cast<float>(me.rank() + 1));
    ASSERT_TRUE(me.AllReduce(values).ok());
    EXPECT_EQ(values, std::vector<float>(10, 3.0f));
  });
}

// A library that lacks functions, and each call to make a group that fails.
TEST_P(DeviceSumsTest, ACallThatFailsLeavesSumsToTheHost) {
  EXPECT_EQ(GetParam().load(FakeLibrary("sensors")).status().code(),
            absl::StatusCode::kFailedPrecondition);
  ThreadGroup group(2);
  std::vector<Made> devices;
  for (int i = 0; i < 2; ++i) devices.push_back(MakeDevice(FakeLibrary("collectives")));
  library_->Arm(1, 3);  // making the id; members that have joined would wait for the others
  ForAll(group, [&](Communicator& me) {
    const auto why = JoinDeviceSums(&me, *devices[static_cast<size_t>(me.rank())]);
    ASSERT_TRUE(why.ok()) << why.status();
    EXPECT_FALSE(me.sums_on_device());
    if (me.rank() == 0) {
      EXPECT_THAT(*why, testing::HasSubstr("making a group"));
    }
  });
  EXPECT_TRUE(library_->failed);
}

TEST_P(DeviceSumsTest, ASumThatFailsIsTold) {
  ThreadGroup group(1);
  const Made device = MakeDevice(FakeLibrary("collectives"));
  Communicator& me = group.member(0);
  ASSERT_EQ(JoinDeviceSums(&me, *device).value(), "");
  auto* values = reinterpret_cast<float*>(device->Allocate(4096).value());
  library_->Arm(1, 5);
  const absl::Status told = me.AllReduceOnDevice(values, 4);
  EXPECT_EQ(told.code(), absl::StatusCode::kUnavailable) << told;
  EXPECT_EQ(me.traffic().reduces, 0u);
  me.set_device_sums(nullptr);
  device->Free(reinterpret_cast<std::byte*>(values), 4096);
}

INSTANTIATE_TEST_SUITE_P(Makers, DeviceSumsTest, testing::ValuesIn(Makers()),
                         [](const auto& info) { return info.param.driver; });

TEST(DeviceSumsOfOthers, AProcessorHasNone) {
  ThreadGroup group(1);
  const auto cpu = device::CreateCpuDevice();
  EXPECT_NE(JoinDeviceSums(&group.member(0), *cpu).value(), "");
  EXPECT_FALSE(group.member(0).sums_on_device());
}

}  // namespace
}  // namespace terrace::parallel
