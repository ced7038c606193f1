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
// Tiles of columns between two stores of sums: 16 KiB of two groups stay in the first-level cache.
constexpr int32_t kCodeSteps = 8;
// Rows of a pass: their codes stay in the second level.
constexpr int32_t kCodePassBytes = 768 << 10;

// Up to 32 rows by up to two groups over `steps` tiles of columns.
struct CodeBlock {
  const int8_t* a;   // tiles of the first 16 rows
  int64_t a_stride;  // to those of the next 16
  const uint8_t* b[2];
  int32_t steps;
  SumPlace sums;
  bool begin;
};

// Weights that are asked for between products, a few lines at a time: many at once would take all
// places of the first-level cache's queue, and tiles that come from the second level would wait.
struct LinesAhead {
  const uint8_t* at[2];  // of two groups
  int32_t each;          // lines of each a step
  inline __attribute__((always_inline)) void Step() {
    for (int32_t i = 0; i < each; ++i) {
      PrefetchFar(at[0]);
      PrefetchFar(at[1]);
      at[0] += 64;
      at[1] += 64;
    }
  }
};

template <int kM, int kN>
void MultiplyCodes(const CodeBlock& t, LinesAhead lines) {
  LoadSums<kM, kN>(t.sums, t.begin);
  const int8_t* const a1 = t.a + t.a_stride;
  for (int32_t k = 0; k < t.steps; ++k) {
    lines.Step();
    _tile_loadd(6, t.b[0] + int64_t{k} * kTileBytes, 64);
    _tile_loadd(4, t.a + int64_t{k} * kTileBytes, 64);
    _tile_dpbsud(0, 4, 6);
    if constexpr (kN > 1) {
      _tile_loadd(7, t.b[1] + int64_t{k} * kTileBytes, 64);
      _tile_dpbsud(1, 4, 7);
    }
    if constexpr (kM > 1) {
      _tile_loadd(5, a1 + int64_t{k} * kTileBytes, 64);
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
  // What comes next: the same columns of the next groups, or a few rows' only weights.
  const int64_t ahead = n1 - n0 > 32 ? kN * group_bytes : 4 * kTileBytes;
  const int32_t blocks = (n1 - n0 + 31) / 32;
  const int32_t each = (kTileBytes / 64 + blocks - 1) / blocks;
  CodeBlock t = {};
  t.a_stride = int64_t{a.cols} * kMatrixTile;
  for (int32_t k = 0; k < all; k += kCodeSteps) {
    t.steps = all - k < kCodeSteps ? all - k : kCodeSteps;
    t.begin = k == 0;
    for (int j = 0; j < kN; ++j) t.b[j] = group + j * group_bytes + int64_t{k} * kTileBytes;
    for (int32_t n = n0; n < n1; n += 32) {
      t.a = a.x8 + int64_t{n} * a.cols + int64_t{k} * kTileBytes;
      t.sums = SumPlace::Packed<kN>(sums + (n - n0) / 16 * kN * 256);
      const int64_t begin = ahead + int64_t{(n - n0) / 32} * t.steps * each * 64;
      const LinesAhead lines = {{t.b[0] + begin, t.b[kN - 1] + begin}, each};
      if (n1 - n > 16) {
        MultiplyCodes<2, kN>(t, lines);
      } else {
        MultiplyCodes<1, kN>(t, lines);
      }
    }
  }
}

// x8 holds tiles of 16 rows by 64 columns, [tile of rows][tile of columns], rows filled up with
// zeros.
void TileScaledMatMul(const MatMulArgs& a) {
  const Tiles tiles;
  PrefetchStart(a.weight);
  const int64_t group_bytes = int64_t{a.cols + 4} * kLanes;
  int32_t* const sums = reinterpret_cast<int32_t*>(a.scratch);
  const int32_t most = kCodePassBytes / a.cols / 32 * 32;
  const int32_t rows = EvenPart(a.n, most < 32 ? 32 : most > kPassRows ? kPassRows : most, 32);
  for (int32_t n0 = 0; n0 < a.n; n0 += rows) {
    const int32_t n1 = a.n - n0 < rows ? a.n : n0 + rows;
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
