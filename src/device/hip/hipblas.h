// hipBLAS (libhipblas.so), for products of many rows, if it is installed.
#ifndef TERRACE_DEVICE_HIP_HIPBLAS_H_
#define TERRACE_DEVICE_HIP_HIPBLAS_H_

#include <string>

#include "absl/status/statusor.h"
#include "device/driver_matrices.h"

namespace terrace::device::hip {

// As LoadBlas; from `library` if not empty, which then is of release 2 if `old`.
absl::StatusOr<MatrixCalls> LoadHipblas(const std::string& library = "", bool old = false);

}  // namespace terrace::device::hip

#endif  // TERRACE_DEVICE_HIP_HIPBLAS_H_
