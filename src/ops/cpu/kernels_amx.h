// Matrix multiplication of many rows with the tiles of AMX: weights become BF16 pairs in this
// thread's scratch, 32 output features at a time, and meet the activation rows, which have been
// rounded to BF16 once for all targets. The next features' weights are turned into pairs between
// the products of the present ones, by units that would be idle. Included by one translation unit
// after kernels_impl.h.
//
// A core of today does two tile products while its second-level cache gives it two tiles and the
// third level a quarter of one. So the activations of a pass (kPassRows x kPassColumns) and its
// sums stay in the second level, kTileSteps of a panel of weights in the first.
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

// Columns [column, column + 32) of a packed row group as pairs, 1024 bytes. What the next but one
// group has there is asked for meanwhile.
template <class Fm>
struct BlockPairs {
  static constexpr bool kDirect = false;
  static int64_t GroupBytes(int32_t cols) {
    return int64_t{cols} / (Fm::kGroups * kBlock) * Fm::kBlockBytes;
  }
  static inline __attribute__((always_inline)) void Convert(const uint8_t* group, int32_t column,
                                                            int64_t ahead, uint8_t* out) {
    constexpr float kTaken =
        CodeFloats<Fm>::kMagic + (Fm::kShift >= 0 ? 1 << (Fm::kShift >= 0 ? Fm::kShift : 0) : 0);
    const int32_t block = column / kBlock;
    const uint8_t* weight = group + int64_t{block / Fm::kGroups} * Fm::kBlockBytes;
    const uint8_t* planes = weight + Fm::kHeader + block % Fm::kGroups * Fm::kGroupBytes;
#pragma GCC unroll 16
    for (int j = 0; j < (Fm::kGroupBytes + 63) / 64; ++j) PrefetchFar(planes + ahead + j * 64);
    const BlockScales<Fm> scales(weight, planes, CanonicalNan);
    const F* const scale = scales.scale;
    F add[2];
#pragma GCC unroll 2
    for (int s = 0; s < 2; ++s) add[s] = Fma(scale[s], Set1(-kTaken), scales.extra[s]);
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
  }
};

template <class W>
struct FloatPairs {
  static constexpr bool kDirect = false;
  static int64_t GroupBytes(int32_t cols) { return int64_t{cols} * (W::kPairBytes / 2); }
  static inline __attribute__((always_inline)) void Convert(const uint8_t* group, int32_t column,
                                                            int64_t ahead, uint8_t* out) {
    const uint8_t* weight = group + int64_t{column} * (W::kPairBytes / 2);
#pragma GCC unroll 16
    for (int j = 0; j < kBlock / 2; ++j) {
      F w[2];
      W::LoadPair(weight + j * W::kPairBytes, w);
      if (j * W::kPairBytes % 64 == 0) PrefetchFar(weight + ahead + j * W::kPairBytes);
      StoreI(out + j * 64, ConvertPair(w[0], w[1]));
    }
  }
};

// BF16 is packed as tiles take it.
struct StoredPairs {
  static constexpr bool kDirect = true;
  static int64_t GroupBytes(int32_t cols) { return int64_t{cols} * 32; }
  static inline __attribute__((always_inline)) void Convert(const uint8_t* group, int32_t column,
                                                            int64_t ahead, uint8_t*) {
#pragma GCC unroll 16
    for (int j = 0; j < 16; ++j) PrefetchFar(group + int64_t{column} * 32 + ahead + j * 64);
  }
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

// Where the sums of tiles 0 .. 3 lie: 16 x 16 numbers each, distances in bytes.
struct SumPlace {
  char* first;
  int64_t column;  // from a tile to the one of the next 16 features
  int64_t row;     // and of the next 16 rows
  int64_t stride;  // from a row to the next

