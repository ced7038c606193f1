// What the common kernel dialect (src/ops/opencl/kernels/) has of HIP's own beside
// device/cuda/dialect_words.h: half floats are the compiler's, and matrix cores where chips have
// them. Without being told that groups have 128 items at most, the compiler would leave each a
// quarter of the registers.
#ifndef TERRACE_DEVICE_HIP_HIP_PRELUDE_H_
#define TERRACE_DEVICE_HIP_HIP_PRELUDE_H_

namespace terrace::device::hip {

inline constexpr const char* kPrelude = R"hip(
#define KERNEL(name) \
  extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(1, 128))) void name
#define LOAD_HALF(p) ((float)*(const _Float16 *)(p))
#define STORE_HALF(x, p) (*(_Float16 *)(p) = (_Float16)(x))
// Matrix cores (matmul.cl) of CDNA 2 and later.
#if defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__) || \
    defined(__gfx950__)
#define WIDE_TILE_STORAGE(count)
#define MULTIPLY_WIDE_TILES(d, a, b) multiply_wide_tiles(d, a, b)
typedef short dialect_short4 __attribute__((ext_vector_type(4)));
typedef float dialect_float4 __attribute__((ext_vector_type(4)));
static __device__ __forceinline__ void multiply_wide_tiles(float *d, const uint *a,
                                                           const uint *b) {
  const ulong of_a = (ulong)a[1] << 32 | a[0];
  const ulong of_b = (ulong)b[1] << 32 | b[0];
  dialect_float4 sums = {d[0], d[1], d[2], d[3]};
  sums = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(dialect_short4, of_a),
                                                   __builtin_bit_cast(dialect_short4, of_b), sums,
                                                   0, 0, 0);
  for (int i = 0; i < 4; ++i) d[i] = sums[i];
}
#endif
#line 1
)hip";

}  // namespace terrace::device::hip

#endif  // TERRACE_DEVICE_HIP_HIP_PRELUDE_H_
