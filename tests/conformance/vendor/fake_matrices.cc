// Stand-ins for cuBLAS, hipBLAS (release 2 with the functions of both kinds) and muBLAS in one, by
// their public entry points.
#include "blas_shape.h"

namespace {
constexpr BlasNumbers kCublas{7, 0, 1, 14, 0, 68, -1};
constexpr BlasNumbers kHipblas{3, 111, 112, 168, 151, 151, 160};
constexpr BlasNumbers kHipblasV2{3, 111, 112, 14, 0, 2, 160};
// Of muBLAS a test chooses the release that says how to sum by the number of a type.
BlasNumbers Mublas() { return {7, 111, 112, 14, 0, Fake().parameters == 0 ? 68 : 0, 0}; }
}  // namespace

#pragma GCC visibility push(default)
extern "C" {

VendorFake* terrace_fake_state() { return &Fake(); }

BLAS_HANDLES(cublasCreate_v2, cublasDestroy_v2, cublasSetStream_v2, 7)
BLAS_GEMM(cublasGemmEx, kCublas)

BLAS_HANDLES(hipblasCreate, hipblasDestroy, hipblasSetStream, 3)
BLAS_GEMM(hipblasGemmEx, kHipblas)
BLAS_GEMM(hipblasGemmEx_v2, kHipblasV2)

BLAS_HANDLES(mublasCreate, mublasDestroy, mublasSetStream, 7)
BLAS_GEMM(mublasGemmEx, Mublas())

}  // extern "C"
#pragma GCC visibility pop