  // Tiles that follow each other, [row tile][kN].
  template <int kN>
  static SumPlace Packed(void* sums) {
    return {static_cast<char*>(sums), kTileBytes, kN * kTileBytes, 64};
  }
};

// Tiles 0 .. 3 from memory, or zeros to begin with.
template <int kM, int kN>
inline __attribute__((always_inline)) void LoadSums(const SumPlace& s, bool begin) {
  Tiles::Fence(s.first);
  if (begin) {
    _tile_zero(0);
    if constexpr (kN > 1) _tile_zero(1);
    if constexpr (kM > 1) _tile_zero(2);
    if constexpr (kM > 1 && kN > 1) _tile_zero(3);
  } else {
    _tile_loadd(0, s.first, s.stride);
    if constexpr (kN > 1) _tile_loadd(1, s.first + s.column, s.stride);
    if constexpr (kM > 1) _tile_loadd(2, s.first + s.row, s.stride);
    if constexpr (kM > 1 && kN > 1) _tile_loadd(3, s.first + s.row + s.column, s.stride);
  }
}
template <int kM, int kN>
inline __attribute__((always_inline)) void StoreSums(const SumPlace& s) {
  _tile_stored(0, s.first, s.stride);
  if constexpr (kN > 1) _tile_stored(1, s.first + s.column, s.stride);
  if constexpr (kM > 1) _tile_stored(2, s.first + s.row, s.stride);
  if constexpr (kM > 1 && kN > 1) _tile_stored(3, s.first + s.row + s.column, s.stride);
}

// Columns at a time, in tiles: two tiles of rows and two of features in the first-level cache.
constexpr int32_t kTileSteps = 8;
// Groups whose results are written together where the width takes one pass.
constexpr int32_t kWriteGroups = 8;

// One block of up to 32 rows by up to 32 features over `steps` x 32 columns.
struct TileBlock {
  const uint8_t* a;     // tiles of the first 16 rows
  int64_t a_stride;     // to those of the next 16
  const uint8_t* b[2];  // tiles of weights
  int32_t steps;
  SumPlace sums;
  bool begin;  // no sums yet
};

template <int kM, int kN>
void MultiplyBlock(const TileBlock& t) {
  LoadSums<kM, kN>(t.sums, t.begin);
  AddProducts<kM, kN>(t.a, t.a + t.a_stride, t.b[0], t.b[1], t.steps);
  StoreSums<kM, kN>(t.sums);
}

// The part of a matrix that is computed at a time: rows [n0, n1), columns [c0, c1), groups
// [g0, g1).
struct TilePart {
  int32_t n0, n1;
  int32_t c0, c1;
  int32_t g0, g1;
  bool first, last;  // parts of the columns
};

// `count` in parts of at most `most`, of about the same size, in multiples of `unit`.
inline int32_t EvenPart(int32_t count, int32_t most, int32_t unit) {
  const int32_t parts = (count + most - 1) / most;
  return ((count + parts - 1) / parts + unit - 1) / unit * unit;
}

// Two matrices whose groups are multiplied in pairs: the first and the second of a pair begin at
// `weight`, those of the next pair `step` bytes further.
struct GroupPairs {
  const uint8_t* weight[2];
  int64_t step;
};

// Turns the columns of `part` of a pair of row groups into pairs of columns, 32 columns of one
// group at each step.
template <class P>
struct PairMaker {
  // Pair `pair` of the groups, of which there are `groups`: 0 to 2.
  PairMaker(const GroupPairs& from, int32_t pair, int group_count, const TilePart& part,
            uint8_t* room)
      : weight{from.weight[0] + pair * from.step, from.weight[1] + pair * from.step},
        ahead(from.step),
        out(room),
        begin(part.c0),
        column(group_count > 0 ? part.c0 : part.c1),
        end(part.c1),
        groups(group_count) {}
  inline __attribute__((always_inline)) bool Step() {
    if (column >= end) return false;
    P::Convert(weight[index], column, ahead,
               out + index * kPanelBytes + int64_t{column - begin} * 32);
    if (++index == groups) {
      index = 0;
      column += kBlock;
    }
    return true;
  }

