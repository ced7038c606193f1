#include "ops/cpu/variants.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace terrace::ops::cpu {

VariantList AllVariants() {
  VariantList list;
  list.items[list.count++] = {"portable", "", true, &PortableKernels()};
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  list.items[list.count++] = {"avx2", "AVX2, FMA, F16C", avx2, &Avx2Kernels()};
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
  list.items[list.count++] = {"avx512vnni", "AVX-512 F, BW, VL, DQ, VNNI", avx512,
                              &Avx512VnniKernels()};
#elif defined(__aarch64__)
  list.items[list.count++] = {"neon", "NEON", true, &NeonKernels()};
  const bool dot = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  list.items[list.count++] = {"neondot", "NEON with dot products (Armv8.2)", dot,
                              &NeonDotKernels()};
#endif
  return list;
}

}  // namespace terrace::ops::cpu
