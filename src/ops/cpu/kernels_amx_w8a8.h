// W8A8 for more than a few rows with the tiles of AMX: whole rows are summed in integers, as the
// other kernels do it, so that results have the same bits. Weights are multiplied as they are
// stored: 64 columns of a row group are a tile. Included by one translation unit after
// kernels_amx.h.
#ifndef TERRACE_OPS_CPU_KERNELS_AMX_W8A8_H_
#define TERRACE_OPS_CPU_KERNELS_AMX_W8A8_H_

#include "ops/cpu/kernels_amx.h"

namespace terrace::ops::cpu {
namespace {

constexpr int32_t kCodeColumns = 64;  // of a tile of codes
// Tiles of columns between two stores of sums: 32 KiB of two groups stay in the first-level cache.
constexpr int32_t kCodeSteps = 16;

// Up to 32 rows by up to two groups over `steps` tiles of columns.
struct CodeBlock {
  const int8_t* a;  // 64 columns of 16 rows, `row_bytes` apart
  int64_t row_bytes;
  const uint8_t* b[2];
  int32_t steps;
  SumPlace sums;
  bool begin;
};

template <int kM, int kN>
void MultiplyCodes(const CodeBlock& t) {
  LoadSums<kM, kN>(t.sums, t.begin);
  const int8_t* const a1 = t.a + 16 * t.row_bytes;
  for (int32_t k = 0; k < t.steps; ++k) {
    _tile_loadd(6, t.b[0] + int64_t{k} * kTileBytes, 64);
    _tile_loadd(4, t.a + k * kCodeColumns, t.row_bytes);
    _tile_dpbsud(0, 4, 6);
    if constexpr (kN > 1) {
      _tile_loadd(7, t.b[1] + int64_t{k} * kTileBytes, 64);
      _tile_dpbsud(1, 4, 7);
    }
    if constexpr (kM > 1) {
      _tile_loadd(5, a1 + k * kCodeColumns, t.row_bytes);
      _tile_dpbsud(2, 5, 6);
      if constexpr (kN > 1) _tile_dpbsud(3, 5, 7);
    }
  }
  StoreSums<kM, kN>(t.sums);
}

// Sums of rows [n0, n1) of kN groups from `g` on.
template <int kN>
void MultiplyCodePanel(const MatMulArgs& a, int32_t g, int32_t n0, int32_t n1, int32_t* sums) {
  const int64_t group_bytes = int64_t{a.cols + 4} * kLanes;
  const uint8_t* const group = reinterpret_cast<const uint8_t*>(a.weight) + g * group_bytes + 64;
  const int32_t all = a.cols / kCodeColumns;
  CodeBlock t = {};
  t.row_bytes = a.cols;
  for (int32_t k = 0; k < all; k += kCodeSteps) {
    t.steps = all - k < kCodeSteps ? all - k : kCodeSteps;
    t.begin = k == 0;
    for (int j = 0; j < kN; ++j) {
      t.b[j] = group + j * group_bytes + int64_t{k} * kTileBytes;
      // What comes next: the same columns of the next groups, or a few rows' only weights.
      const uint8_t* const next = t.b[j] + (n1 - n0 > 32 ? kN * group_bytes : 4 * kTileBytes);
      for (int32_t i = 0; i < t.steps * kTileBytes; i += 64) PrefetchFar(next + i);
    }
    for (int32_t n = n0; n < n1; n += 32) {
      t.a = a.x8 + int64_t{n} * a.cols + k * kCodeColumns;
      t.sums = SumPlace::Packed<kN>(sums + (n - n0) / 16 * kN * 256);
      const int32_t rows = n1 - n < 32 ? n1 - n : 32;
      if (rows > 16) {
        MultiplyCodes<2, kN>(t);
      } else {
        MultiplyCodes<1, kN>(t);
      }
    }
  }
}

// x8 holds whole rows one after the other, filled up with zeros to a multiple of 16.
void TileScaledMatMul(const MatMulArgs& a) {
  const Tiles tiles;
  PrefetchStart(a.weight);
  const int64_t group_bytes = int64_t{a.cols + 4} * kLanes;
  int32_t* const sums = reinterpret_cast<int32_t*>(a.scratch);
  for (int32_t n0 = 0; n0 < a.n; n0 += kPassRows) {
    const int32_t n1 = a.n - n0 < kPassRows ? a.n : n0 + kPassRows;
    const int64_t pair_sums = PairSums(n1 - n0);
    for (int32_t g0 = 0; g0 < a.groups; g0 += kWriteGroups) {
      const int32_t g1 = a.groups - g0 < kWriteGroups ? a.groups : g0 + kWriteGroups;
      int32_t g = g0;
      for (; g + 2 <= g1; g += 2) {
        MultiplyCodePanel<2>(a, g, n0, n1, sums + (g - g0) / 2 * pair_sums);
      }
      if (g < g1) MultiplyCodePanel<1>(a, g, n0, n1, sums + (g - g0) / 2 * pair_sums);
      WriteRows(a, n0, n1, g0, g1, pair_sums, [&](int64_t at, int32_t n, int32_t group) {
        const F scale = Load(reinterpret_cast<const float*>(a.weight + group * group_bytes));
        const I sum = AddI(ShlI<7>(SetI(-a.x8_sum[n])), LoadI(sums + at));  // biased by 128
        return Mul(Mul(ToF(sum), scale), Set1(a.x8_scale[n]));
      });
    }
  }
}

}  // namespace
}  // namespace terrace::ops::cpu

#endif  // TERRACE_OPS_CPU_KERNELS_AMX_W8A8_H_
