// Two matrices whose results are gated, activation(gate x) * (up x), in one pass of tiles: sums of
// both stay in the second-level cache until they are one BF16 number, of which the next matrix
// makes its products. Included by one translation unit after kernels_amx.h.
#ifndef TERRACE_OPS_CPU_KERNELS_AMX_GLU_H_
#define TERRACE_OPS_CPU_KERNELS_AMX_GLU_H_

#include "ops/cpu/kernels_amx.h"

namespace terrace::ops::cpu {
namespace {

// Makes results of the sums of a part, pairs [tile of rows][gate, up] 16 x 16, PairSums() apart.
// Rows that fill up the last tile are zeros, as their activations are.
inline void WriteGlu(const MatMulArgs& a, const TilePart& part) {
  const float* const sums = reinterpret_cast<const float*>(a.scratch);
  const int64_t pair_sums = PairSums(part.n1 - part.n0);
  const int32_t tiles = (part.n1 - part.n0 + kMatrixTile - 1) / kMatrixTile;
  for (int32_t t = 0; t < tiles; ++t) {
    uint16_t* to = a.glu + (part.n0 / kMatrixTile + t) * a.glu_stride +
                   int64_t{part.g0} * kLanes * kMatrixTile;
    for (int32_t g = part.g0; g < part.g1; g += 2, to += kBlock * kMatrixTile) {
      const float* const low = sums + (g - part.g0) * pair_sums + int64_t{t} * 512;
      const float* const high = low + pair_sums;
      for (int32_t r = 0; r < kMatrixTile; ++r) {
        const int32_t at = r * kLanes;
        const F first = Glu(a.activation, Load(low + at), Load(low + 256 + at));
        const F second = Glu(a.activation, Load(high + at), Load(high + 256 + at));
        StoreI(to + r * kBlock, reinterpret_cast<I>(_mm512_cvtne2ps_pbh(second, first)));
      }
    }
  }
}

template <class P>
void TileGluMatMul(const MatMulArgs& a) {
  const Tiles tiles;
  const int64_t bytes = P::GroupBytes(a.cols);
  const uint8_t* const gate = reinterpret_cast<const uint8_t*>(a.weight);
  const uint8_t* const up = reinterpret_cast<const uint8_t*>(a.up);
  const int32_t columns = EvenPart(a.cols, kPassColumns, 256);
  // A group is a pair here.
  const int32_t groups =
      EvenPart(a.groups, (columns >= a.cols ? kWriteGroups : kPassGroups) / 2, 2);
  ForParts(a, columns, groups, [&](const TilePart& part) {
    const int64_t first = part.g0 * bytes;
    MultiplyPart<P>(a, part, {{gate + first, up + first}, bytes}, part.g1 - part.g0, false);
    if (part.last) WriteGlu(a, part);
  });
}

constexpr MatMulFn TileGluMatMulOf(DType dtype) {
  return ForPairs(dtype, []<class P>() -> MatMulFn { return TileGluMatMul<P>; });
}

}  // namespace
}  // namespace terrace::ops::cpu

#endif  // TERRACE_OPS_CPU_KERNELS_AMX_GLU_H_
