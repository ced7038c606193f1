// The kernels, written once over sixteen lanes: F (floats), I (int32), B (64 bytes). A variant's
// translation unit includes its simd_*.h, then this file. Everything has internal linkage, and no
// library template is used, so that code for one instruction set cannot leak into another variant.
//
// Sums run in one fixed order for each result: blocks of a row in order, one accumulator (float
// formats: four, by column mod 4; attention: keys in order inside chunks of 64). Results therefore
// do not depend on tiling, on the split over threads or on other rows of a batch.
#ifndef TERRACE_OPS_CPU_KERNELS_IMPL_H_
#define TERRACE_OPS_CPU_KERNELS_IMPL_H_

#include "ops/cpu/kernels.h"
#include "ops/cpu/kernels_attention.h"
#include "ops/cpu/kernels_blocks.h"
#include "ops/cpu/kernels_elementwise.h"
#include "ops/cpu/kernels_float.h"
#include "ops/cpu/kernels_kv.h"
#include "ops/cpu/kernels_measure.h"
#include "ops/cpu/kernels_quantize.h"
#include "ops/cpu/kernels_scaled.h"
#ifdef TERRACE_HAS_WORDS
#include "ops/cpu/kernels_words.h"
#endif

namespace terrace::ops::cpu {
namespace {

constexpr MatMulFn MatMulOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return FloatMatMul<WeightF32>;
    case DType::kF16:
      return FloatMatMul<WeightF16>;
    case DType::kBF16:
      return FloatMatMul<WeightBF16>;
    case DType::kF8E4M3:
      return FloatMatMul<WeightF8<3>>;
    case DType::kF8E5M2:
      return FloatMatMul<WeightF8<2>>;
    case DType::kW8A8:
      return ScaledMatMul;
    default:
      return ForBlockFormat(dtype, []<class Fm>() -> MatMulFn { return QuantMatMul<Fm>; });
  }
}

constexpr Kernels MakeKernels() {
  Kernels k = {};
  k.tile_rows = kTileRows;
  for (int i = 0; i < kDTypeCount; ++i) k.matmul[i] = MatMulOf(static_cast<DType>(i));
#ifdef TERRACE_HAS_WORDS
  for (int i = 0; i < kDTypeCount; ++i) k.word_matmul[i] = WordMatMulOf(static_cast<DType>(i));
  k.quantize_words = QuantizeWordsRow;
  k.word_min_rows = 40;
#endif
  k.quantize_row = QuantizeRow;
  k.quantize_whole_row = QuantizeWholeRow;
  k.rms_norm = RmsNormRow;
  k.glu = GluRow;
  k.add = AddRow;
  k.scale = ScaleRow;
  k.softcap = SoftcapRow;
  k.rope = RopeRow;
  k.store_kv = StoreKvToken;
#ifdef TERRACE_HAS_TRANSPOSE
  k.store_key_tile = StoreKeyTile;
#endif
  k.attention = AttentionRange;
  k.read = ReadAll;
  k.int8_rounds = Int8Rounds;
  k.int8_step_ops = 128;
  k.word_rounds = kWordRounds;
  k.word_step_ops = 64;
  k.float_rounds = FloatRounds;
  return k;
}

constexpr Kernels kKernels = MakeKernels();

}  // namespace
}  // namespace terrace::ops::cpu

#endif  // TERRACE_OPS_CPU_KERNELS_IMPL_H_
