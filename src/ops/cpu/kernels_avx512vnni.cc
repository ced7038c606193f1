// The "avx512vnni" variant: the kernels over simd_avx512.h, compiled for its instructions only.
#if defined(__x86_64__)

#include "ops/cpu/simd_avx512.h"
// The kernels need the lanes above.
#include "ops/cpu/kernels_impl.h"
#include "ops/cpu/variants.h"

namespace terrace::ops::cpu {

const Kernels& Avx512VnniKernels() { return kKernels; }

}  // namespace terrace::ops::cpu

#endif  // defined(__x86_64__)
