// A GPU of Moore Threads through the MUSA driver, found at run time, with kernels of the common
// dialect compiled by MTRTC. The driver has the shape of CUDA's (device/cuda/cuda_api.h), whose
// device it becomes.
#ifndef TERRACE_DEVICE_MUSA_MUSA_DEVICE_H_
#define TERRACE_DEVICE_MUSA_MUSA_DEVICE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "device/cuda/cuda_api.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/nvrtc.h"
#include "device/device.h"

namespace terrace::device {

// As CreateCudaDevice.
absl::StatusOr<std::unique_ptr<Device>> CreateMusaDevice(CudaOptions options);

namespace musa {

// The functions of libmusa.so, or of `library` if not empty. Its exports follow CUDA's names; where
// one has no "_v2" it is taken without.
absl::StatusOr<cuda::Driver> LoadDriver(const std::string& library = "");
cuda::CompilerMaker Mtrtc();
// MCCL, of NCCL's shape.
absl::StatusOr<CollectiveCalls> LoadMccl(const std::string& library = "");

}  // namespace musa
}  // namespace terrace::device

#endif  // TERRACE_DEVICE_MUSA_MUSA_DEVICE_H_
