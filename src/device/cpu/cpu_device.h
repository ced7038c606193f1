// The host's own processor and memory as a device: unified memory, so a block read from disk lands
// where kernels read it and copies are plain memory copies. Memory that is freed leaves the
// process.
#ifndef TERRACE_DEVICE_CPU_CPU_DEVICE_H_
#define TERRACE_DEVICE_CPU_CPU_DEVICE_H_

#include <memory>

#include "device/device.h"

namespace terrace::device {

struct CpuDeviceOptions {
  // Allocate() refuses beyond this; 0: the machine's memory.
  uint64_t memory_bytes = 0;
  bool huge_pages = true;
};

std::unique_ptr<Device> CreateCpuDevice(const CpuDeviceOptions& options = {});

}  // namespace terrace::device

#endif  // TERRACE_DEVICE_CPU_CPU_DEVICE_H_
