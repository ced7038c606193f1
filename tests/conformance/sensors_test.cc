// What chips say of themselves, by each maker's library for that, against a stand-in for all of
// them: units, which of several cards is meant, and that what cannot be read is absent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/ascend/dcmi.h"
#include "device/cambricon/cndev.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/nvml.h"
#include "device/hip/rocm_smi.h"
#include "device/musa/mtml.h"
#include "vendor_library.h"

namespace terrace::device {
namespace {

constexpr const char* kAddress = "0000:65:00.0";

struct Maker {
  std::string name;
  std::function<std::shared_ptr<const Sensors>(bool there, const std::string& library)> open;
};

std::vector<Maker> Makers() {
  const auto pci = [](bool there) { return std::string(there ? kAddress : "0000:66:00.0"); };
  return {
      {"nvml",
       [=](bool there, const std::string& library) { return cuda::OpenNvml(pci(there), library); }},
      {"rocm_smi",
       [=](bool there, const std::string& library) {
         return hip::OpenRocmSmi(pci(there), library);
       }},
      {"mtml", [](bool there,
                  const std::string& library) { return musa::OpenMtml(there ? 0 : 1, library); }},
      {"dcmi", [](bool there,
                  const std::string& library) { return ascend::OpenDcmi(there ? 0 : 1, library); }},
      {"cndev", [](bool there, const std::string& library) {
         return cambricon::OpenCndev(there ? 0 : 1, library);
       }}};
}

class SensorsTest : public testing::TestWithParam<Maker> {
 protected:
  void SetUp() override {
    fake_ = FakeOf("sensors");
    fake_->violations.clear();
    fake_->Arm(0, 0);
  }
  void TearDown() override {
    EXPECT_THAT(fake_->violations, testing::IsEmpty());
    EXPECT_EQ(fake_->Alive(), 0u);
  }
  std::shared_ptr<const Sensors> Open(bool there = true) {
    return GetParam().open(there, FakeLibrary("sensors"));
  }

  VendorFake* fake_ = nullptr;
};

TEST_P(SensorsTest, SaysWhatTheChipIsDoing) {
  const auto sensors = Open();
  ASSERT_NE(sensors, nullptr);
  const Telemetry read = sensors->Read();
  EXPECT_DOUBLE_EQ(read.utilisation.value_or(-1), 0.75);
  EXPECT_DOUBLE_EQ(read.temperature_c.value_or(-1), 61);
  EXPECT_DOUBLE_EQ(read.power_w.value_or(-1), 250);
  EXPECT_EQ(read.link_width.has_value(), GetParam().name == "nvml");
}

TEST_P(SensorsTest, WhatIsNotThereIsAbsent) {
  EXPECT_EQ(Open(false), nullptr);
  EXPECT_EQ(GetParam().open(true, "libterrace-no-such-library.so"), nullptr);
  EXPECT_EQ(GetParam().open(true, FakeLibrary("hip")), nullptr);  // lacks the functions
}

TEST_P(SensorsTest, ACallThatFailsLosesThatReadingAlone) {
  ASSERT_NE(Open(), nullptr);
  const int to_open = fake_->calls;
  fake_->Arm(0, 0);
  Open()->Read();
  const int calls = fake_->calls;
  ASSERT_GT(calls, to_open);
  for (int n = 1; n <= calls; ++n) {
    fake_->Arm(n, 999);
    const auto sensors = Open();
    SCOPED_TRACE(testing::Message() << "call " << n << ", " << fake_->failed_call);
    if (n <= to_open) {
      // ROCm's second card is found though the first cannot be asked.
      if (sensors == nullptr) continue;
      EXPECT_EQ(fake_->failed_call, "rsmi_dev_pci_id_get");
    }
    ASSERT_NE(sensors, nullptr);
    const Telemetry read = sensors->Read();
    const int readings = int{read.utilisation.has_value()} + int{read.temperature_c.has_value()} +
                         int{read.power_w.has_value()};
    EXPECT_GE(readings, 2);
  }
}

// The driver says where its chip is, the sensors' library is asked for that one.
TEST(SensorsOfADevice, AreReadBesideWhatTheDeviceCounts) {
  FakeOf("sensors")->Arm(0, 0);
  FakeOf("cuda")->Arm(0, 0);
  std::string asked;
  CudaOptions options;
  options.memory_bytes = 4 << 20;
  options.sensors = [&](const std::string& pci_bus_id) {
    asked = pci_bus_id;
    return cuda::OpenNvml(pci_bus_id, FakeLibrary("sensors"));
  };
  auto device =
      CreateCudaDevice(options, cuda::LoadDriver(FakeLibrary("cuda")).value(), nullptr).value();
  EXPECT_EQ(asked, kAddress);
  auto stream = device->CreateStream().value();
  std::byte* data = device->Allocate(4096).value();
  const std::vector<std::byte> host(4096);
  ASSERT_TRUE(stream->CopyAsync(CopyDirection::kHostToDevice, data, host.data(), 4096).ok());
  ASSERT_TRUE(stream->Synchronize().ok());
  const Telemetry read = device->ReadTelemetry().value();
  EXPECT_DOUBLE_EQ(read.power_w.value_or(-1), 250);
  EXPECT_EQ(read.copied_to_device_bytes, 4096u);
}

INSTANTIATE_TEST_SUITE_P(Makers, SensorsTest, testing::ValuesIn(Makers()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace terrace::device
