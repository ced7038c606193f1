// Matrix multiplication of block formats: 8-bit dot products of each 32 columns. Part of
// kernels_impl.h.
#ifndef TERRACE_OPS_CPU_KERNELS_BLOCKS_H_
#define TERRACE_OPS_CPU_KERNELS_BLOCKS_H_

#include "ops/cpu/kernels_formats.h"
#include "ops/cpu/kernels_stream.h"

namespace terrace::ops::cpu {
namespace {

// acc[t] += 16 rows times 32 columns of activation row t, for the rows of one tile.
template <class Fm, int kTile>
inline __attribute__((always_inline)) void AddGroup(const uint8_t* planes,
                                                    const BlockScales<Fm>& scales, const XBlock* x,
                                                    F* acc) {
  // Codes are 2^kShift too large: sums begin with that times -sum(q).
  const auto whole = [](const XBlock& b) {
    if constexpr (Fm::kShift < 0) return ZeroI();
    if constexpr (Fm::kShift == 3) return SetI(b.neg_sum_8);
    return ShlI<Fm::kShift >= 0 ? Fm::kShift : 0>(SetI(b.neg_sum));
  };
  const auto half = [](const XBlock& b, int i) {
    if constexpr (Fm::kShift < 0) return ZeroI();
    constexpr int kDown = Fm::kShift >= 0 ? 5 - Fm::kShift : 0;
    const I sum = SetI(b.neg_sum_half_32[i]);
    if constexpr (kDown == 0) return sum;
    return ShrI<kDown>(sum);
  };
  B w[8];
  Fm::Unpack(planes, w);
#pragma GCC unroll 16
  for (int t = 0; t < kTile; ++t) {
    const XBlock& b = x[t];
    if constexpr (Fm::kHalves) {
      I a0 = half(b, 0);
      I a1 = half(b, 1);
#pragma GCC unroll 16
      for (int g = 0; g < 4; ++g) {
        a0 = Dot4<Fm::kWide>(a0, w[g], b.q + 4 * g);
        a1 = Dot4<Fm::kWide>(a1, w[g + 4], b.q + 4 * g + 16);
      }
      scales.AddHalves(ToF(a0), ToF(a1), b, &acc[t]);
    } else {
      I a = whole(b);
#pragma GCC unroll 16
      for (int g = 0; g < 8; ++g) a = Dot4<Fm::kWide>(a, w[g], b.q + 4 * g);
      scales.Add(ToF(a), b, &acc[t]);
    }
  }
}

// One group of 16 output features against one tile of activation rows.
template <class Fm, int kTile>
void QuantTile(const uint8_t* weight, int32_t cols, const XBlock* x, F* out) {
  F acc[kTile];
#pragma GCC unroll 16
  for (int t = 0; t < kTile; ++t) acc[t] = Set1(0.0f);
  for (int32_t c = 0; c < cols; c += Fm::kGroups * kBlock) {
    const uint8_t* group = weight + Fm::kHeader;
    for (int g = 0; g < Fm::kGroups; ++g) {
#pragma GCC unroll 16
      for (int j = 0; j < (Fm::kGroupBytes + 63) / 64; ++j) {
        PrefetchStream(group + j * 64);
      }
      AddGroup<Fm, kTile>(group + Fm::kScaleBytes + Fm::kMinBytes, BlockScales<Fm>(weight, group),
                          x, acc);
      group += Fm::kGroupBytes;
      x += kTile;
    }
    weight += Fm::kBlockBytes;
  }
#pragma GCC unroll 16
  for (int t = 0; t < kTile; ++t) out[t] = acc[t];
}

template <class Fm>
void QuantMatMul(const MatMulArgs& a) {
  PrefetchStart(a.weight);
  if (a.n <= 4) {  // another core wrote them a moment ago
    for (int32_t i = 0; i < a.n * (a.cols / kBlock); ++i) Prefetch(a.xq + i);
  }
  const int32_t blocks = a.cols / kBlock;
  const int32_t group_bytes = a.cols / (Fm::kGroups * kBlock) * Fm::kBlockBytes;
  const int32_t chunk = ChunkRows(blocks * static_cast<int32_t>(sizeof(XBlock)), kTileRows);
  for (int32_t n0 = 0; n0 < a.n; n0 += chunk) {
    const int32_t n1 = n0 + chunk < a.n ? n0 + chunk : a.n;
    for (int32_t g = 0; g < a.groups; ++g) {
      const uint8_t* weight =
          reinterpret_cast<const uint8_t*>(a.weight) + static_cast<int64_t>(g) * group_bytes;
      for (int32_t n = n0; n < n1; n += kTileRows) {
        const int count = n1 - n < kTileRows ? n1 - n : kTileRows;
        const XBlock* x = a.xq + static_cast<int64_t>(n) * blocks;
        F acc[kTileRows];
        WithTileHeight(count, [&]<int kTile>() { QuantTile<Fm, kTile>(weight, a.cols, x, acc); });
        WriteTile(a, acc, g, n, count);
      }
    }
  }
}

}  // namespace
}  // namespace terrace::ops::cpu

#endif  // TERRACE_OPS_CPU_KERNELS_BLOCKS_H_
