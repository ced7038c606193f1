// Any OpenCL device as a device with memory of its own. OpenCL's loader and the chip's driver are
// found at run time (libOpenCL.so.1 and what it lists); nothing of OpenCL is needed to build.
#ifndef TERRACE_DEVICE_OPENCL_OPENCL_DEVICE_H_
#define TERRACE_DEVICE_OPENCL_OPENCL_DEVICE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "device/device.h"
#include "device/opencl/opencl_api.h"

namespace terrace::device {

struct OpenClOptions {
  std::string name = "opencl:0";
  // Which of the machine's devices: a number in ListOpenClDevices' order, or a part of its name or
  // its platform's name; empty: the first that is not a CPU, else the first.
  std::string device;
  // Memory to take; 0: what the device reports (of a CPU, whose memory is the machine's: half).
  uint64_t memory_bytes = 0;
  // For compiled kernels; empty: they are compiled again by each process.
  std::string cache_folder;
  // At most this much in one buffer; 0: what the device allows (tests make several of little).
  uint64_t buffer_bytes = 0;
  // Even on a CPU the kernels for chips whose work-items are lanes (tests of what GPUs run).
  bool scalar_items = false;
  // With scalar_items: kernels that use the tile product, which is emulated (tests).
  bool tile_product = false;
};

struct OpenClDeviceName {
  std::string platform;
  std::string device;
  std::string version;
  uint64_t memory_bytes = 0;
  bool cpu = false;
};

// NotFound without OpenCL's loader; an empty list if it knows no device.
absl::StatusOr<std::vector<OpenClDeviceName>> ListOpenClDevices();

// NotFound without a loader or a device as asked for, ResourceExhausted without the memory.
absl::StatusOr<std::unique_ptr<Device>> CreateOpenClDevice(const OpenClOptions& options);
// The same over given entry points (tests make calls fail).
absl::StatusOr<std::unique_ptr<Device>> CreateOpenClDevice(const OpenClOptions& options,
                                                           const cl::Api& api);

}  // namespace terrace::device

#endif  // TERRACE_DEVICE_OPENCL_OPENCL_DEVICE_H_
