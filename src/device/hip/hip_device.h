// A GPU of AMD (ROCm) or a DCU of Hygon (DTK) through the HIP runtime, found at run time, with
// kernels of the common dialect compiled by hiprtc. The runtime has the shape of CUDA's driver
// (device/cuda/cuda_api.h), whose device it becomes.
#ifndef TERRACE_DEVICE_HIP_HIP_DEVICE_H_
#define TERRACE_DEVICE_HIP_HIP_DEVICE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "device/cuda/cuda_api.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/nvrtc.h"
#include "device/device.h"

namespace terrace::device {

// As CreateCudaDevice; `options.kind` and `options.name` are set by the caller or here.
absl::StatusOr<std::unique_ptr<Device>> CreateHipDevice(CudaOptions options);

namespace hip {

// The functions of libamdhip64.so or libgalaxyhip.so, or of `library` if not empty. NotFound
// without them, FailedPrecondition naming a function that is lacking.
absl::StatusOr<cuda::Driver> LoadDriver(const std::string& library = "");
cuda::CompilerMaker Hiprtc();
// RCCL, whose functions have NCCL's names.
absl::StatusOr<CollectiveCalls> LoadRccl(const std::string& library = "");

}  // namespace hip
}  // namespace terrace::device

#endif  // TERRACE_DEVICE_HIP_HIP_DEVICE_H_
