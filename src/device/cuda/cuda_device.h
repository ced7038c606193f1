// An NVIDIA GPU through its driver, found at run time (libcuda.so.1), with kernels of the common
// dialect compiled by NVRTC. Nothing of CUDA is needed to build.
#ifndef TERRACE_DEVICE_CUDA_CUDA_DEVICE_H_
#define TERRACE_DEVICE_CUDA_CUDA_DEVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "device/cuda/cuda_api.h"
#include "device/cuda/nvrtc.h"
#include "device/device.h"
#include "device/driver_device.h"

namespace terrace::device {

struct CudaOptions {
  std::string name = "cuda:0";
  std::string kind = "cuda";
  int ordinal = 0;
  // Memory to take; 0: what is free, but for a part that the driver and its kernels need.
  uint64_t memory_bytes = 0;
  // For compiled kernels; empty: they are compiled again by each process.
  std::string cache_folder;
  // What the chip says of itself; null: nothing. Is given the chip's PCI address, empty if unknown.
  std::function<std::shared_ptr<const Sensors>(const std::string& pci_bus_id)> sensors;
  // As DriverDeviceOptions has these.
  std::function<absl::StatusOr<CollectiveCalls>()> collectives;
  std::function<absl::StatusOr<MatrixCalls>()> matrices;
  bool graphs = true;
  std::function<void(const std::string&)> tell;
};

// NotFound without a driver, a GPU of that number or the compiler; ResourceExhausted without the
// memory.
absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(const CudaOptions& options);
// The same over given entry points: another maker's, or a test's. `compiler` may be null: then no
// kernel can be made.
absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(const CudaOptions& options,
                                                         const cuda::Driver& driver,
                                                         std::unique_ptr<cuda::Compiler> compiler);

}  // namespace terrace::device

#endif  // TERRACE_DEVICE_CUDA_CUDA_DEVICE_H_
