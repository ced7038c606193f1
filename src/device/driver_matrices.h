// What makers' libraries for products of matrices have in common: a folder for each maker maps it
// to the entry points of its library.
#ifndef TERRACE_DEVICE_DRIVER_MATRICES_H_
#define TERRACE_DEVICE_DRIVER_MATRICES_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "device/matrix_stream.h"

namespace terrace::device {

// Codes are the library's; 0 is success. A handle serves one stream.
struct MatrixCalls {
  std::string maker;  // the name of the library, for messages
  std::function<int(void** handle)> Create;
  std::function<int(void* handle)> Destroy;
  std::function<int(void* handle, void* stream)> SetStream;
  std::function<int(void* handle, const MatrixProduct&)> Multiply;
};

// OK for 0, else Internal, naming library, `call` and code.
absl::Status ToStatus(const MatrixCalls& calls, int code, const char* call);

// A library of the shape of BLAS with mixed types ("GemmEx"), and the numbers that its maker gives
// to what all have in common.
struct BlasNames {
  std::string maker;
  std::vector<std::string> libraries;
  // Names of functions, the first that is there.
  std::vector<std::string> create, destroy, set_stream, multiply;
  int plain = 0;       // the operand as it is
  int transposed = 1;  // its transpose
  int bf16 = 14;
  int float32 = 0;
  // How it sums: float32. Later numbers are tried where a library does not know the first.
  std::vector<int> sums = {68};
  int algorithm = -1;  // its own choice
};
// NotFound without the library, FailedPrecondition naming a function that it lacks.
absl::StatusOr<MatrixCalls> LoadBlas(const BlasNames& names);

}  // namespace terrace::device

#endif  // TERRACE_DEVICE_DRIVER_MATRICES_H_
