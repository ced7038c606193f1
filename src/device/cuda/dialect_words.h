// What the preludes of CUDA, HIP and MUSA have in common: the words of the common kernel dialect
// (src/ops/opencl/kernels/) in terms of C++ for GPUs. An address parameter is a pointer and an
// offset, as elsewhere, though the offset is 0 here; addresses read from tables are pointers. Names
// that a maker's own headers may have are taken over by macros. Compiled without contraction: where
// the dialect wants fused operations it says fma.
#ifndef TERRACE_DEVICE_CUDA_DIALECT_WORDS_H_
#define TERRACE_DEVICE_CUDA_DIALECT_WORDS_H_

namespace terrace::device::cuda {

// Comes before a maker's own prelude.
inline constexpr const char* kDialectWords = R"words(
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
#define AS_FLOAT(x) __uint_as_float(x)
#define AS_UINT(x) __float_as_uint(x)
#define ROUND_EVEN(x) rintf(x)
#define EXACT_STEPS
#undef INFINITY
#undef NAN
#define INFINITY __uint_as_float(0x7f800000U)
#define NAN __uint_as_float(0x7fc00000U)
)words";

}  // namespace terrace::device::cuda

#endif  // TERRACE_DEVICE_CUDA_DIALECT_WORDS_H_
