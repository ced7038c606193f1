// Sensors as the kernel shows them, in a folder that looks like sysfs: most machines that run tests
// have none.
#include "os/machine_sensors.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "os/thread_usage.h"

namespace terrace::os {
namespace {

namespace fs = std::filesystem;

class MachineSensors : public testing::Test {
 protected:
  MachineSensors() : sys_(fs::path(testing::TempDir()) / "machine-sensors") {
    fs::remove_all(sys_);
  }
  ~MachineSensors() override { fs::remove_all(sys_); }
  void Put(const std::string& file, const std::string& text) {
    const fs::path path = sys_ / file;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }
  const fs::path sys_;
};

TEST_F(MachineSensors, NothingIsToldWhereNothingIsShown) {
  EXPECT_FALSE(ReadTemperature(sys_.string()).has_value());
  EXPECT_FALSE(ReadEnergy(sys_.string()).has_value());
  EXPECT_FALSE(ReadAvailableMemory((sys_ / "meminfo").string()).has_value());
}

TEST_F(MachineSensors, TheWarmestZoneCountsAndNonsenseDoesNot) {
  Put("class/thermal/thermal_zone0/temp", "41000");
  Put("class/thermal/thermal_zone1/temp", "67500");
  Put("class/thermal/thermal_zone2/temp", "-273000");
  Put("class/thermal/thermal_zone3/temp", "no number");
  ASSERT_TRUE(ReadTemperature(sys_.string()).has_value());
  EXPECT_DOUBLE_EQ(*ReadTemperature(sys_.string()), 67.5);
}

TEST_F(MachineSensors, WithoutZonesTheProcessorsOwnSensorIsRead) {
  Put("class/hwmon/hwmon0/name", "nvme");
  Put("class/hwmon/hwmon0/temp1_input", "90000");
  Put("class/hwmon/hwmon1/name", "coretemp");
  Put("class/hwmon/hwmon1/temp1_input", "55000");
  ASSERT_TRUE(ReadTemperature(sys_.string()).has_value());
  EXPECT_DOUBLE_EQ(*ReadTemperature(sys_.string()), 55);
}

TEST_F(MachineSensors, PackagesAddUpAndTheirPartsDoNotCountTwice) {
  Put("class/powercap/intel-rapl:0/energy_uj", "1000");
  Put("class/powercap/intel-rapl:0:0/energy_uj", "700");
  Put("class/powercap/intel-rapl:1/energy_uj", "500");
  EXPECT_EQ(ReadEnergy(sys_.string()), std::optional<uint64_t>(1500));
}

TEST_F(MachineSensors, MemoryThatIsAvailableIsReadInBytes) {
  Put("meminfo", "MemTotal:  100 kB\nMemFree: 7 kB\nMemAvailable:   42 kB");
  EXPECT_EQ(ReadAvailableMemory((sys_ / "meminfo").string()), std::optional<uint64_t>(42 * 1024));
  EXPECT_GT(ReadAvailableMemory().value_or(0), 0u) << "this machine's own";
}

TEST(ThreadUsage, CountsThreadsByTheirNames) {
  NameThisThread("usage-test-with-a-long-name");
  const ThreadUsage usage = ReadThreadUsage("usage-test");
  EXPECT_EQ(usage.threads, 1);
  EXPECT_EQ(usage.runnable, 1) << "the one that asks runs";
  EXPECT_EQ(ReadThreadUsage("nobody-is-called-so").threads, 0);
}

}  // namespace
}  // namespace terrace::os
