// muBLAS (libmublas.so), for products of many rows, if it is installed.
#ifndef TERRACE_DEVICE_MUSA_MUBLAS_H_
#define TERRACE_DEVICE_MUSA_MUBLAS_H_

#include <string>

#include "absl/status/statusor.h"
#include "device/driver_matrices.h"

namespace terrace::device::musa {

// As LoadBlas; from `library` if not empty.
absl::StatusOr<MatrixCalls> LoadMublas(const std::string& library = "");

}  // namespace terrace::device::musa

#endif  // TERRACE_DEVICE_MUSA_MUBLAS_H_
