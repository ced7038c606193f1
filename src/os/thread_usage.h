// What threads of this process, known by how their names begin, are doing, as the kernel counts it.
#ifndef TERRACE_OS_THREAD_USAGE_H_
#define TERRACE_OS_THREAD_USAGE_H_

#include <cstdint>
#include <string_view>

namespace terrace::os {

struct ThreadUsage {
  int threads = 0;
  int64_t cpu_us = 0;     // since they began; in steps of the kernel's clock tick (10 ms)
  int runnable = 0;       // that run or wait for a processor now
  int in_disk_sleep = 0;  // that wait for a disk, or for memory from one
};

// Reads /proc/self/task: all zero where there is none.
ThreadUsage ReadThreadUsage(std::string_view name_prefix);

// Names the calling thread; at most 15 bytes are kept.
void NameThisThread(std::string_view name);

}  // namespace terrace::os

#endif  // TERRACE_OS_THREAD_USAGE_H_
