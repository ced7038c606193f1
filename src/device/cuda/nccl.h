// NCCL (libnccl.so.2) and the libraries of its shape, opened when they are wanted.
#ifndef TERRACE_DEVICE_CUDA_NCCL_H_
#define TERRACE_DEVICE_CUDA_NCCL_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "device/driver_collectives.h"

namespace terrace::device::cuda {

struct NcclNames {
  std::string maker;   // "NCCL"
  std::string prefix;  // of every function
  std::vector<std::string> libraries;
};

// NVIDIA's. NotFound without the library, FailedPrecondition naming a function that it lacks.
absl::StatusOr<CollectiveCalls> LoadNccl(const std::string& library = "");
absl::StatusOr<CollectiveCalls> LoadNccl(const NcclNames& names);

}  // namespace terrace::device::cuda

#endif  // TERRACE_DEVICE_CUDA_NCCL_H_
