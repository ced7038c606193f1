#include "device/hip/hipblas.h"

namespace terrace::device::hip {
namespace {

BlasNames Common() {
  BlasNames names;
  names.maker = "hipBLAS";
  names.create = {"hipblasCreate"};
  names.destroy = {"hipblasDestroy"};
  names.set_stream = {"hipblasSetStream"};
  names.plain = 111;
  names.transposed = 112;
  names.algorithm = 160;
  return names;
}

}  // namespace

// Release 3 gave the function without a suffix the meaning that "_v2" has in release 2: numbers of
// types from the runtime, and others for how to sum.
absl::StatusOr<MatrixCalls> LoadHipblas(const std::string& library, bool old) {
  BlasNames names = Common();
  names.sums = {2};
  names.multiply = {"hipblasGemmEx_v2", "hipblasGemmEx"};
  names.libraries = {"libhipblas.so.3"};
  if (!library.empty()) names.libraries = {library};
  if (!old) {
    absl::StatusOr<MatrixCalls> calls = LoadBlas(names);
    if (!absl::IsNotFound(calls.status()) || !library.empty()) return calls;
    names.libraries = {"libhipblas.so.2", "libhipblas.so"};
  }
  names.multiply = {"hipblasGemmEx_v2"};
  absl::StatusOr<MatrixCalls> calls = LoadBlas(names);
  if (!absl::IsFailedPrecondition(calls.status())) return calls;
  // Types, and how to sum, by numbers of its own.
  names.multiply = {"hipblasGemmEx"};
  names.bf16 = 168;
  names.float32 = 151;
  names.sums = {151};
  return LoadBlas(names);
}

}  // namespace terrace::device::hip
