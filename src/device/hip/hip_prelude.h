// The common kernel dialect (src/ops/opencl/kernels/) in terms of HIP C++. Names that HIP's own
// headers may have are taken over by macros; half floats are the compiler's own. Without being told
// that groups have 128 items at most, the compiler would leave each a quarter of the registers.
#ifndef TERRACE_DEVICE_HIP_HIP_PRELUDE_H_
#define TERRACE_DEVICE_HIP_HIP_PRELUDE_H_

namespace terrace::device::hip {

inline constexpr const char* kPrelude = R"hip(
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
#define KERNEL(name) \
  extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(1, 128))) void name
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
#define LOAD_HALF(p) ((float)*(const _Float16 *)(p))
#define STORE_HALF(x, p) (*(_Float16 *)(p) = (_Float16)(x))
#define AS_FLOAT(x) __uint_as_float(x)
#define ROUND_EVEN(x) rintf(x)
#define EXACT_STEPS
#undef INFINITY
#undef NAN
#define INFINITY __uint_as_float(0x7f800000U)
#define NAN __uint_as_float(0x7fc00000U)
#line 1
)hip";

}  // namespace terrace::device::hip

#endif  // TERRACE_DEVICE_HIP_HIP_PRELUDE_H_
