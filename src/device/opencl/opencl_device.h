// Any OpenCL device as a device with memory of its own. OpenCL's loader and the chip's driver are
// found at run time (libOpenCL.so.1 and what it lists); nothing of OpenCL is needed to build.
#ifndef TERRACE_DEVICE_OPENCL_OPENCL_DEVICE_H_
#define TERRACE_DEVICE_OPENCL_OPENCL_DEVICE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
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
  // With scalar_items: kernels that use the tile product, which is emulated (tests); with
  // `wide_tiles` that of chips whose items go in waves of 64.
  bool tile_product = false;
  bool wide_tiles = false;
  // Sub-groups for reductions, and for weights that are read by 16 lanes at once: where the driver
  // has them; emulated by their definition, with scalar_items (tests); or never.
  enum class Subgroups : uint8_t { kReported, kEmulated, kOff };
  Subgroups subgroups = Subgroups::kReported;
};

struct OpenClDeviceName {
  std::string platform;
  std::string device;
  std::string version;
  uint64_t memory_bytes = 0;
  bool cpu = false;
};

// What a driver with these extensions, sizes of sub-groups and version of OpenCL C has of
// sub-groups, as options of its compiler; empty: nothing that kernels use. `extensions` is its list
// of names, `c_version` as "OpenCL C 3.0 ...".
std::string SubgroupOptions(std::string_view extensions, std::span<const size_t> sizes,
                            std::string_view c_version);

// NotFound without OpenCL's loader; an empty list if it knows no device.
absl::StatusOr<std::vector<OpenClDeviceName>> ListOpenClDevices();

// NotFound without a loader or a device as asked for, ResourceExhausted without the memory.
absl::StatusOr<std::unique_ptr<Device>> CreateOpenClDevice(const OpenClOptions& options);
// The same over given entry points (tests make calls fail).
absl::StatusOr<std::unique_ptr<Device>> CreateOpenClDevice(const OpenClOptions& options,
                                                           const cl::Api& api);

}  // namespace terrace::device

#endif  // TERRACE_DEVICE_OPENCL_OPENCL_DEVICE_H_
