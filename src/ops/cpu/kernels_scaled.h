// Matrix multiplication of W8A8: whole rows are summed in integers. Part of kernels_impl.h.
#ifndef TERRACE_OPS_CPU_KERNELS_SCALED_H_
#define TERRACE_OPS_CPU_KERNELS_SCALED_H_

#include "ops/cpu/kernels_stream.h"

namespace terrace::ops::cpu {
namespace {

// One group of 16 output features against one tile: whole rows are summed in integers.
template <int kTile>
void ScaledTile(const uint8_t* weight, int32_t cols, const int8_t* x, const float* scale,
                const int32_t* sum, F* out) {
  const F weight_scale = Load(reinterpret_cast<const float*>(weight));
  weight += kLanes * 4;
  I acc[kTile];
#pragma GCC unroll 16
  for (int t = 0; t < kTile; ++t) acc[t] = ShlI<7>(SetI(-sum[t]));  // codes are biased by 128
  for (int32_t c = 0; c < cols; c += kBlock) {
#pragma GCC unroll 16
    for (int g = 0; g < 8; ++g) {
      const B w = LoadBytes(weight + g * 64);
      PrefetchStream(weight + g * 64);
#pragma GCC unroll 16
      for (int t = 0; t < kTile; ++t) acc[t] = Dot4<true>(acc[t], w, x + t * kBlock + 4 * g);
    }
    weight += kLanes * kBlock;
    x += kTile * kBlock;
  }
#pragma GCC unroll 16
  for (int t = 0; t < kTile; ++t) {
    out[t] = Mul(Mul(ToF(acc[t]), weight_scale), Set1(scale[t]));
  }
}

void ScaledMatMul(const MatMulArgs& a) {
  PrefetchStart(a.weight);
  const int64_t blocks = a.cols / kBlock;
  const int64_t group_bytes = int64_t{a.cols + 4} * kLanes;
  const int32_t chunk = ChunkRows(a.cols, kTileRows);
  for (int32_t n0 = 0; n0 < a.n; n0 += chunk) {
    const int32_t n1 = n0 + chunk < a.n ? n0 + chunk : a.n;
    for (int32_t g = 0; g < a.groups; ++g) {
      const uint8_t* weight = reinterpret_cast<const uint8_t*>(a.weight) + g * group_bytes;
      for (int32_t n = n0; n < n1; n += kTileRows) {
        const int count = n1 - n < kTileRows ? n1 - n : kTileRows;
        const int8_t* x = a.x8 + n * blocks * kBlock;
        F acc[kTileRows];
        WithTileHeight(count, [&]<int kTile>() {
          ScaledTile<kTile>(weight, a.cols, x, a.x8_scale + n, a.x8_sum + n, acc);
        });
        WriteTile(a, acc, g, n, count);
      }
    }
  }
}

}  // namespace
}  // namespace terrace::ops::cpu

#endif  // TERRACE_OPS_CPU_KERNELS_SCALED_H_
