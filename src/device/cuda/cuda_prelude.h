// What the common kernel dialect (src/ops/opencl/kernels/) has of CUDA's own beside
// dialect_words.h: half floats, and the product of tiles, by its assembler.
#ifndef TERRACE_DEVICE_CUDA_CUDA_PRELUDE_H_
#define TERRACE_DEVICE_CUDA_CUDA_PRELUDE_H_

namespace terrace::device::cuda {

inline constexpr const char* kPrelude = R"cuda(
#define KERNEL(name) extern "C" __global__ void name
#define LOAD_HALF(p) load_half((const ushort *)(p))
#define STORE_HALF(x, p) store_half(x, (ushort *)(p))
static __device__ __forceinline__ float load_half(const ushort *p) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(*p));
  return value;
}
static __device__ __forceinline__ void store_half(float value, ushort *p) {
  ushort bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  *p = bits;
}
#define TILE_STORAGE(count)
#define MULTIPLY_TILES(d, a, b) multiply_tiles(d, a, b)
#if __CUDA_ARCH__ >= 800
static __device__ __forceinline__ void multiply_tiles(float *d, const uint *a, const uint *b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif
#line 1
)cuda";

}  // namespace terrace::device::cuda

#endif  // TERRACE_DEVICE_CUDA_CUDA_PRELUDE_H_
