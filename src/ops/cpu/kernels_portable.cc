// The "portable" variant: the kernels over simd_portable.h, compiled for its instructions only.
#include "ops/cpu/simd_portable.h"
// The kernels need the lanes above.
#include "ops/cpu/kernels_impl.h"
#include "ops/cpu/variants.h"

namespace terrace::ops::cpu {

const Kernels& PortableKernels() { return kKernels; }

}  // namespace terrace::ops::cpu
