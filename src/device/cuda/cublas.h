// cuBLAS (libcublas.so), for products of many rows, if it is installed.
#ifndef TERRACE_DEVICE_CUDA_CUBLAS_H_
#define TERRACE_DEVICE_CUDA_CUBLAS_H_

#include <string>

#include "absl/status/statusor.h"
#include "device/driver_matrices.h"

namespace terrace::device::cuda {

// As LoadBlas; from `library` if not empty.
absl::StatusOr<MatrixCalls> LoadCublas(const std::string& library = "");

}  // namespace terrace::device::cuda

#endif  // TERRACE_DEVICE_CUDA_CUBLAS_H_
