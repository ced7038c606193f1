// The "neon" variant: the kernels over simd_neon.h, for any AArch64 machine.
#if defined(__aarch64__)

#include "ops/cpu/simd_neon.h"
// The kernels need the lanes above.
#include "ops/cpu/kernels_impl.h"
#include "ops/cpu/variants.h"

namespace terrace::ops::cpu {

const Kernels& NeonKernels() { return kKernels; }

}  // namespace terrace::ops::cpu

#endif  // defined(__aarch64__)
