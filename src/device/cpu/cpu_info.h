// How many processors this process may really use.
#ifndef TERRACE_DEVICE_CPU_CPU_INFO_H_
#define TERRACE_DEVICE_CPU_CPU_INFO_H_

#include <optional>
#include <string>
#include <string_view>

namespace terrace {

// The number of processors that this process may keep busy: the scheduler affinity, cut to the
// cgroup's CPU quota (v2 cpu.max of every ancestor, or v1 cfs_quota_us), rounded up; at least 1.
// Reads /proc and /sys below `root` ("" for the real ones; tests pass a folder).
int CpuCount(const std::string& root = "");

// Processors that a cgroup v2 `cpu.max` text grants ("max 100000" or "150000 100000"); nothing if
// there is no limit or the text is not understood.
std::optional<double> ParseCpuMax(std::string_view text);

}  // namespace terrace

#endif  // TERRACE_DEVICE_CPU_CPU_INFO_H_
