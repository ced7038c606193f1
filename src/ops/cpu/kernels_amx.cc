// The "amx" variant: the kernels of "avx512vnni", and tiles for many rows.
#if defined(__x86_64__)

#include "ops/cpu/simd_avx512.h"
// The kernels need the lanes above.
#include "ops/cpu/kernels_amx.h"
#include "ops/cpu/kernels_amx_attention.h"
#include "ops/cpu/kernels_amx_glu.h"
#include "ops/cpu/kernels_amx_int8.h"
#include "ops/cpu/kernels_amx_w8a8.h"
#include "ops/cpu/variants.h"

namespace terrace::ops::cpu {
namespace {

constexpr Kernels MakeAmxKernels() {
  Kernels k = MakeKernels();
  for (int i = 0; i < kDTypeCount; ++i) {
    k.tile_matmul[i] = TileMatMulOf(static_cast<DType>(i));
    k.tile_glu_matmul[i] = TileGluMatMulOf(static_cast<DType>(i));
  }
  k.tile_min_rows = 32;
  for (int i = 0; i < kDTypeCount; ++i) {
    k.tile_quant_matmul[i] = TileQuantMatMulOf(static_cast<DType>(i));
  }
  k.tile_quant_matmul[static_cast<int>(DType::kW8A8)] = TileScaledMatMul;
  // Up to 16 rows, dot products from registers keep up with memory better (docs/PERFORMANCE.md).
  k.tile_quant_min_rows = 17;
  k.tile_scaled_min_rows = 5;
  k.to_bf16 = ToBf16;
  k.tile_attention = TileAttention;
  // Half a tile of units: from there on the tiles' products take less time than reading keys and
  // values, while those of vectors take more with each row.
  k.tile_attention_min_rows = 8;
  k.int8_rounds = TileInt8Rounds;
  k.int8_step_ops = 32768;
  k.word_rounds = TilePairRounds;
  k.word_step_ops = 16384;
  return k;
}

constexpr Kernels kAmxKernels = MakeAmxKernels();

}  // namespace

const Kernels& AmxKernels() { return kAmxKernels; }

}  // namespace terrace::ops::cpu

#endif  // defined(__x86_64__)
