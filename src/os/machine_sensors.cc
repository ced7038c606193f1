#include "os/machine_sensors.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace terrace::os {
namespace {

namespace fs = std::filesystem;

std::optional<int64_t> ReadNumber(const fs::path& file) {
  std::ifstream in(file);
  int64_t value = 0;
  if (in >> value) return value;
  return std::nullopt;
}

std::string ReadWord(const fs::path& file) {
  std::ifstream in(file);
  std::string word;
  in >> word;
  return word;
}

// Calls `take` with each folder of `folder` whose name begins with `prefix`.
template <typename F>
void ForEach(const fs::path& folder, const std::string& prefix, F take) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().filename().string().starts_with(prefix)) take(it->path());
  }
}

void Raise(std::optional<double>* most, int64_t millidegrees) {
  const double celsius = static_cast<double>(millidegrees) * 1e-3;
  // What is no temperature of a running machine is a sensor that is not connected.
  if (celsius > 0 && celsius < 150) *most = std::max(most->value_or(celsius), celsius);
}

}  // namespace

std::optional<double> ReadTemperature(const std::string& sys) {
  std::optional<double> most;
  ForEach(fs::path(sys) / "class/thermal", "thermal_zone", [&](const fs::path& zone) {
    if (const auto value = ReadNumber(zone / "temp")) Raise(&most, *value);
  });
  if (most) return most;
  ForEach(fs::path(sys) / "class/hwmon", "hwmon", [&](const fs::path& chip) {
    const std::string name = ReadWord(chip / "name");
    if (name != "coretemp" && name != "k10temp" && name != "cpu_thermal") return;
    if (const auto value = ReadNumber(chip / "temp1_input")) Raise(&most, *value);
  });
  return most;
}

std::optional<uint64_t> ReadEnergy(const std::string& sys) {
  std::optional<uint64_t> sum;
  ForEach(fs::path(sys) / "class/powercap", "intel-rapl:", [&](const fs::path& zone) {
    // Packages only: what stands below them ("intel-rapl:0:1") is counted there already.
    const std::string name = zone.filename().string();
    if (std::count(name.begin(), name.end(), ':') != 1) return;
    if (const auto value = ReadNumber(zone / "energy_uj"); value && *value >= 0) {
      sum = sum.value_or(0) + static_cast<uint64_t>(*value);
    }
  });
  return sum;
}

std::optional<uint64_t> ReadAvailableMemory(const std::string& meminfo) {
  std::ifstream in(meminfo);
  std::string key;
  uint64_t kib = 0;
  for (std::string rest; in >> key >> kib; std::getline(in, rest)) {
    if (key == "MemAvailable:") return kib * 1024;
  }
  return std::nullopt;
}

}  // namespace terrace::os
