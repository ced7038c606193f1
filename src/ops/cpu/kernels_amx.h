// Matrix multiplication of many rows with the tiles of AMX: weights become BF16 pairs in this
// thread's scratch, 32 output features at a time, and meet all activation rows, which have been
// rounded to BF16 once for all targets. Included by one translation unit after kernels_impl.h.
//
// Tiles 0 to 3 hold sums of 2 x 2 blocks of 16 rows by 16 features, 4 and 5 activations, 6 and 7
// weights. Sums run over the columns in order, in float32, so that a row's result depends neither
// on the other rows nor on how ranges are cut.
#ifndef TERRACE_OPS_CPU_KERNELS_AMX_H_
#define TERRACE_OPS_CPU_KERNELS_AMX_H_

#include "ops/cpu/kernels_impl.h"

namespace terrace::ops::cpu {
namespace {

constexpr int kTileBytes = 1024;  // 16 rows of 64 bytes

// Rows, and bytes of each, of the eight tiles.
struct TileShapes {
  uint8_t rows[8];
  uint16_t bytes[8];
};
constexpr TileShapes kFullTiles = {{16, 16, 16, 16, 16, 16, 16, 16},
                                   {64, 64, 64, 64, 64, 64, 64, 64}};

// The tiles of the calling thread, for as long as this lives.
class Tiles {
 public:
  explicit Tiles(const TileShapes& shapes = kFullTiles) {
    struct alignas(64) {
      uint8_t palette;
      uint8_t start_row;
      uint8_t reserved[14];
      uint16_t row_bytes[16];
      uint8_t rows[16];
    } config = {};
    config.palette = 1;
    for (int i = 0; i < 8; ++i) {
      config.row_bytes[i] = shapes.bytes[i];
      config.rows[i] = shapes.rows[i];
    }
    Fence(&config);  // the intrinsic of GCC 12 does not say what it reads
    _tile_loadconfig(&config);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  // Orders plain stores before tile loads, which the compiler does not know to read memory.
  static void Fence(const void* p) { asm volatile("" : : "r"(p) : "memory"); }
};

// ---- Weights to BF16 pairs
// -----------------------------------------------------------------------

// Two columns of 16 rows as BF16 pairs, rounded to nearest. Not for every NaN: one whose mantissa
// is all ones would turn into a number.
inline I RoundPair(F low, F high) {
  const I half = SetI(0x8000);
  const I a = _mm512_srli_epi32(AddI(AsI(low), half), 16);
  const I b = AddI(AsI(high), half);
  return _mm512_ternarylogic_epi32(b, SetI(static_cast<int32_t>(0xffff0000u)), a, 0xea);
}

// The same for any floats.
inline I ConvertPair(F low, F high) {
  const I both = reinterpret_cast<I>(_mm512_cvtne2ps_pbh(high, low));
  alignas(64) static constexpr uint16_t kOrder[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                      21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                      11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(LoadI(kOrder), both);
}

// Codes of one byte of each lane as floats, times `scale`, plus `add`. The byte is moved to where a
// float that begins with `kMagic` has units of one; `add` has taken kMagic * scale off.
template <class Fm>
struct CodeFloats {
  static constexpr float kMagic = Fm::kWide ? 256.0f : 128.0f;
  static constexpr int kUp = Fm::kWide ? 15 : 16;  // from a lane's lowest byte
  template <int kByte>
  static inline __attribute__((always_inline)) F Get(B unit, F scale, F add) {
    constexpr int kShift = kUp - 8 * kByte;
    I moved = unit;
    if constexpr (kShift > 0) moved = _mm512_slli_epi32(unit, kShift > 0 ? kShift : 0);
    if constexpr (kShift < 0) moved = _mm512_srli_epi32(unit, kShift < 0 ? -kShift : 0);
    const I mask = SetI(Fm::kWide ? 0x7f8000 : 0x7f0000);
    const I magic = SetI(Fm::kWide ? 0x43800000 : 0x43000000);
    // (moved & mask) | magic
    return Fma(AsF(_mm512_ternarylogic_epi32(moved, mask, magic, 0xea)), scale, add);
  }
};

inline F CanonicalNan(F x) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x, Set1(__builtin_nanf("")));
}

// Columns [first, first + count) of a packed row group as pairs: 1024 bytes every 32 columns. Both
// are multiples of the format's block.
template <class Fm>
struct BlockPairs {
  static constexpr bool kDirect = false;
  static int64_t GroupBytes(int32_t cols) {
    return int64_t{cols} / (Fm::kGroups * kBlock) * Fm::kBlockBytes;
  }
  static void Convert(const uint8_t* group, int32_t first, int32_t count, uint8_t* out) {
    const uint8_t* weight = group + int64_t{first} / (Fm::kGroups * kBlock) * Fm::kBlockBytes;
    constexpr float kTaken =
        CodeFloats<Fm>::kMagic + (Fm::kShift >= 0 ? 1 << (Fm::kShift >= 0 ? Fm::kShift : 0) : 0);
    for (int32_t c = 0; c < count; c += Fm::kGroups * kBlock) {
      const F d = CanonicalNan(Fm::LoadD(weight));
      F dextra = Set1(0.0f);
      if constexpr (Fm::kHasExtra) dextra = CanonicalNan(LoadHalf(weight + Fm::kDBytes));
      if constexpr (Fm::kMin) dextra = Sub(Set1(0.0f), dextra);
      const uint8_t* planes = weight + Fm::kHeader;
      for (int g = 0; g < Fm::kGroups; ++g) {
        F scale[2] = {d, d};
        F add[2] = {dextra, dextra};
#pragma GCC unroll 2
        for (int s = 0; s < Fm::kSubs; ++s) {
          scale[s] = Mul(d, ToF(LoadI8(planes + s * 16)));
          if constexpr (Fm::kMin) {
            add[s] = Mul(dextra, ToF(LoadU8(planes + Fm::kScaleBytes + s * 16)));
          }
        }
#pragma GCC unroll 2
        for (int s = 0; s < 2; ++s) add[s] = Fma(scale[s], Set1(-kTaken), add[s]);
        B w[8];
        Fm::Unpack(planes + Fm::kScaleBytes + Fm::kMinBytes, w);
#pragma GCC unroll 8
        for (int u = 0; u < 8; ++u) {
          const int s = Fm::kHalves && u >= 4 ? 1 : 0;
          const F f0 = CodeFloats<Fm>::template Get<0>(w[u], scale[s], add[s]);
          const F f1 = CodeFloats<Fm>::template Get<1>(w[u], scale[s], add[s]);
          const F f2 = CodeFloats<Fm>::template Get<2>(w[u], scale[s], add[s]);
          const F f3 = CodeFloats<Fm>::template Get<3>(w[u], scale[s], add[s]);
          StoreI(out + u * 128, RoundPair(f0, f1));
          StoreI(out + u * 128 + 64, RoundPair(f2, f3));
        }
        planes += Fm::kGroupBytes;
        out += kTileBytes;
      }
      weight += Fm::kBlockBytes;
    }
  }
};

template <class W>
struct FloatPairs {
  static constexpr bool kDirect = false;
  static int64_t GroupBytes(int32_t cols) { return int64_t{cols} * (W::kPairBytes / 2); }
  static void Convert(const uint8_t* group, int32_t first, int32_t count, uint8_t* out) {
    const uint8_t* weight = group + int64_t{first} * (W::kPairBytes / 2);
    for (int32_t c = 0; c < count; c += 2) {
      F w[2];
      W::LoadPair(weight, w);
      StoreI(out, ConvertPair(w[0], w[1]));
      weight += W::kPairBytes;
      out += 64;
    }
  }
};

// BF16 is packed as tiles take it.
struct StoredPairs {
  static constexpr bool kDirect = true;
  static int64_t GroupBytes(int32_t cols) { return int64_t{cols} * 32; }
};

// ---- Products
// ------------------------------------------------------------------------------------

// Adds the products of `steps` x 32 columns to tiles 0 .. 3; kM tiles of rows, kN of features.
template <int kM, int kN>
inline __attribute__((always_inline)) void AddProducts(const uint8_t* a0, const uint8_t* a1,
                                                       const uint8_t* b0, const uint8_t* b1,
                                                       int32_t steps) {
  for (int32_t k = 0; k < steps; ++k) {
    const int64_t at = int64_t{k} * kTileBytes;
    _tile_loadd(6, b0 + at, 64);
    _tile_loadd(4, a0 + at, 64);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kN > 1) {
      _tile_loadd(7, b1 + at, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kM > 1) {
      _tile_loadd(5, a1 + at, 64);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kN > 1) _tile_dpbf16ps(3, 5, 7);
    }
  }
}

// One block of up to 32 rows by up to 32 features over `steps` x 32 columns.
struct TileBlock {
  const uint8_t* a;     // tiles of the first 16 rows
  int64_t a_stride;     // to those of the next 16
  const uint8_t* b[2];  // tiles of weights
  int32_t steps;
  float* sums[2][2];  // 16 x 16 each, rows `stride` floats apart
  int64_t stride;
  bool begin;  // no sums yet
};

template <int kM, int kN>
void MultiplyBlock(const TileBlock& t) {
  Tiles::Fence(t.b[0]);
  if (t.begin) {
    _tile_zero(0);
    if constexpr (kN > 1) _tile_zero(1);
    if constexpr (kM > 1) _tile_zero(2);
    if constexpr (kM > 1 && kN > 1) _tile_zero(3);
  } else {
    _tile_loadd(0, t.sums[0][0], t.stride * 4);
    if constexpr (kN > 1) _tile_loadd(1, t.sums[0][1], t.stride * 4);
    if constexpr (kM > 1) _tile_loadd(2, t.sums[1][0], t.stride * 4);
    if constexpr (kM > 1 && kN > 1) _tile_loadd(3, t.sums[1][1], t.stride * 4);
  }
  AddProducts<kM, kN>(t.a, t.a + t.a_stride, t.b[0], t.b[1], t.steps);
  _tile_stored(0, t.sums[0][0], t.stride * 4);
  if constexpr (kN > 1) _tile_stored(1, t.sums[0][1], t.stride * 4);
  if constexpr (kM > 1) _tile_stored(2, t.sums[1][0], t.stride * 4);
  if constexpr (kM > 1 && kN > 1) _tile_stored(3, t.sums[1][1], t.stride * 4);
}

// How many columns of all rows of a chunk fit the second-level cache beside a pair of row groups.
inline int32_t TileColumns(int32_t n, int32_t cols) {
  constexpr int32_t kBytes = 1 << 20;
  const int32_t rows = (n < kTileRowsAtOnce ? n : kTileRowsAtOnce) + 15;
  const int32_t fit = kBytes / 2 / (rows / 16 * 16) / 256 * 256;
  const int32_t most = fit < 256 ? 256 : fit > kTileColumns ? kTileColumns : fit;
  return cols < most ? cols : most;
}

// Columns at a time, in tiles: two tiles of rows and two of features in the first-level cache.
constexpr int32_t kTileSteps = 8;

// Sums of rows [n0, n1) and kN groups from `first` on, between `out` and tiles [row tile][group].
template <int kN, bool kOut>
void MoveSums(const MatMulArgs& a, int32_t first, int32_t n0, int32_t n1, bool bias, float* sums) {
  for (int j = 0; j < kN; ++j) {
    const int32_t feature = (first + j) * kLanes;
    const int lanes = a.rows - feature < kLanes ? a.rows - feature : kLanes;
    const F add = bias ? LoadN(a.bias + feature, lanes) : Set1(0.0f);
    for (int32_t r = 0; r < n1 - n0; ++r) {
      float* const out = a.out + (n0 + r) * a.out_stride + feature;
      float* const sum = sums + (r / 16 * kN + j) * 256 + r % 16 * 16;
      if constexpr (kOut) {
        StoreN(out, Add(Load(sum), add), lanes);
      } else {
        Store(sum, LoadN(out, lanes));
      }
    }
  }
}

// Rows [n0, n1) times columns [c0, c1) of groups g and, if kN is 2, g + 1.
template <class P, int kN>
void MultiplyColumns(const MatMulArgs& a, int32_t g, int32_t n0, int32_t n1, int32_t c0,
                     int32_t c1) {
  const int64_t group_bytes = P::GroupBytes(a.cols);
  const int64_t blocks = a.cols / kBlock;
  float* const sums = reinterpret_cast<float*>(a.scratch);
  uint8_t* const scratch = reinterpret_cast<uint8_t*>(a.scratch) + kTileSumBytes;
  const uint8_t* group = reinterpret_cast<const uint8_t*>(a.weight) + g * group_bytes;
  const uint8_t* pairs[2] = {};
  for (int j = 0; j < kN; ++j) {
    if constexpr (P::kDirect) {
      pairs[j] = group + j * group_bytes + c0 / kBlock * kTileBytes;
    } else {
      uint8_t* const to = scratch + int64_t{j} * kTileColumns * 32;
      P::Convert(group + j * group_bytes, c0, c1 - c0, to);
      pairs[j] = to;
    }
  }
  // What comes next is fetched while this is computed: the next groups' same columns.
  const int64_t ahead_bytes = group_bytes * (c1 - c0) / a.cols;
  const int64_t ahead_step = ahead_bytes / ((n1 - n0 + 31) / 32) + 64;
  const uint8_t* const next = group + kN * group_bytes + group_bytes * c0 / a.cols;
  int64_t ahead = g + kN < a.groups ? 0 : ahead_bytes;
  if (c0 > 0) MoveSums<kN, false>(a, g, n0, n1, false, sums);
  TileBlock t = {};
  t.a_stride = blocks * kTileBytes;
  t.stride = 16;
  const int32_t all = (c1 - c0) / kBlock;
  for (int32_t k = 0; k < all; k += kTileSteps) {
    t.steps = all - k < kTileSteps ? all - k : kTileSteps;
    t.begin = c0 == 0 && k == 0;
    for (int j = 0; j < kN; ++j) t.b[j] = pairs[j] + k * kTileBytes;
    for (int32_t n = n0; n < n1; n += 32) {
      t.a =
          reinterpret_cast<const uint8_t*>(a.xb) + (n / 16 * blocks + c0 / kBlock + k) * kTileBytes;
      for (int i = 0; i < 2; ++i) {
        for (int j = 0; j < kN; ++j) t.sums[i][j] = sums + (((n - n0) / 16 + i) * kN + j) * 256;
      }
      for (int64_t end = ahead + ahead_step; ahead < end && ahead < ahead_bytes; ahead += 64) {
        for (int j = 0; j < kN; ++j) PrefetchFar(next + j * group_bytes + ahead);
      }
      if (n1 - n > 16) {
        MultiplyBlock<2, kN>(t);
      } else {
        MultiplyBlock<1, kN>(t);
      }
    }
  }
  MoveSums<kN, true>(a, g, n0, n1, a.bias != nullptr && c1 == a.cols, sums);
}

template <class P>
void TileMatMul(const MatMulArgs& a) {
  const Tiles tiles;
  const int32_t columns = TileColumns(a.n, a.cols);
  for (int32_t n0 = 0; n0 < a.n; n0 += kTileRowsAtOnce) {
    const int32_t n1 = a.n - n0 < kTileRowsAtOnce ? a.n : n0 + kTileRowsAtOnce;
    for (int32_t c0 = 0; c0 < a.cols; c0 += columns) {
      const int32_t c1 = a.cols - c0 < columns ? a.cols : c0 + columns;
      int32_t g = 0;
      for (; g + 2 <= a.groups; g += 2) MultiplyColumns<P, 2>(a, g, n0, n1, c0, c1);
      if (g < a.groups) MultiplyColumns<P, 1>(a, g, n0, n1, c0, c1);
    }
  }
}

// One row of activations, rounded to nearest even: 32 values every `stride` values of `out`.
void ToBf16(const float* x, int32_t cols, uint16_t* out, int64_t stride) {
  for (int32_t c = 0; c < cols; c += kBlock, out += stride) {
    StoreI(out, reinterpret_cast<I>(_mm512_cvtne2ps_pbh(Load(x + c + kLanes), Load(x + c))));
  }
}

// ---- Measures
// ------------------------------------------------------------------------------------

int32_t TileInt8Rounds(int64_t rounds) {
  const Tiles tiles;
  for (int64_t r = 0; r < rounds; ++r) {
#define TERRACE_ROUND    \
  _tile_dpbusd(0, 4, 6); \
  _tile_dpbusd(1, 4, 7); \
  _tile_dpbusd(2, 5, 6); \
  _tile_dpbusd(3, 5, 7);
    TERRACE_ROUND TERRACE_ROUND TERRACE_ROUND
#undef TERRACE_ROUND
  }
  return 0;
}

int32_t TilePairRounds(int64_t rounds) {
  const Tiles tiles;
  for (int64_t r = 0; r < rounds; ++r) {
#define TERRACE_ROUND      \
  _tile_dpbf16ps(0, 4, 6); \
  _tile_dpbf16ps(1, 4, 7); \
  _tile_dpbf16ps(2, 5, 6); \
  _tile_dpbf16ps(3, 5, 7);
    TERRACE_ROUND TERRACE_ROUND TERRACE_ROUND
#undef TERRACE_ROUND
  }
  return 0;
}

// ---- The table
// -----------------------------------------------------------------------------------

constexpr MatMulFn TileMatMulOf(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return TileMatMul<FloatPairs<WeightF16>>;
    case DType::kBF16:
      return TileMatMul<StoredPairs>;
    case DType::kF8E4M3:
      return TileMatMul<FloatPairs<WeightF8<3>>>;
    case DType::kF8E5M2:
      return TileMatMul<FloatPairs<WeightF8<2>>>;
    default:
      return ForBlockFormat(dtype,
                            []<class Fm>() -> MatMulFn { return TileMatMul<BlockPairs<Fm>>; });
  }
}

}  // namespace
}  // namespace terrace::ops::cpu

#endif  // TERRACE_OPS_CPU_KERNELS_AMX_H_
