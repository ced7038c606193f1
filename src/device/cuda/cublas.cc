#include "device/cuda/cublas.h"

namespace terrace::device::cuda {

absl::StatusOr<MatrixCalls> LoadCublas(const std::string& library) {
  BlasNames names;
  names.maker = "cuBLAS";
  names.libraries = {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11", "libcublas.so"};
  if (!library.empty()) names.libraries = {library};
  names.create = {"cublasCreate_v2"};
  names.destroy = {"cublasDestroy_v2"};
  names.set_stream = {"cublasSetStream_v2"};
  names.multiply = {"cublasGemmEx"};
  return LoadBlas(names);
}

}  // namespace terrace::device::cuda
