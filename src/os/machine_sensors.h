// What the machine says of its own state. Absent where the kernel shows nothing, as in most virtual
// machines.
#ifndef TERRACE_OS_MACHINE_SENSORS_H_
#define TERRACE_OS_MACHINE_SENSORS_H_

#include <cstdint>
#include <optional>
#include <string>

namespace terrace::os {

// The warmest of the processor's thermal zones, degrees Celsius. `sys`: where sysfs is.
std::optional<double> ReadTemperature(const std::string& sys = "/sys");

// Energy that the processor packages have used, in microjoules, since some moment; it starts over
// from time to time.
std::optional<uint64_t> ReadEnergy(const std::string& sys = "/sys");

// Memory that programs could still have without swapping, in bytes.
std::optional<uint64_t> ReadAvailableMemory(const std::string& meminfo = "/proc/meminfo");

}  // namespace terrace::os

#endif  // TERRACE_OS_MACHINE_SENSORS_H_