  const uint8_t* const weight[2];
  const int64_t ahead;
  uint8_t* const out;
  const int32_t begin;
  int32_t column;
  const int32_t end;
  const int groups;
  int index = 0;
};

// Asks for a line that is to be written.
inline void PrefetchWrite(const float* p) { asm volatile("prefetchw %0" : : "m"(*p)); }

// Writes rows [n0, n1) of groups [g0, g1), whose sums lie in pairs of groups `pair_sums` apart,
// each [tile of rows][group of the pair] 16 x 16; `get` makes a row's 16 results of 16 sums. Row by
// row: memory takes long runs several times as fast as the 128 bytes of a pair.
template <typename Get>
void WriteRows(const MatMulArgs& a, int32_t n0, int32_t n1, int32_t g0, int32_t g1,
               int64_t pair_sums, const Get& get) {
  constexpr int32_t kAhead = 4;  // rows
  const int32_t end = g1 * kLanes < a.rows ? g1 * kLanes : a.rows;
  for (int32_t n = n0; n < n1; ++n) {
    float* const out = a.out + n * a.out_stride;
    if (n + kAhead < n1) {
      for (int32_t f = g0 * kLanes; f < end; f += 16) {
        PrefetchWrite(out + kAhead * a.out_stride + f);
      }
    }
    for (int32_t g = g0; g < g1; ++g) {
      const int32_t pair = (g - g0) / 2;
      const int32_t in_pair = g1 - g0 - 2 * pair < 2 ? 1 : 2;
      const int64_t at =
          pair * pair_sums + ((n - n0) / 16 * in_pair + (g - g0) % 2) * 256 + (n - n0) % 16 * 16;
      const int32_t feature = g * kLanes;
      const int lanes = end - feature < kLanes ? end - feature : kLanes;
      const F bias = a.bias != nullptr ? LoadN(a.bias + feature, lanes) : Set1(0.0f);
      StoreN(out + feature, Add(get(at, n, g), bias), lanes);
    }
  }
}

// Sums of a pair of groups for `rows` rows.
inline int64_t PairSums(int32_t rows) { return int64_t{rows + 31} / 32 * 32 * 2 * kLanes; }

// Groups of a part whose pairs are ready; those of the next groups are made between.
template <class P, int kN>
void MultiplyPanel(const MatMulArgs& a, const TilePart& part, const uint8_t* const* pairs,
                   float* sums, PairMaker<P>* next) {
  const int64_t blocks = a.cols / kBlock;
  const int32_t all = (part.c1 - part.c0) / kBlock;
  const uint8_t* const rows = reinterpret_cast<const uint8_t*>(a.xb);
  TileBlock t = {};
  t.a_stride = blocks * kTileBytes;
  // Steps of `next` after each so many blocks' products, so that they are spread evenly.
  const int32_t tiles = (part.n1 - part.n0 + 31) / 32;
  const int32_t steps_each = (kN * all + tiles * ((all + kTileSteps - 1) / kTileSteps) - 1) /
                             (tiles * ((all + kTileSteps - 1) / kTileSteps));
  for (int32_t k = 0; k < all; k += kTileSteps) {
    t.steps = all - k < kTileSteps ? all - k : kTileSteps;
    t.begin = part.first && k == 0;
    for (int j = 0; j < kN; ++j) t.b[j] = pairs[j] + k * kTileBytes;
    for (int32_t n = part.n0; n < part.n1; n += 32) {
      t.a = rows + (n / 16 * blocks + part.c0 / kBlock + k) * kTileBytes;
      t.sums = SumPlace::Packed<kN>(sums + int64_t{n - part.n0} / 16 * kN * 256);
      if (part.n1 - n > 16) {
        MultiplyBlock<2, kN>(t);
      } else {
        MultiplyBlock<1, kN>(t);
      }
      for (int32_t i = 0; i < steps_each && next->Step(); ++i) {
      }
    }
  }
  while (next->Step()) {
  }
}

// Multiplies a part, whose groups are `pairs` from the first on; sums of each pair lie in the
// scratch, PairSums() apart.
template <class P>
void MultiplyPart(const MatMulArgs& a, const TilePart& part, const GroupPairs& from,
                  int32_t pair_count, bool last_is_half) {
  float* const sums = reinterpret_cast<float*>(a.scratch);
  uint8_t* const room = reinterpret_cast<uint8_t*>(a.scratch) + kPassSumBytes;
  const int64_t pair_sums = PairSums(part.n1 - part.n0);
  const auto groups = [&](int32_t pair) {
    return pair >= pair_count ? 0 : pair + 1 == pair_count && last_is_half ? 1 : 2;
  };
  int turn = 0;
  {
    PairMaker<P> first(from, 0, groups(0), part, room);
    while (first.Step()) {
    }
  }
  for (int32_t pair = 0; pair < pair_count; ++pair, turn ^= 1) {
    PairMaker<P> next(from, pair + 1, groups(pair + 1), part, room + (turn ^ 1) * 2 * kPanelBytes);
    const uint8_t* ready[2];
    for (int j = 0; j < 2; ++j) {
      ready[j] = P::kDirect ? from.weight[j] + pair * from.step + int64_t{part.c0} * 32
                            : room + (turn * 2 + j) * kPanelBytes;
    }
    float* const here = sums + pair * pair_sums;
    if (groups(pair) > 1) {
      MultiplyPanel<P, 2>(a, part, ready, here, &next);
    } else {
      MultiplyPanel<P, 1>(a, part, ready, here, &next);
    }
  }
}

// Calls use(part) for each part of a product whose passes take `groups` groups.
template <class Use>
void ForParts(const MatMulArgs& a, int32_t columns, int32_t groups, Use use) {
  const int32_t rows = EvenPart(a.n, kPassRows, 32);
  TilePart part = {};
  for (part.g0 = 0; part.g0 < a.groups; part.g0 = part.g1) {
    part.g1 = a.groups - part.g0 < groups ? a.groups : part.g0 + groups;
    for (part.n0 = 0; part.n0 < a.n; part.n0 = part.n1) {
      part.n1 = a.n - part.n0 < rows ? a.n : part.n0 + rows;
      for (part.c0 = 0; part.c0 < a.cols; part.c0 = part.c1) {
        part.c1 = a.cols - part.c0 < columns ? a.cols : part.c0 + columns;
        part.first = part.c0 == 0;
        part.last = part.c1 == a.cols;
        use(part);
      }
    }
  }
}

template <class P>
void TileMatMul(const MatMulArgs& a) {
  const Tiles tiles;
  const int64_t bytes = P::GroupBytes(a.cols);
  const uint8_t* const weight = reinterpret_cast<const uint8_t*>(a.weight);
  const float* const sums = reinterpret_cast<const float*>(a.scratch);
  const int32_t columns = EvenPart(a.cols, kPassColumns, 256);
  const int32_t groups = EvenPart(a.groups, columns >= a.cols ? kWriteGroups : kPassGroups, 2);
  ForParts(a, columns, groups, [&](const TilePart& part) {
    const uint8_t* const first = weight + part.g0 * bytes;
    const int32_t count = part.g1 - part.g0;
    MultiplyPart<P>(a, part, {{first, first + bytes}, 2 * bytes}, (count + 1) / 2, count % 2 != 0);
    if (!part.last) return;
    WriteRows(a, part.n0, part.n1, part.g0, part.g1, PairSums(part.n1 - part.n0),
              [&](int64_t at, int32_t, int32_t) { return Load(sums + at); });
  });
}

// One row of activations, rounded to nearest even: 32 values every `stride` values of `out`.
void ToBf16(const float* x, int32_t cols, uint16_t* out, int64_t stride) {
  for (int32_t c = 0; c < cols; c += kBlock, out += stride) {
    StoreI(out, reinterpret_cast<I>(_mm512_cvtne2ps_pbh(Load(x + c + kLanes), Load(x + c))));
  }
}

// ---- Measures
// ------------------------------------------------------------------------------------

// Fills tiles 4 to 7 with different numbers that are ordinary ones in BF16 too: with zeros the
// units take less power, and run faster than any product of real numbers could.
void FillFactors() {
  alignas(64) uint16_t numbers[kTileBytes / 2];
  uint32_t state = 1;
  for (uint16_t& number : numbers) {
    state = state * 1664525u + 1013904223u;
    number = static_cast<uint16_t>(0x3c00u | ((state >> 16) & 0x83ffu));
  }
  Tiles::Fence(numbers);
  _tile_loadd(4, numbers, 64);
  _tile_loadd(5, numbers, 32);
  _tile_loadd(6, numbers, 16);
  _tile_loadd(7, numbers, 48);
}

int32_t TileInt8Rounds(int64_t rounds) {
  const Tiles tiles;
  FillFactors();
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
  FillFactors();
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

// use.operator()<Pairs>() of a format that is multiplied as BF16; null for others.
template <class Use>
constexpr MatMulFn ForPairs(DType dtype, Use use) {
  switch (dtype) {
    case DType::kF16:
      return use.template operator()<FloatPairs<WeightF16>>();
    case DType::kBF16:
      return use.template operator()<StoredPairs>();
    case DType::kF8E4M3:
      return use.template operator()<FloatPairs<WeightF8<3>>>();
    case DType::kF8E5M2:
      return use.template operator()<FloatPairs<WeightF8<2>>>();
    default:
      return ForBlockFormat(dtype, [use]<class Fm>() -> MatMulFn {
        return use.template operator()<BlockPairs<Fm>>();
      });
  }
}

constexpr MatMulFn TileMatMulOf(DType dtype) {
  return ForPairs(dtype, []<class P>() -> MatMulFn { return TileMatMul<P>; });
}

}  // namespace
}  // namespace terrace::ops::cpu

#endif  // TERRACE_OPS_CPU_KERNELS_AMX_H_
