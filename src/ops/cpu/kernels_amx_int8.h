// Block formats for more than a few rows with the tiles of AMX: 8-bit dot products of 32 (or twice
// 16) columns as the other kernels form them, in integers, and the same float32 operations on them
// in the same order, so that results have the same bits. Included by one translation unit after
// kernels_amx.h.
#ifndef TERRACE_OPS_CPU_KERNELS_AMX_INT8_H_
#define TERRACE_OPS_CPU_KERNELS_AMX_INT8_H_

#include "ops/cpu/kernels_amx.h"

namespace terrace::ops::cpu {
namespace {

// Tiles 0 and 1: sums [kH][16]; 2 and 3: activations, kH rows of `columns` bytes; 4 and 5: codes of
// 16 rows, 4 columns a row.
template <int kH>
TileShapes CodeShapes(int columns) {
  TileShapes shapes = {};
  for (int i = 0; i < 2; ++i) {
    shapes.rows[i] = kH;
    shapes.bytes[i] = 64;
    shapes.rows[2 + i] = kH;
    shapes.bytes[2 + i] = static_cast<uint16_t>(columns);
    shapes.rows[4 + i] = static_cast<uint8_t>(columns / 4);
    shapes.bytes[4 + i] = 64;
  }
  return shapes;
}

// acc[t] += 16 rows times 32 columns of activation row t; see AddGroup. `room` is 2560 bytes.
template <class Fm, int kH>
inline __attribute__((always_inline)) void AddTileGroup(const uint8_t* planes, const F* scale,
                                                        const F* extra, const XBlock* x,
                                                        uint8_t* room, F* acc) {
  B w[8];
  Fm::Unpack(planes, w);
#pragma GCC unroll 8
  for (int g = 0; g < 8; ++g) {
    if constexpr (Fm::kShift >= 0) {
      w[g] = _mm512_sub_epi8(w[g], _mm512_set1_epi8(static_cast<char>(1 << Fm::kShift)));
    }
    StoreI(room + g * 64, w[g]);
  }
  float* const sums = reinterpret_cast<float*>(room + 512);
  Tiles::Fence(room);
  _tile_loadd(4, room, 64);
  _tile_loadd(2, x->q, 64);
  _tile_zero(0);
  _tile_dpbssd(0, 2, 4);
  _tile_stored(0, sums, 64);
  if constexpr (Fm::kHalves) {
    _tile_loadd(5, room + 256, 64);
    _tile_loadd(3, x->q + 16, 64);
    _tile_zero(1);
    _tile_dpbssd(1, 3, 5);
    _tile_stored(1, sums + kH * 16, 64);
  }
#pragma GCC unroll 16
  for (int t = 0; t < kH; ++t) {
    const XBlock& b = x[t];
    const F a = ToF(LoadI(sums + t * 16));
    if constexpr (Fm::kHalves) {
      const F a1 = ToF(LoadI(sums + (kH + t) * 16));
      acc[t] = Fma(Fma(a, scale[0], Mul(a1, scale[1])), Set1(b.d), acc[t]);
      if constexpr (Fm::kHasExtra) {
        acc[t] = Fma(extra[0], Set1(b.ds_half[0]), acc[t]);
        acc[t] = Fma(extra[1], Set1(b.ds_half[1]), acc[t]);
      }
    } else {
      acc[t] = Fma(Mul(a, scale[0]), Set1(b.d), acc[t]);
      if constexpr (Fm::kHasExtra) acc[t] = Fma(extra[0], Set1(b.ds), acc[t]);
    }
  }
}

// One group of 16 output features against one tile of kH activation rows; see QuantTile.
template <class Fm, int kH>
void TileQuantTile(const uint8_t* weight, int32_t cols, const XBlock* x, F* out) {
  alignas(64) uint8_t room[2][512 + 2 * 1024];
  F acc[kH];
#pragma GCC unroll 16
  for (int t = 0; t < kH; ++t) acc[t] = Set1(0.0f);
  int turn = 0;
  for (int32_t c = 0; c < cols; c += Fm::kGroups * kBlock) {
    const F d = Fm::LoadD(weight);
    F dextra = Set1(0.0f);
    if constexpr (Fm::kHasExtra) dextra = LoadHalf(weight + Fm::kDBytes);
    if constexpr (Fm::kMin) dextra = Sub(Set1(0.0f), dextra);
    const uint8_t* group = weight + Fm::kHeader;
    for (int g = 0; g < Fm::kGroups; ++g) {
#pragma GCC unroll 16
      for (int j = 0; j < (Fm::kGroupBytes + 63) / 64; ++j) {
        Prefetch(group + kPrefetchBytes + j * 64);
      }
      F scale[2] = {d, d};
      F extra[2] = {dextra, dextra};
#pragma GCC unroll 2
      for (int s = 0; s < Fm::kSubs; ++s) {
        scale[s] = Mul(d, ToF(LoadI8(group + s * 16)));
        if constexpr (Fm::kMin) {
          extra[s] = Mul(dextra, ToF(LoadU8(group + Fm::kScaleBytes + s * 16)));
        }
      }
      AddTileGroup<Fm, kH>(group + Fm::kScaleBytes + Fm::kMinBytes, scale, extra, x, room[turn],
                           acc);
      turn ^= 1;
      group += Fm::kGroupBytes;
      x += kH;
    }
    weight += Fm::kBlockBytes;
  }
#pragma GCC unroll 16
  for (int t = 0; t < kH; ++t) out[t] = acc[t];
}

template <class Fm, int kH>
void TileQuantRows(const MatMulArgs& a) {
  const Tiles tiles(CodeShapes<kH>(Fm::kHalves ? 16 : 32));
  const int32_t blocks = a.cols / kBlock;
  const int64_t group_bytes = int64_t{a.cols} / (Fm::kGroups * kBlock) * Fm::kBlockBytes;
  const int32_t chunk = ChunkRows(blocks * static_cast<int32_t>(sizeof(XBlock)), kH);
  for (int32_t n0 = 0; n0 < a.n; n0 += chunk) {
    const int32_t n1 = n0 + chunk < a.n ? n0 + chunk : a.n;
    for (int32_t g = 0; g < a.groups; ++g) {
      const uint8_t* weight = reinterpret_cast<const uint8_t*>(a.weight) + g * group_bytes;
      for (int32_t n = n0; n < n1; n += kH) {
        F acc[kH];
        TileQuantTile<Fm, kH>(weight, a.cols, a.xq + int64_t{n} * blocks, acc);
        WriteTile(a, acc, g, n, n1 - n < kH ? n1 - n : kH);
      }
    }
  }
}

template <class Fm>
void TileQuantMatMul(const MatMulArgs& a) {
  PrefetchStart(a.weight);
  switch (TileQuantHeight(a.n)) {
    case 8:
      return TileQuantRows<Fm, 8>(a);
    case 12:
      return TileQuantRows<Fm, 12>(a);
    default:
      return TileQuantRows<Fm, 16>(a);
  }
}

constexpr MatMulFn TileQuantMatMulOf(DType dtype) {
  return ForBlockFormat(dtype, []<class Fm>() -> MatMulFn { return TileQuantMatMul<Fm>; });
}

}  // namespace
}  // namespace terrace::ops::cpu

#endif  // TERRACE_OPS_CPU_KERNELS_AMX_INT8_H_
