// A stand-in for a hipBLAS of release 2 that has only the function with numbers of its own.
#include "blas_shape.h"

namespace {
constexpr BlasNumbers kHipblas{3, 111, 112, 168, 151, 151, 160};
}  // namespace

#pragma GCC visibility push(default)
extern "C" {

VendorFake* terrace_fake_state() { return &Fake(); }

BLAS_HANDLES(hipblasCreate, hipblasDestroy, hipblasSetStream, 3)
BLAS_GEMM(hipblasGemmEx, kHipblas)

}  // extern "C"
#pragma GCC visibility pop
