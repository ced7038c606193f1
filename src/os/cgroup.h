// Limits of the kernel for this process as a whole, by a control group (cgroup v2) of its own.
#ifndef TERRACE_OS_CGROUP_H_
#define TERRACE_OS_CGROUP_H_

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace terrace::os {

// 0: the kernel's default.
struct CgroupLimits {
  int32_t cpu_weight = 0;          // cpu.weight, 1 to 10000; other groups have 100
  double cpus = 0;                 // processors' time (cpu.max)
  uint64_t memory_high_bytes = 0;  // memory.high
  bool any() const { return cpu_weight > 0 || cpus > 0 || memory_high_bytes > 0; }
};

// Where the kernel tells; a test has others.
struct CgroupPlaces {
  std::string own = "/proc/self/cgroup";
  std::string root = "/sys/fs/cgroup";
};

// Moves `processes`, of which the group they are in holds no others, to a group `terrace` below it
// and limits that one; who is in a group of that name already stays there. Returns its folder. The
// group must have been delegated (its files may be written); else PermissionDenied or
// FailedPrecondition, with what is missing, and everything is as it was before. Not thread-safe.
absl::StatusOr<std::string> LimitCgroup(const CgroupLimits& limits,
                                        std::span<const int64_t> processes,
                                        const CgroupPlaces& places = {});

}  // namespace terrace::os

#endif  // TERRACE_OS_CGROUP_H_
