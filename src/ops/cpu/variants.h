// The CPU variants that this build knows: which instructions each needs, and its kernels.
#ifndef TERRACE_OPS_CPU_VARIANTS_H_
#define TERRACE_OPS_CPU_VARIANTS_H_

#include <string_view>

#include "ops/cpu/kernels.h"

namespace terrace::ops::cpu {

struct Variant {
  std::string_view name;
  std::string_view needs;  // instruction sets, as a person writes them; "" for none
  bool supported;          // by this machine
  const Kernels* kernels;
};

// In order of preference, the plainest first; the machine is asked at each call.
struct VariantList {
  Variant items[4];
  int count = 0;
  const Variant* begin() const { return items; }
  const Variant* end() const { return items + count; }
};
VariantList AllVariants();

const Kernels& PortableKernels();
#if defined(__x86_64__)
const Kernels& Avx2Kernels();
const Kernels& Avx512VnniKernels();
const Kernels& AmxKernels();
#elif defined(__aarch64__)
const Kernels& NeonKernels();
const Kernels& NeonDotKernels();
#endif

}  // namespace terrace::ops::cpu

#endif  // TERRACE_OPS_CPU_VARIANTS_H_
