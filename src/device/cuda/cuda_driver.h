// A driver of CUDA's shape as a DriverApi: NVIDIA's own, or another maker's that fills the same
// table.
#ifndef TERRACE_DEVICE_CUDA_CUDA_DRIVER_H_
#define TERRACE_DEVICE_CUDA_CUDA_DRIVER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "device/cuda/cuda_api.h"
#include "device/driver_api.h"

namespace terrace::device::cuda {

struct OpenedDriver {
  std::unique_ptr<DriverApi> api;
  std::string chip;          // its name
  std::string architecture;  // "sm_90", or as the table's maker calls it
  std::string pci_bus_id;    // empty: the driver does not say
  uint32_t max_group_items = 0;
  bool tile_product = false;  // the compiler's dialect has it for this architecture
};

// Takes the GPU of number `ordinal`. NotFound if the driver has no such.
absl::StatusOr<OpenedDriver> OpenDriver(const Driver& driver, int ordinal);

}  // namespace terrace::device::cuda

#endif  // TERRACE_DEVICE_CUDA_CUDA_DRIVER_H_
