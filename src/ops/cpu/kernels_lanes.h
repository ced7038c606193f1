// Rows of floats by lanes, whole vectors and what is left over. Part of kernels_impl.h.
#ifndef TERRACE_OPS_CPU_KERNELS_LANES_H_
#define TERRACE_OPS_CPU_KERNELS_LANES_H_

#include "ops/cpu/kernels.h"

namespace terrace::ops::cpu {
namespace {

// Calls op(i, count) for [0, n) in steps of 16 lanes; count is 16 or what is left.
template <typename Op>
inline void ForLanes(int32_t n, Op op) {
  int32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) op(i, kLanes);
  if (i < n) op(i, n - i);
}
inline F LoadN(const float* p, int n) { return n == kLanes ? Load(p) : LoadPart(p, n); }
inline void StoreN(float* p, F x, int n) { n == kLanes ? Store(p, x) : StorePart(p, x, n); }

}  // namespace
}  // namespace terrace::ops::cpu

#endif  // TERRACE_OPS_CPU_KERNELS_LANES_H_
