// Bytes that a device's streams have copied, by direction. Thread-safe; outlives the streams.
#ifndef TERRACE_DEVICE_COPY_COUNTERS_H_
#define TERRACE_DEVICE_COPY_COUNTERS_H_

#include <atomic>
#include <cstdint>

namespace terrace::device {

struct CopyCounters {
  std::atomic<uint64_t> to_device{0};
  std::atomic<uint64_t> to_host{0};
  std::atomic<uint64_t> on_device{0};
};

}  // namespace terrace::device

#endif  // TERRACE_DEVICE_COPY_COUNTERS_H_
