#include "ops/cpu/variants.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace terrace::ops::cpu {

#if defined(__x86_64__)
namespace {

// Whether the processor has AMX with BF16 and INT8 products, and the kernel lets this process use
// its registers: Linux grants them on request, for all threads of the process.
bool GrantedTiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25;
  constexpr unsigned kAll = kBf16 | kTile | kInt8;
  if ((d & kAll) != kAll) return false;
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace
#endif

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
  list.items[list.count++] = {"amx", "AMX (BF16, INT8) and AVX-512 BF16 beside avx512vnni's",
                              avx512 && __builtin_cpu_supports("avx512bf16") && GrantedTiles(),
                              &AmxKernels()};
#elif defined(__aarch64__)
  list.items[list.count++] = {"neon", "NEON", true, &NeonKernels()};
  const bool dot = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  list.items[list.count++] = {"neondot", "NEON with dot products (Armv8.2)", dot,
                              &NeonDotKernels()};
#endif
  return list;
}

}  // namespace terrace::ops::cpu
