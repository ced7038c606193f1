// What the common kernel dialect (src/ops/opencl/kernels/) has of MUSA's own beside
// device/cuda/dialect_words.h: as there is no assembler of CUDA's, half floats are converted by
// their bits. Any CUDA compiler takes it too.
#ifndef TERRACE_DEVICE_MUSA_MUSA_PRELUDE_H_
#define TERRACE_DEVICE_MUSA_MUSA_PRELUDE_H_

namespace terrace::device::musa {

inline constexpr const char* kPrelude = R"musa(
#define KERNEL(name) extern "C" __global__ void name
#define LOAD_HALF(p) load_half(*(const ushort *)(p))
#define STORE_HALF(x, p) (*(ushort *)(p) = half_bits(x))
// Multiplying by 2^112 moves the exponent's bias and makes subnormal halves normal; infinities and
// what is not a number come out too small and get their exponent afterwards.
static __device__ __forceinline__ float load_half(ushort bits) {
  const uint magnitude = (uint)(bits & 0x7fff) << 13;
  uint value = __float_as_uint(__uint_as_float(magnitude) * __uint_as_float(0x77800000U));
  if ((bits & 0x7c00) == 0x7c00) value |= 0x7f800000U;
  return __uint_as_float(value | (uint)(bits & 0x8000) << 16);
}
// To the nearest, ties to even.
static __device__ __forceinline__ ushort half_bits(float x) {
  const uint bits = __float_as_uint(x);
  const uint sign = bits >> 16 & 0x8000U;
  const uint magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return (ushort)(sign | 0x7e00U);
  if (magnitude >= 0x477ff000U) return (ushort)(sign | 0x7c00U);
  if (magnitude < 0x38800000U) {
    // Adding 1/2 leaves the result's ten bits at the sum's end, rounded.
    const uint sum = __float_as_uint(__uint_as_float(magnitude) + 0.5f);
    return (ushort)(sign | (sum - 0x3f000000U));
  }
  const uint odd = magnitude >> 13 & 1U;
  return (ushort)(sign | (magnitude - 0x38000000U + 0xfffU + odd) >> 13);
}
#line 1
)musa";

}  // namespace terrace::device::musa

#endif  // TERRACE_DEVICE_MUSA_MUSA_PRELUDE_H_
