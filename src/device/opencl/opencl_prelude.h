// The common kernel dialect (src/ops/opencl/kernels/) in terms of OpenCL C. An address parameter is
// a buffer and an offset; addresses read from tables are a buffer's number and an offset.
#ifndef TERRACE_DEVICE_OPENCL_OPENCL_PRELUDE_H_
#define TERRACE_DEVICE_OPENCL_OPENCL_PRELUDE_H_

#include <string_view>

namespace terrace::device::cl {

inline constexpr std::string_view kPrelude = R"cl(
#if SUBGROUPS && !EMULATE_SUBGROUPS
#pragma OPENCL EXTENSION SUBGROUP_EXTENSION : enable
#define SUBGROUP_SUM(scratch, x) sub_group_reduce_add(x)
#define SUBGROUP_MAX(scratch, x) sub_group_reduce_max(x)
#define SUBGROUP() ((int)get_sub_group_id())
#define SUBGROUP_COUNT() ((int)get_num_sub_groups())
#define FIRST_OF_SUBGROUP() (get_sub_group_local_id() == 0)
#elif SUBGROUPS
// By their definition, in sub-groups of 16 items.
#define SUBGROUP_SUM(scratch, x) emulated_sum(scratch, x, 0)
#define SUBGROUP_MAX(scratch, x) emulated_sum(scratch, x, 1)
#define SUBGROUP() ((int)get_local_id(0) / 16)
#define SUBGROUP_COUNT() (((int)get_local_size(0) + 15) / 16)
#define FIRST_OF_SUBGROUP() (get_local_id(0) % 16 == 0)
static inline float emulated_sum(__local float *scratch, float x, int largest) {
  const int item = (int)get_local_id(0);
  scratch[item] = x;
  barrier(CLK_LOCAL_MEM_FENCE);
  const int begin = item / 16 * 16;
  float all = scratch[begin];
  for (int i = begin + 1; i < begin + 16; ++i) {
    all = largest ? fmax(all, scratch[i]) : all + scratch[i];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  return all;
}
#endif
// Of 16 items: lanes of a slice (matmul.cl) read words beside each other.
#if SUBGROUP_BLOCKS && EMULATE_SUBGROUPS
#define BLOCK_READ_WORDS(p) ((p)[get_local_id(0)])
#elif SUBGROUP_BLOCKS
#define BLOCK_READ_WORDS(p) intel_sub_group_block_read(p)
#endif
#if SUBGROUP_BLOCKS && !EMULATE_SUBGROUPS
#define KERNEL(name) __kernel __attribute__((intel_reqd_sub_group_size(16))) void name
#else
#define KERNEL(name) __kernel void name
#endif
#define GLOBAL __global
#define LOCAL __local
#define SHARED __local
#define schar char
#define CONSTANT __constant
#define FUNCTION static inline
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
#define GROUP(d) ((int)get_group_id(d))
#define ITEM(d) ((int)get_local_id(d))
#define ITEMS(d) ((int)get_local_size(d))
#define MEM(p) __global uchar *p##_base, ulong p##_at
#define PTR(T, p) ((__global T *)(p##_base + p##_at))
#define SPACE __global uchar *space0, __global uchar *space1, __global uchar *space2, \
              __global uchar *space3
#define RESOLVE(address) resolve_address(space0, space1, space2, space3, address)
#define LOAD_HALF(p) vload_half(0, (const __global half *)(p))
#define STORE_HALF(x, p) vstore_half_rte(x, 0, (__global half *)(p))
#define AS_FLOAT(x) as_float(x)
#define EXACT_STEPS _Pragma("OPENCL FP_CONTRACT OFF")
#define ROUND_EVEN(x) rint(x)
#define AS_UINT(x) as_uint(x)
// The tile product by its definition (matmul.cl): slow, but kernels that use it are tested by it.
#if EMULATE_WIDE_TILES
#define WIDE_TILE_STORAGE(count) __local uint tile_words[count][64][4];
#define MULTIPLY_WIDE_TILES(d, a, b) \
  do { \
    const int linear = ITEM(1) * 32 + ITEM(0); \
    __local uint *mine = tile_words[linear / 64][linear % 64]; \
    mine[0] = a[0]; \
    mine[1] = a[1]; \
    mine[2] = b[0]; \
    mine[3] = b[1]; \
    BARRIER(); \
    multiply_wide_tiles(d, tile_words[linear / 64][0], linear % 64); \
    BARRIER(); \
  } while (0)
static inline float wide_of(const __local uint *words, int row, int word, int k) {
  const uint both = words[(k / 4 * 16 + row) * 4 + word + k % 4 / 2];
  return as_float(k % 2 ? both & 0xffff0000U : both << 16);
}
static inline void multiply_wide_tiles(float *d, const __local uint *words, int item) {
  for (int i = 0; i < 4; ++i) {
    for (int k = 0; k < 16; ++k) {
      d[i] = fma(wide_of(words, item / 16 * 4 + i, 0, k), wide_of(words, item % 16, 2, k), d[i]);
    }
  }
}
#endif
#define TILE_STORAGE(count) __local uint tile_words[count][32][6];
#define MULTIPLY_TILES(d, a, b) \
  do { \
    __local uint *mine = tile_words[ITEM(1)][ITEM(0)]; \
    for (int word = 0; word < 4; ++word) mine[word] = a[word]; \
    mine[4] = b[0]; \
    mine[5] = b[1]; \
    BARRIER(); \
    multiply_tiles(d, tile_words[ITEM(1)][0], ITEM(0)); \
    BARRIER(); \
  } while (0)
static inline float bf16_of(const __local uint *words, int item, int word, int half_at) {
  const uint both = words[item * 6 + word];
  return as_float(half_at ? both & 0xffff0000U : both << 16);
}
static inline void multiply_tiles(float *d, const __local uint *words, int item) {
  for (int i = 0; i < 4; ++i) {
    const int row = item / 4 + i / 2 * 8;
    const int column = item % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k) {
      const int pair = k % 8 / 2;
      const float a = bf16_of(words, row % 8 * 4 + pair, row / 8 + k / 8 * 2, k % 2);
      const float b = bf16_of(words, column * 4 + pair, 4 + k / 8, k % 2);
      d[i] = fma(a, b, d[i]);
    }
  }
}
static inline __global uchar *resolve_address(__global uchar *space0, __global uchar *space1,
                                              __global uchar *space2, __global uchar *space3,
                                              ulong address) {
  const uint number = (uint)(address >> 48);
  __global uchar *base = number == 0   ? space0
                         : number == 1 ? space1
                         : number == 2 ? space2
                                       : space3;
  return base + (address & 0xffffffffffffUL);
}
#line 1
)cl";

}  // namespace terrace::device::cl

#endif  // TERRACE_DEVICE_OPENCL_OPENCL_PRELUDE_H_
