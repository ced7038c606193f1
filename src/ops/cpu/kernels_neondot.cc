// The "neondot" variant: the kernels over simd_neon.h, compiled for dot-product instructions.
#if defined(__aarch64__)

#define TERRACE_NEON_DOT 1
#include "ops/cpu/simd_neon.h"
// The kernels need the lanes above.
#include "ops/cpu/kernels_impl.h"
#include "ops/cpu/variants.h"

namespace terrace::ops::cpu {

const Kernels& NeonDotKernels() { return kKernels; }

}  // namespace terrace::ops::cpu

#endif  // defined(__aarch64__)
