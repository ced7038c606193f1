// The common kernel dialect (src/ops/opencl/kernels/) in terms of MUSA C++: CUDA's words without
// its assembler, so half floats are converted by their bits. Any CUDA compiler takes it too.
#ifndef TERRACE_DEVICE_MUSA_MUSA_PRELUDE_H_
#define TERRACE_DEVICE_MUSA_MUSA_PRELUDE_H_

namespace terrace::device::musa {

inline constexpr const char* kPrelude = R"musa(
typedef unsigned char dialect_uchar;
typedef signed char dialect_schar;
typedef unsigned short dialect_ushort;
typedef unsigned int dialect_uint;
typedef unsigned long long dialect_ulong;
#define uchar dialect_uchar
#define schar dialect_schar
#define ushort dialect_ushort
#define uint dialect_uint
#define ulong dialect_ulong
#define long long long
#define KERNEL(name) extern "C" __global__ void name
#define GLOBAL
#define LOCAL
#define SHARED __shared__
#define CONSTANT static __constant__ const
#define FUNCTION static __device__ __forceinline__
#define BARRIER() __syncthreads()
#define DIMENSION(v, d) ((int)((d) == 0 ? v.x : (d) == 1 ? v.y : v.z))
#define GROUP(d) DIMENSION(blockIdx, d)
#define ITEM(d) DIMENSION(threadIdx, d)
#define ITEMS(d) DIMENSION(blockDim, d)
#define MEM(p) uchar *p##_base, ulong p##_at
#define PTR(T, p) ((T *)(p##_base + p##_at))
#define SPACE int whole_space
#define RESOLVE(address) ((uchar *)(address))
#define LOAD_HALF(p) load_half(*(const ushort *)(p))
#define STORE_HALF(x, p) (*(ushort *)(p) = half_bits(x))
#define AS_FLOAT(x) __uint_as_float(x)
#define ROUND_EVEN(x) rintf(x)
#define EXACT_STEPS
#undef INFINITY
#undef NAN
#define INFINITY __uint_as_float(0x7f800000U)
#define NAN __uint_as_float(0x7fc00000U)
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
