// What this process holds of the machine's memory, as the kernel counts it.
#ifndef TERRACE_OS_PROCESS_MEMORY_H_
#define TERRACE_OS_PROCESS_MEMORY_H_

#include <cstdint>

#include "absl/status/statusor.h"

namespace terrace::os {

struct ProcessMemory {
  uint64_t rss_bytes = 0;        // resident now
  uint64_t peak_rss_bytes = 0;   // most since start
  uint64_t anonymous_bytes = 0;  // resident and not backed by a file
  uint64_t swap_bytes = 0;
};

// Reads /proc/self/status.
absl::StatusOr<ProcessMemory> ReadProcessMemory();

}  // namespace terrace::os

#endif  // TERRACE_OS_PROCESS_MEMORY_H_
