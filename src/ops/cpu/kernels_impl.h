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

namespace terrace::ops::cpu {
namespace {

// ---- Elementwise mathematics
// ----------------------------------------------------------------------

// e^x within 2 ulp for x in [-87.3, 88]; below that 0, above it e^88. NaN stays NaN.
inline F Exp(F x) {
  const F low = Set1(-87.3f);
  const F clamped = Min(Set1(88.0f), Max(low, x));
  const I n = RoundToI(Mul(clamped, Set1(1.44269504f)));
  const F nf = ToF(n);
  F r = Fma(nf, Set1(-0.693359375f), clamped);
  r = Fma(nf, Set1(2.12194440e-4f), r);
  F p = Set1(1.0f / 5040);
  p = Fma(p, r, Set1(1.0f / 720));
  p = Fma(p, r, Set1(1.0f / 120));
  p = Fma(p, r, Set1(1.0f / 24));
  p = Fma(p, r, Set1(1.0f / 6));
  p = Fma(p, r, Set1(0.5f));
  p = Fma(p, r, Set1(1.0f));
  p = Fma(p, r, Set1(1.0f));
  const F scaled = AsF(AddI(AsI(p), ShlI<23>(n)));
  return SelectBelow(x, low, Set1(0.0f), scaled);
}

// tanh within 4 ulp: a series near zero, else through Exp.
inline F Tanh(F x) {
  const F squared = Mul(x, x);
  F p = Set1(62.0f / 2835);
  p = Fma(p, squared, Set1(-17.0f / 315));
  p = Fma(p, squared, Set1(2.0f / 15));
  p = Fma(p, squared, Set1(-1.0f / 3));
  const F near = Fma(Mul(p, squared), x, x);
  const F clamped = Min(Set1(15.0f), Max(Set1(-15.0f), x));
  const F e = Exp(Add(clamped, clamped));
  const F far = Div(Sub(e, Set1(1.0f)), Add(e, Set1(1.0f)));
  return SelectBelow(Abs(x), Set1(0.2f), near, far);
}

// Calls op(i, count) for [0, n) in steps of 16 lanes; count is 16 or what is left.
template <typename Op>
inline void ForLanes(int32_t n, Op op) {
  int32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) op(i, kLanes);
  if (i < n) op(i, n - i);
}
inline F LoadN(const float* p, int n) { return n == kLanes ? Load(p) : LoadPart(p, n); }
inline void StoreN(float* p, F x, int n) { n == kLanes ? Store(p, x) : StorePart(p, x, n); }

void GluRow(Activation activation, const float* gate, const float* up, int32_t n, float* out) {
  const F one = Set1(1.0f);
  ForLanes(n, [&](int32_t i, int count) {
    const F g = LoadN(gate + i, count);
    F exponent = Sub(Set1(0.0f), g);
    if (activation == Activation::kGeluTanh) {
      // 0.5 (1 + tanh(u)) = 1 / (1 + e^-2u), u = sqrt(2 / pi) (g + 0.044715 g^3)
      const F cubic = Fma(Mul(Mul(g, g), Set1(0.044715f)), g, g);
      exponent = Mul(cubic, Set1(-1.5957691216057308f));
    }
    const F activated = Div(g, Add(one, Exp(exponent)));
    StoreN(out + i, Mul(activated, LoadN(up + i, count)), count);
  });
}

void AddRow(float* x, const float* y, int32_t n) {
  ForLanes(n, [&](int32_t i, int count) {
    StoreN(x + i, Add(LoadN(x + i, count), LoadN(y + i, count)), count);
  });
}

void ScaleRow(float* x, float scale, int32_t n) {
  const F s = Set1(scale);
  ForLanes(n, [&](int32_t i, int count) { StoreN(x + i, Mul(LoadN(x + i, count), s), count); });
}

void SoftcapRow(float* x, float cap, int32_t n) {
  const F c = Set1(cap);
  ForLanes(n, [&](int32_t i, int count) {
    StoreN(x + i, Mul(c, Tanh(Div(LoadN(x + i, count), c))), count);
  });
}

void RmsNormRow(const float* x, const float* weight, int32_t n, float eps, float* out) {
  F sum[4] = {Set1(0), Set1(0), Set1(0), Set1(0)};
  int32_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
#pragma GCC unroll 16
    for (int j = 0; j < 4; ++j) {
      const F v = Load(x + i + j * kLanes);
      sum[j] = Fma(v, v, sum[j]);
    }
  }
  for (; i < n; i += kLanes) {
    const F v = LoadN(x + i, n - i < kLanes ? n - i : kLanes);
    sum[0] = Fma(v, v, sum[0]);
  }
  const float total = ReduceAdd(Add(Add(sum[0], sum[1]), Add(sum[2], sum[3])));
  const F scale = Set1(1.0f / __builtin_sqrtf(total / static_cast<float>(n) + eps));
  ForLanes(n, [&](int32_t k, int count) {
    StoreN(out + k, Mul(Mul(LoadN(x + k, count), scale), LoadN(weight + k, count)), count);
  });
}

void RopeRow(float* x, int32_t heads, int32_t head_dim, int32_t dim, bool halves,
             const float* cosines, const float* sines) {
  const int32_t pairs = dim / 2;
  for (int32_t h = 0; h < heads; ++h) {
    float* head = x + static_cast<int64_t>(h) * head_dim;
    if (!halves) {
      for (int32_t i = 0; i < pairs; ++i) {
        const float a = head[2 * i];
        const float b = head[2 * i + 1];
        head[2 * i] = a * cosines[i] - b * sines[i];
        head[2 * i + 1] = a * sines[i] + b * cosines[i];
      }
      continue;
    }
    ForLanes(pairs, [&](int32_t i, int count) {
      const F a = LoadN(head + i, count);
      const F b = LoadN(head + pairs + i, count);
      const F c = LoadN(cosines + i, count);
      const F s = LoadN(sines + i, count);
      StoreN(head + i, Sub(Mul(a, c), Mul(b, s)), count);
      StoreN(head + pairs + i, Fma(a, s, Mul(b, c)), count);
    });
  }
}

// ---- Activation quantisation
// ----------------------------------------------------------------------

void QuantizeRow(const float* x, int32_t cols, XBlock* out, int64_t stride) {
  // Other cores hold these lines from the call before; taking them back one by one would wait.
  for (int32_t b = 0; b < cols / kBlock; ++b) __builtin_prefetch(out + b * stride, 1);
  const I magnitude = SetI(0x7fffffff);
  for (int32_t c = 0; c < cols; c += kBlock, out += stride) {
    const F x0 = Load(x + c);
    const F x1 = Load(x + c + kLanes);
    // As integers, magnitudes of floats are in order, with infinity and then NaN above all.
    const int32_t bits = ReduceMaxI(MaxI(AndI(AsI(x0), magnitude), AndI(AsI(x1), magnitude)));
    float largest;
    __builtin_memcpy(&largest, &bits, sizeof(largest));
    float d = largest * (1.0f / 127.0f);
    float inverse = 127.0f / largest;
    if (largest < 1e-30f) d = inverse = 0.0f;
    if (bits >= 0x7f800000) {
      d = __builtin_nanf("");
      inverse = 0.0f;
    }
    const I q0 = RoundToI(Mul(x0, Set1(inverse)));
    const I q1 = RoundToI(Mul(x1, Set1(inverse)));
    StoreI8(out->q, q0);
    StoreI8(out->q + kLanes, q1);
    const int32_t s0 = ReduceAddI(q0);
    const int32_t s1 = ReduceAddI(q1);
    out->d = d;
    out->ds = d * static_cast<float>(s0 + s1);
    out->ds_half[0] = d * static_cast<float>(s0);
    out->ds_half[1] = d * static_cast<float>(s1);
    out->neg_sum = -(s0 + s1);
    out->neg_sum_half[0] = -s0;
    out->neg_sum_half[1] = -s1;
    out->unused = 0;
  }
}

// ---- Matrix multiplication, block formats
// ---------------------------------------------------------

// Tables of the 4-bit code books, biased to be unsigned.
alignas(16) constexpr uint8_t kIq4Table[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                               129, 141, 153, 166, 181, 197, 217, 241};
alignas(16) constexpr uint8_t kMxfp4Table[16] = {16, 17, 18, 19, 20, 22, 24, 28,
                                                 16, 15, 14, 13, 12, 10, 8,  4};
alignas(16) constexpr uint8_t kIq3Table[16] = {17, 19, 21, 23, 25, 27, 29, 31,
                                               15, 13, 11, 9,  7,  5,  3,  1};

enum class Extra { kNone, kMin, kBias };

// A packed block format (packing.h). kOffsetShift: log2 of what is subtracted from codes, -1 for
// nothing. kSub: columns that share a sub-scale, 0 for none.
template <int kBits, int kOffsetShift, int kSub, Extra kExtra, int kElements, const uint8_t* kTable,
          bool kE8M0 = false>
struct Format {
  static constexpr int kCodeBits = kBits;
  static constexpr int kGroups = kElements / kBlock;
  static constexpr int kSubs = kSub == 0 ? 0 : kBlock / kSub;
  static constexpr bool kHalves = kSub == 16;  // two scales in 32 columns
  static constexpr bool kHasExtra = kExtra != Extra::kNone;
  static constexpr bool kMin = kExtra == Extra::kMin;
  static constexpr int kDBytes = kE8M0 ? 16 : 32;
  static constexpr int kHeader = kDBytes + (kHasExtra ? 32 : 0);
  static constexpr int kScaleBytes = kSubs * 16;
  static constexpr int kMinBytes = kMin ? kSubs * 16 : 0;
  static constexpr int kGroupBytes = kScaleBytes + kMinBytes + kBits * 64;
  static constexpr int kBlockBytes = kHeader + kGroups * kGroupBytes;
  static constexpr int kShift = kOffsetShift;
  static constexpr bool kWide = kBits == 8 || kTable == kIq4Table;

  static F LoadD(const uint8_t* p) {
    if constexpr (kE8M0) {
      // 2^(e - 128); the bounds are what e = 0 and e = 255 mean.
      const F power = Mul(AsF(ShlI<23>(LoadU8(p))), Set1(0.5f));
      return Min(Set1(0x1p127f), Max(Set1(0x1p-128f), power));
    } else {
      return LoadHalf(p);
    }
  }
  // The eight units of 32 columns as unsigned bytes.
  static inline __attribute__((always_inline)) void Unpack(const uint8_t* p, B* w) {
    if constexpr (kBits == 8) {
#pragma GCC unroll 16
      for (int g = 0; g < 8; ++g) w[g] = LoadBytes(p + g * 64);
    } else if constexpr (kBits >= 4) {
#pragma GCC unroll 16
      for (int j = 0; j < 4; ++j) {
        const B v = LoadBytes(p + j * 64);
        w[j] = And(v, 15);
        w[j + 4] = And(Shr<4>(v), 15);
      }
    } else {
#pragma GCC unroll 16
      for (int j = 0; j < 2; ++j) {
        const B v = LoadBytes(p + j * 64);
        w[j] = And(v, 3);
        w[j + 2] = And(Shr<2>(v), 3);
        w[j + 4] = And(Shr<4>(v), 3);
        w[j + 6] = And(Shr<6>(v), 3);
      }
    }
    if constexpr (kBits == 5) AddBits<4>(LoadBytes(p + 256), w);
    if constexpr (kBits == 3) AddBits<2>(LoadBytes(p + 128), w);
    if constexpr (kBits == 6) {
#pragma GCC unroll 16
      for (int j = 0; j < 2; ++j) {
        const B v = LoadBytes(p + 256 + j * 64);
        w[j] = Or(w[j], And(Shl<4>(v), 0x30));
        w[j + 2] = Or(w[j + 2], And(Shl<2>(v), 0x30));
        w[j + 4] = Or(w[j + 4], And(v, 0x30));
        w[j + 6] = Or(w[j + 6], And(Shr<2>(v), 0x30));
      }
    }
    if constexpr (kTable != nullptr) {
      const B table = LoadTable(kTable);
#pragma GCC unroll 16
      for (int g = 0; g < 8; ++g) w[g] = Lookup(table, w[g]);
    }
  }

  // Bit g of the plane is bit kTo of unit g.
  template <int kTo>
  static inline __attribute__((always_inline)) void AddBits(B plane, B* w) {
    constexpr uint8_t kMask = 1 << kTo;
    w[0] = Or(w[0], And(Shl<kTo>(plane), kMask));
    w[1] = Or(w[1], And(Shl<kTo - 1>(plane), kMask));
    w[2] = Or(w[2], And(Move<kTo - 2>(plane), kMask));
    w[3] = Or(w[3], And(Move<kTo - 3>(plane), kMask));
    w[4] = Or(w[4], And(Move<kTo - 4>(plane), kMask));
    w[5] = Or(w[5], And(Move<kTo - 5>(plane), kMask));
    w[6] = Or(w[6], And(Move<kTo - 6>(plane), kMask));
    w[7] = Or(w[7], And(Move<kTo - 7>(plane), kMask));
  }
  template <int kBy>
  static B Move(B x) {
    if constexpr (kBy > 0) {
      return Shl<kBy>(x);
    } else if constexpr (kBy < 0) {
      return Shr<-kBy>(x);
    } else {
      return x;
    }
  }
};

// How far ahead of use weights are asked for, into the second-level cache: its queue of lines that
// are on their way is several times as long as the first level's, which reads a fifth slower.
inline constexpr int kStreamBytes = 16 << 10;
inline void PrefetchStream(const void* p) {
  PrefetchFar(static_cast<const char*>(p) + kStreamBytes);
}

// What 32 columns of 16 rows are scaled by: `block` is the block of the format, `planes` its group
// of 32 columns.
template <class Fm>
struct BlockScales {
  inline __attribute__((always_inline)) BlockScales(const uint8_t* block, const uint8_t* planes) {
    const F d = Fm::LoadD(block);
    F dextra = Set1(0.0f);
    if constexpr (Fm::kHasExtra) dextra = LoadHalf(block + Fm::kDBytes);
    if constexpr (Fm::kMin) dextra = Sub(Set1(0.0f), dextra);
    scale[0] = scale[1] = d;
    extra[0] = extra[1] = dextra;
#pragma GCC unroll 2
    for (int s = 0; s < Fm::kSubs; ++s) {
      scale[s] = Mul(d, ToF(LoadI8(planes + s * 16)));
      if constexpr (Fm::kMin) {
        extra[s] = Mul(dextra, ToF(LoadU8(planes + Fm::kScaleBytes + s * 16)));
      }
    }
  }

  // Adds dot products of codes with the activations `b`, without a minimum or bias, to `acc`.
  inline __attribute__((always_inline)) void Add(F sum, const XBlock& b, F* acc) const {
    *acc = Fma(Mul(sum, scale[0]), Set1(b.d), *acc);
    if constexpr (Fm::kHasExtra) *acc = Fma(extra[0], Set1(b.ds), *acc);
  }
  // The same where each half has its own scale.
  inline __attribute__((always_inline)) void AddHalves(F sum0, F sum1, const XBlock& b,
                                                       F* acc) const {
    *acc = Fma(Fma(sum0, scale[0], Mul(sum1, scale[1])), Set1(b.d), *acc);
    if constexpr (Fm::kHasExtra) {
      *acc = Fma(extra[0], Set1(b.ds_half[0]), *acc);
      *acc = Fma(extra[1], Set1(b.ds_half[1]), *acc);
    }
  }

  F scale[2];
  F extra[2];
};

// acc[t] += 16 rows times 32 columns of activation row t, for the rows of one tile.
template <class Fm, int kTile>
inline __attribute__((always_inline)) void AddGroup(const uint8_t* planes,
                                                    const BlockScales<Fm>& scales, const XBlock* x,
                                                    F* acc) {
  constexpr int kShift = Fm::kShift >= 0 ? Fm::kShift : 0;
  const auto begin = [](int32_t neg_sum) {
    return Fm::kShift >= 0 ? ShlI<kShift>(SetI(neg_sum)) : ZeroI();
  };
  B w[8];
  Fm::Unpack(planes, w);
#pragma GCC unroll 16
  for (int t = 0; t < kTile; ++t) {
    const XBlock& b = x[t];
    if constexpr (Fm::kHalves) {
      I a0 = begin(b.neg_sum_half[0]);
      I a1 = begin(b.neg_sum_half[1]);
#pragma GCC unroll 16
      for (int g = 0; g < 4; ++g) {
        a0 = Dot4<Fm::kWide>(a0, w[g], b.q + 4 * g);
        a1 = Dot4<Fm::kWide>(a1, w[g + 4], b.q + 4 * g + 16);
      }
      scales.AddHalves(ToF(a0), ToF(a1), b, &acc[t]);
    } else {
      I a = begin(b.neg_sum);
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

// Adds the bias and writes tile results: lanes are output features, tile rows activation rows.
inline void WriteTile(const MatMulArgs& a, const F* acc, int32_t group, int32_t row, int count) {
  const int32_t first = group * kLanes;
  const int lanes = a.rows - first < kLanes ? a.rows - first : kLanes;
  const F bias = a.bias != nullptr ? LoadN(a.bias + first, lanes) : Set1(0.0f);
  for (int t = 0; t < count; ++t) {
    StoreN(a.out + (row + t) * a.out_stride + first, Add(acc[t], bias), lanes);
  }
}

// Rows of activations that stay in the second-level cache while row groups pass over them.
inline int32_t ChunkRows(int32_t bytes_a_row, int tile) {
  constexpr int32_t kChunkBytes = 384 << 10;
  const int32_t rows = kChunkBytes / (bytes_a_row < 1 ? 1 : bytes_a_row) / tile * tile;
  return rows < tile ? tile : rows;
}

// Starts the stream of weights of a range, before the hardware has seen its direction.
inline void PrefetchStart(const std::byte* weight) {
  for (int i = 0; i < 32; ++i) Prefetch(weight + i * 64);
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
        switch (PaddedRows(count)) {
          case 1:
            QuantTile<Fm, 1>(weight, a.cols, x, acc);
            break;
          case 2:
            QuantTile<Fm, 2>(weight, a.cols, x, acc);
            break;
          case 3:
            QuantTile<Fm, 3>(weight, a.cols, x, acc);
            break;
          case 4:
            QuantTile<Fm, 4>(weight, a.cols, x, acc);
            break;
          default:
            if constexpr (kTileRows > 4) {
              switch (PaddedRows(count)) {
                case 6:
                  QuantTile<Fm, 6>(weight, a.cols, x, acc);
                  break;
                case 8:
                  QuantTile<Fm, 8>(weight, a.cols, x, acc);
                  break;
                case 10:
                  QuantTile<Fm, 10>(weight, a.cols, x, acc);
                  break;
                default:
                  QuantTile<Fm, 12>(weight, a.cols, x, acc);
                  break;
              }
            }
        }
        WriteTile(a, acc, g, n, count);
      }
    }
  }
}

// ---- Matrix multiplication, W8A8
// -------------------------------------------------------------------------

void QuantizeWholeRow(const float* x, int32_t cols, int8_t* q, int64_t stride, float* scale,
                      int32_t* sum) {
  const I magnitude = SetI(0x7fffffff);
  I top = ZeroI();
  for (int32_t c = 0; c < cols; c += kLanes) top = MaxI(top, AndI(AsI(Load(x + c)), magnitude));
  const int32_t bits = ReduceMaxI(top);  // see QuantizeRow
  float largest;
  __builtin_memcpy(&largest, &bits, sizeof(largest));
  float inverse = largest < 1e-30f ? 0.0f : 127.0f / largest;
  *scale = largest < 1e-30f ? 0.0f : largest * (1.0f / 127.0f);
  if (bits >= 0x7f800000) {
    *scale = __builtin_nanf("");
    inverse = 0.0f;
  }
  I total = ZeroI();
  for (int32_t c = 0; c < cols; c += kBlock, q += stride * kBlock) {
    const I q0 = RoundToI(Mul(Load(x + c), Set1(inverse)));
    const I q1 = RoundToI(Mul(Load(x + c + kLanes), Set1(inverse)));
    StoreI8(q, q0);
    StoreI8(q + kLanes, q1);
    total = AddI(total, AddI(q0, q1));
  }
  *sum = ReduceAddI(total);
}

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
        const auto run = [&]<int kTile>() {
          ScaledTile<kTile>(weight, a.cols, x, a.x8_scale + n, a.x8_sum + n, acc);
        };
        switch (PaddedRows(count)) {
          case 1:
            run.template operator()<1>();
            break;
          case 2:
            run.template operator()<2>();
            break;
          case 3:
            run.template operator()<3>();
            break;
          case 4:
            run.template operator()<4>();
            break;
          default:
            if constexpr (kTileRows > 4) {
              switch (PaddedRows(count)) {
                case 6:
                  run.template operator()<6>();
                  break;
                case 8:
                  run.template operator()<8>();
                  break;
                case 10:
                  run.template operator()<10>();
                  break;
                default:
                  run.template operator()<12>();
                  break;
              }
            }
        }
        WriteTile(a, acc, g, n, count);
      }
    }
  }
}

// ---- Matrix multiplication, float formats
// ---------------------------------------------------------

struct WeightF32 {
  static constexpr bool kPaired = false;
  static constexpr int kPairBytes = 128;
  static void LoadPair(const uint8_t* p, F* w) {
    w[0] = Load(reinterpret_cast<const float*>(p));
    w[1] = Load(reinterpret_cast<const float*>(p + 64));
  }
};
struct WeightF16 {
  static constexpr bool kPaired = false;
  static constexpr int kPairBytes = 64;
  static void LoadPair(const uint8_t* p, F* w) {
    w[0] = LoadHalf(p);
    w[1] = LoadHalf(p + 32);
  }
};
struct WeightBF16 {
  static constexpr bool kPaired = true;  // padded to whole pairs
  static constexpr int kPairBytes = 64;
  static void LoadPair(const uint8_t* p, F* w) {
    const I pairs = LoadI(p);
    w[0] = AsF(ShlI<16>(pairs));
    w[1] = AsF(AndI(pairs, SetI(static_cast<int32_t>(0xffff0000u))));
  }
};
// FP8: the bits are those of a float32 with the exponent's bias to be made up by a factor. What is
// not finite in the format stays not finite.
template <int kMantissa>
struct WeightF8 {
  static constexpr bool kPaired = false;
  static constexpr int kPairBytes = 32;
  static F LoadOne(const uint8_t* p) {
    const I bits = LoadU8(p);
    const I sign = ShlI<24>(AndI(bits, SetI(0x80)));
    const F magnitude = Mul(AsF(ShlI<23 - kMantissa>(AndI(bits, SetI(0x7f)))),
                            Set1(kMantissa == 3 ? 0x1p120f : 0x1p112f));
    const F limit = Set1(kMantissa == 3 ? 480.0f : 65536.0f);
    const F value = SelectBelow(magnitude, limit, magnitude, Set1(__builtin_nanf("")));
    return AsF(AddI(AsI(value), sign));
  }
  static void LoadPair(const uint8_t* p, F* w) {
    w[0] = LoadOne(p);
    w[1] = LoadOne(p + 16);
  }
};

inline constexpr int kFloatTile = kTileRows > 4 ? 6 : 2;

template <class W, int kTile>
void FloatTile(const uint8_t* weight, int32_t cols, const float* x, int64_t stride, F* out) {
  F acc[kTile][4];
#pragma GCC unroll 16
  for (int t = 0; t < kTile; ++t) {
#pragma GCC unroll 16
    for (int j = 0; j < 4; ++j) acc[t][j] = Set1(0.0f);
  }
  int32_t c = 0;
  for (; c + 4 <= cols; c += 4) {
    F w[4];
    W::LoadPair(weight, w);
    W::LoadPair(weight + W::kPairBytes, w + 2);
    PrefetchStream(weight);
    PrefetchStream(weight + 64);
    weight += 2 * W::kPairBytes;
#pragma GCC unroll 16
    for (int t = 0; t < kTile; ++t) {
#pragma GCC unroll 16
      for (int j = 0; j < 4; ++j) acc[t][j] = Fma(w[j], Set1(x[t * stride + c + j]), acc[t][j]);
    }
  }
  for (; c < cols; c += 2) {
    // The last pair of an odd width is half there: in BF16 padded, else not to be read.
    const bool whole = c + 2 <= cols;
    alignas(64) uint8_t last[W::kPairBytes] = {};
    const int bytes = whole || W::kPaired ? W::kPairBytes : W::kPairBytes / 2;
    __builtin_memcpy(last, weight, static_cast<size_t>(bytes));
    F w[2];
    W::LoadPair(last, w);
    weight += W::kPairBytes;
#pragma GCC unroll 16
    for (int t = 0; t < kTile; ++t) {
      acc[t][0] = Fma(w[0], Set1(x[t * stride + c]), acc[t][0]);
      if (whole) acc[t][1] = Fma(w[1], Set1(x[t * stride + c + 1]), acc[t][1]);
    }
  }
#pragma GCC unroll 16
  for (int t = 0; t < kTile; ++t) {
    out[t] = Add(Add(acc[t][0], acc[t][1]), Add(acc[t][2], acc[t][3]));
  }
}

template <class W>
void FloatMatMul(const MatMulArgs& a) {
  PrefetchStart(a.weight);
  const int64_t group_bytes = W::kPaired ? int64_t{(a.cols + 1) / 2} * W::kPairBytes
                                         : int64_t{a.cols} * (W::kPairBytes / 2);
  const int32_t chunk = ChunkRows(a.cols * 4, kFloatTile);
  for (int32_t n0 = 0; n0 < a.n; n0 += chunk) {
    const int32_t n1 = n0 + chunk < a.n ? n0 + chunk : a.n;
    for (int32_t g = 0; g < a.groups; ++g) {
      const uint8_t* weight = reinterpret_cast<const uint8_t*>(a.weight) + g * group_bytes;
      for (int32_t n = n0; n < n1;) {
        const int left = n1 - n;
        const float* x = a.x + n * a.x_stride;
        F acc[kFloatTile];
        int count = left < kFloatTile ? left : kFloatTile;
        if (count == 5) count = 4;
        switch (count) {
          case 1:
            FloatTile<W, 1>(weight, a.cols, x, a.x_stride, acc);
            break;
          case 2:
            FloatTile<W, 2>(weight, a.cols, x, a.x_stride, acc);
            break;
          default:
            if constexpr (kFloatTile > 2) {
              switch (count) {
                case 3:
                  FloatTile<W, 3>(weight, a.cols, x, a.x_stride, acc);
                  break;
                case 4:
                  FloatTile<W, 4>(weight, a.cols, x, a.x_stride, acc);
                  break;
                default:
                  FloatTile<W, 6>(weight, a.cols, x, a.x_stride, acc);
                  break;
              }
            }
        }
        WriteTile(a, acc, g, n, count);
        n += count;
      }
    }
  }
}

// ---- Matrix multiplication, float formats as 16-bit integers
// ---------------------------------------

// 32 products of two such integers fill an int32 to its last bit, and no further: 32 * 8191^2 <
// 2^31.
inline constexpr float kWordMax = 8191.0f;

// Weights below this count as zero beside the rounding of any ordinary block.
inline constexpr float kWordTiny = 1e-30f;

#ifdef TERRACE_HAS_WORDS

void QuantizeWordsRow(const float* x, int32_t cols, int16_t* q, float* scale, int64_t stride) {
  const I magnitude = SetI(0x7fffffff);
  for (int32_t c = 0; c < cols; c += kBlock, q += stride * kBlock, scale += stride) {
    const F x0 = Load(x + c);
    const F x1 = Load(x + c + kLanes);
    // As integers, magnitudes are in order with NaN above all: it ends up in the scale.
    const int32_t bits = ReduceMaxI(MaxI(AndI(AsI(x0), magnitude), AndI(AsI(x1), magnitude)));
    float largest;
    __builtin_memcpy(&largest, &bits, sizeof(largest));
    if (largest < kWordTiny) largest = kWordTiny;
    *scale = largest * (1.0f / kWordMax);
    const F inverse = Set1(kWordMax / largest);
    StoreI16(q, RoundToI(Mul(x0, inverse)));
    StoreI16(q + kLanes, RoundToI(Mul(x1, inverse)));
  }
}

// One row group as words: per block of 32 columns 16 x 64 bytes of column pairs, then 16 scales.
template <class W>
void MakeWords(const uint8_t* weight, int32_t cols, uint8_t* out) {
  const I magnitude = SetI(0x7fffffff);
  for (int32_t c = 0; c < cols; c += kBlock) {
    I bits = ZeroI();
#pragma GCC unroll 16
    for (int j = 0; j < kBlock / 2; ++j) {
      F w[2];
      W::LoadPair(weight + j * W::kPairBytes, w);
      bits = MaxI(bits, MaxI(AndI(AsI(w[0]), magnitude), AndI(AsI(w[1]), magnitude)));
    }
    const F largest = Max(Set1(kWordTiny), AsF(bits));
    const F inverse = Div(Set1(kWordMax), largest);
#pragma GCC unroll 16
    for (int j = 0; j < kBlock / 2; ++j) {
      F w[2];
      W::LoadPair(weight + j * W::kPairBytes, w);
      const I low = AndI(RoundToI(Mul(w[0], inverse)), SetI(0xffff));
      StoreI(out + j * 64, OrI(low, ShlI<16>(RoundToI(Mul(w[1], inverse)))));
    }
    Store(reinterpret_cast<float*>(out + 1024), Mul(largest, Set1(1.0f / kWordMax)));
    weight += kBlock / 2 * W::kPairBytes;
    out += 1088;
  }
}

template <int kTile>
void WordTile(const uint8_t* words, int32_t cols, const int16_t* x, const float* scale, F* out) {
  F acc[kTile];
#pragma GCC unroll 16
  for (int t = 0; t < kTile; ++t) acc[t] = Set1(0.0f);
  for (int32_t c = 0; c < cols; c += kBlock) {
    I sum[kTile];
#pragma GCC unroll 16
    for (int t = 0; t < kTile; ++t) sum[t] = ZeroI();
#pragma GCC unroll 16
    for (int j = 0; j < kBlock / 2; ++j) {
      const I w = LoadI(words + j * 64);
#pragma GCC unroll 16
      for (int t = 0; t < kTile; ++t) sum[t] = DotWords(sum[t], w, x + t * kBlock + 2 * j);
    }
    const F s = Load(reinterpret_cast<const float*>(words + 1024));
#pragma GCC unroll 16
    for (int t = 0; t < kTile; ++t) {
      acc[t] = Fma(Mul(ToF(sum[t]), s), Set1(scale[t]), acc[t]);
    }
    words += 1088;
    x += kTile * kBlock;
    scale += kTile;
  }
#pragma GCC unroll 16
  for (int t = 0; t < kTile; ++t) out[t] = acc[t];
}

template <class W>
void WordMatMul(const MatMulArgs& a) {
  const int64_t group_bytes = int64_t{a.cols} * (W::kPairBytes / 2);
  const int64_t blocks = a.cols / kBlock;
  uint8_t* words = reinterpret_cast<uint8_t*>(a.scratch);
  for (int32_t g = 0; g < a.groups; ++g) {
    MakeWords<W>(reinterpret_cast<const uint8_t*>(a.weight) + g * group_bytes, a.cols, words);
    for (int32_t n = 0; n < a.n; n += kTileRows) {
      const int count = a.n - n < kTileRows ? a.n - n : kTileRows;
      const int16_t* x = a.xw + n * blocks * kBlock;
      const float* scale = a.xw_scale + n * blocks;
      F acc[kTileRows];
      switch (PaddedWordRows(count)) {
        case 4:
          WordTile<4>(words, a.cols, x, scale, acc);
          break;
        case 8:
          WordTile<8>(words, a.cols, x, scale, acc);
          break;
        default:
          WordTile<12>(words, a.cols, x, scale, acc);
          break;
      }
      WriteTile(a, acc, g, n, count);
    }
  }
}

constexpr MatMulFn WordMatMulOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return WordMatMul<WeightF32>;
    case DType::kF16:
      return WordMatMul<WeightF16>;
    case DType::kBF16:
      return WordMatMul<WeightBF16>;
    case DType::kF8E4M3:
      return WordMatMul<WeightF8<3>>;
    case DType::kF8E5M2:
      return WordMatMul<WeightF8<2>>;
    default:
      return nullptr;
  }
}

#endif  // TERRACE_HAS_WORDS

// ---- KV store and attention
// -----------------------------------------------------------------------

void StoreKvToken(const float* x, int32_t dim, KvDType dtype, bool transposed, int32_t token,
                  std::byte* tile) {
  const int64_t step = transposed ? kKvBlockTokens : 1;
  const int64_t first = transposed ? token : static_cast<int64_t>(token) * dim;
  F inverse = Set1(0.0f);
  if (dtype == KvDType::kI8) {
    F largest = Set1(0.0f);
    ForLanes(dim, [&](int32_t i, int n) { largest = Max(largest, Abs(LoadN(x + i, n))); });
    const float top = ReduceMax(largest);
    const float scale = top / 127.0f;
    inverse = Set1(top > 0.0f ? 127.0f / top : 0.0f);
    __builtin_memcpy(tile + static_cast<int64_t>(dim) * kKvBlockTokens + 4 * token, &scale, 4);
  }
  ForLanes(dim, [&](int32_t i, int n) {
    const F v = LoadN(x + i, n);
    if (dtype == KvDType::kF16) {
      uint16_t half[kLanes];
      StoreHalf(half, v);
      uint16_t* to = reinterpret_cast<uint16_t*>(tile) + first + i * step;
      for (int j = 0; j < n; ++j) to[j * step] = half[j];
    } else if (dtype == KvDType::kI8) {
      int8_t q[kLanes];
      StoreI8(q, RoundToI(Mul(v, inverse)));
      int8_t* to = reinterpret_cast<int8_t*>(tile) + first + i * step;
      for (int j = 0; j < n; ++j) to[j * step] = q[j];
    } else {
      float* to = reinterpret_cast<float*>(tile) + first + i * step;
      for (int j = 0; j < n; ++j) to[j * step] = x[i + j];
    }
  });
}

template <KvDType kType>
inline F LoadKv(const std::byte* tile, int64_t index) {
  if constexpr (kType == KvDType::kF16) {
    return LoadHalf(tile + 2 * index);
  } else if constexpr (kType == KvDType::kI8) {
    return ToF(LoadI8(tile + index));
  } else {
    return Load(reinterpret_cast<const float*>(tile) + index);
  }
}
template <KvDType kType>
inline float LoadKvOne(const std::byte* tile, int64_t index) {
  if constexpr (kType == KvDType::kI8) {
    return static_cast<float>(static_cast<int8_t>(tile[index]));
  } else if constexpr (kType == KvDType::kF32) {
    return reinterpret_cast<const float*>(tile)[index];
  } else {
    alignas(32) std::byte padded[32] = {};
    __builtin_memcpy(padded, tile + 2 * index, 2);
    float lanes[kLanes];
    Store(lanes, LoadHalf(padded));
    return lanes[0];
  }
}

// Scratch of one pass: queries, running outputs, chunk scores, and per unit the running maximum and
// the sum of weights by lane.
struct AttentionState {
  float* query;    // [units][key_dim]
  float* output;   // [units][value_dim]
  float* score;    // [units][kAttentionChunk]
  float* sum;      // [units][kLanes]
  float* top;      // [units]
  int32_t blocks;  // KV blocks that hold keys the last unit sees: what may be asked for ahead
};

// Blocks between what is computed and what is asked for from memory.
inline constexpr int kAheadBlocks = kAttentionChunk / kKvBlockTokens;

inline constexpr int kUnits = kTileRows > 4 ? kAttentionUnits : kAttentionUnits / 2;

// Scores of kBlocks KV blocks (16 keys each) for kUnitsNow units.
template <KvDType kType, bool kScaled, bool kAhead, int kUnitsNow, int kBlocks>
inline void ScoreBlocks(const AttentionArgs& a, const AttentionState& s, int32_t block, int slot) {
  F acc[kUnitsNow][kBlocks];
  const std::byte* tile[kBlocks];
#pragma GCC unroll 16
  for (int j = 0; j < kBlocks; ++j) {
    tile[j] = a.blocks[block + j] + a.key_offset;
#pragma GCC unroll 16
    for (int u = 0; u < kUnitsNow; ++u) acc[u][j] = Set1(0.0f);
  }
  // A block's tile is not followed by the next block's in memory: the hardware does not see it
  // coming.
  constexpr int kStepBytes = kKvBlockTokens * static_cast<int>(KvElementBytes(kType));
  [[maybe_unused]] const std::byte* next[kBlocks];
  if constexpr (kAhead) {
#pragma GCC unroll 16
    for (int j = 0; j < kBlocks; ++j) {
      const int32_t ahead = block + j + kAheadBlocks;
      next[j] = ahead < s.blocks ? a.blocks[ahead] + a.key_offset : tile[j];
    }
  }
  for (int32_t d = 0; d < a.key_dim; ++d) {
    F k[kBlocks];
#pragma GCC unroll 16
    for (int j = 0; j < kBlocks; ++j) {
      k[j] = LoadKv<kType>(tile[j], int64_t{d} * kKvBlockTokens);
      if constexpr (kAhead) PrefetchFar(next[j] + int64_t{d} * kStepBytes);
    }
#pragma GCC unroll 16
    for (int u = 0; u < kUnitsNow; ++u) {
      const F q = Set1(s.query[u * a.key_dim + d]);
#pragma GCC unroll 16
      for (int j = 0; j < kBlocks; ++j) acc[u][j] = Fma(k[j], q, acc[u][j]);
    }
  }
#pragma GCC unroll 16
  for (int j = 0; j < kBlocks; ++j) {
    F scale = Set1(1.0f);
    if constexpr (kScaled) {
      scale = Load(reinterpret_cast<const float*>(tile[j] + int64_t{a.key_dim} * kStepBytes));
    }
#pragma GCC unroll 16
    for (int u = 0; u < kUnitsNow; ++u) {
      F x = acc[u][j];
      if constexpr (kScaled) x = Mul(x, scale);
      if (a.softcap > 0) x = Mul(Set1(a.softcap), Tanh(Div(x, Set1(a.softcap))));
      Store(s.score + u * kAttentionChunk + (slot + j) * kLanes, x);
    }
  }
}

// Turns a chunk's scores into weights, and corrects what was summed before for the new maximum.
inline void WeighChunk(const AttentionArgs& a, const AttentionState& s, int unit, int32_t position,
                       int32_t chunk_start, int blocks) {
  const float kNone = -__builtin_inff();
  const int32_t low = a.window > 0 ? position - a.window + 1 - chunk_start : 0;
  const int32_t high = position + 1 - chunk_start;
  float* score = s.score + unit * kAttentionChunk;
  F best = Set1(kNone);
  for (int j = 0; j < blocks; ++j) {
    const F x =
        KeepLanes(Load(score + j * kLanes), low - j * kLanes, high - j * kLanes, Set1(kNone));
    Store(score + j * kLanes, x);
    // The operand order lets a NaN through.
    best = Max(best, x);
  }
  const float chunk_top = ReduceMax(best);
  const float old = s.top[unit];
  const float top = chunk_top > old ? chunk_top : old;
  if (top == kNone) {  // nothing to see yet: all weights are zero
    for (int j = 0; j < blocks; ++j) Store(score + j * kLanes, Set1(0.0f));
    return;
  }
  if (top != old) {
    float lanes[kLanes];
    Store(lanes, Exp(Set1(old - top)));
    const F correction = Set1(lanes[0]);
    Store(s.sum + unit * kLanes, Mul(Load(s.sum + unit * kLanes), correction));
    ScaleRow(s.output + unit * a.value_dim, lanes[0], a.value_dim);
    s.top[unit] = top;
  }
  F sum = Load(s.sum + unit * kLanes);
  for (int j = 0; j < blocks; ++j) {
    const F weight = Exp(Sub(Load(score + j * kLanes), Set1(top)));
    Store(score + j * kLanes, weight);
    sum = Add(sum, weight);
  }
  Store(s.sum + unit * kLanes, sum);
}

// output += weights x values for kVectors x 16 dimensions from `d`, keys [low, high) of the chunk.
template <KvDType kType, bool kAhead, int kUnitsNow, int kVectors>
inline void AddValues(const AttentionArgs& a, const AttentionState& s, int32_t first_block,
                      int32_t low, int32_t high, int32_t d) {
  F acc[kUnitsNow][kVectors];
#pragma GCC unroll 16
  for (int u = 0; u < kUnitsNow; ++u) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      acc[u][j] = Load(s.output + u * a.value_dim + d + j * kLanes);
    }
  }
  constexpr int kVectorBytes = kLanes * static_cast<int>(KvElementBytes(kType));
  const int64_t row_bytes = a.value_dim * static_cast<int64_t>(KvElementBytes(kType));
  const int64_t offset = d * static_cast<int64_t>(KvElementBytes(kType));
  for (int32_t begin = low; begin < high;) {
    const int32_t block = begin / kKvBlockTokens;
    const int32_t limit = (block + 1) * kKvBlockTokens;
    const int32_t end = high < limit ? high : limit;
    const int64_t at = offset + (begin % kKvBlockTokens) * row_bytes;
    const std::byte* row = a.blocks[first_block + block] + a.value_offset + at;
    [[maybe_unused]] const std::byte* next = row;
    if constexpr (kAhead) {
      const int32_t ahead = first_block + block + kAheadBlocks;
      if (ahead < s.blocks) next = a.blocks[ahead] + a.value_offset + at;
    }
    for (int32_t t = begin; t < end; ++t, row += row_bytes, next += row_bytes) {
      F v[kVectors];
#pragma GCC unroll 16
      for (int j = 0; j < kVectors; ++j) {
        v[j] = LoadKv<kType>(row + j * kVectorBytes, 0);
        if constexpr (kAhead) {
          if (j * kVectorBytes % 64 == 0) PrefetchFar(next + j * kVectorBytes);
        }
      }
#pragma GCC unroll 16
      for (int u = 0; u < kUnitsNow; ++u) {
        const F w = Set1(s.score[u * kAttentionChunk + t]);
#pragma GCC unroll 16
        for (int j = 0; j < kVectors; ++j) acc[u][j] = Fma(w, v[j], acc[u][j]);
      }
    }
    begin = end;
  }
#pragma GCC unroll 16
  for (int u = 0; u < kUnitsNow; ++u) {
#pragma GCC unroll 16
    for (int j = 0; j < kVectors; ++j) {
      Store(s.output + u * a.value_dim + d + j * kLanes, acc[u][j]);
    }
  }
}

template <KvDType kType, bool kScaled, bool kAhead, int kUnitsNow>
inline void AddAllValues(const AttentionArgs& a, const AttentionState& s, int32_t first_block,
                         int blocks, int32_t low, int32_t high) {
  if constexpr (kScaled) {
    constexpr int64_t kElement = static_cast<int64_t>(KvElementBytes(kType));
    for (int j = 0; j < blocks; ++j) {
      const F scale = Load(reinterpret_cast<const float*>(
          a.blocks[first_block + j] + a.value_offset + a.value_dim * kKvBlockTokens * kElement));
      // Keys outside [low, high) may hold anything.
      const F clean = KeepLanes(scale, low - j * kLanes, high - j * kLanes, Set1(0.0f));
#pragma GCC unroll 16
      for (int u = 0; u < kUnitsNow; ++u) {
        float* w = s.score + u * kAttentionChunk + j * kLanes;
        Store(w, Mul(Load(w), clean));
      }
    }
  }
  constexpr int kVectors = kTileRows <= 4 ? 2 : kUnitsNow <= 2 ? 8 : kUnitsNow <= 4 ? 4 : 2;
  int32_t d = 0;
  for (; d + kVectors * kLanes <= a.value_dim; d += kVectors * kLanes) {
    AddValues<kType, kAhead, kUnitsNow, kVectors>(a, s, first_block, low, high, d);
  }
  for (; d + kLanes <= a.value_dim; d += kLanes) {
    AddValues<kType, kAhead, kUnitsNow, 1>(a, s, first_block, low, high, d);
  }
  for (; d < a.value_dim; ++d) {
    for (int32_t t = low; t < high; ++t) {
      const std::byte* tile = a.blocks[first_block + t / kKvBlockTokens] + a.value_offset;
      const float v = LoadKvOne<kType>(tile, int64_t{t % kKvBlockTokens} * a.value_dim + d);
#pragma GCC unroll 16
      for (int u = 0; u < kUnitsNow; ++u) {
        s.output[u * a.value_dim + d] += s.score[u * kAttentionChunk + t] * v;
      }
    }
  }
}

inline int32_t PositionOf(const AttentionArgs& a, int64_t unit) {
  return a.start + static_cast<int32_t>(unit / a.group);
}

// Units past the last repeat it; their results are not written.
template <int kUnitsNow>
void BeginUnits(const AttentionArgs& a, const AttentionState& s, int64_t first, int count) {
  for (int u = 0; u < kUnitsNow; ++u) {
    const int64_t unit = first + (u < count ? u : count - 1);
    const float* q = a.q + unit / a.group * a.q_stride + unit % a.group * a.key_dim;
    for (int32_t d = 0; d < a.key_dim; ++d) s.query[u * a.key_dim + d] = q[d] * a.scale;
    for (int32_t d = 0; d < a.value_dim; ++d) s.output[u * a.value_dim + d] = 0.0f;
    Store(s.sum + u * kLanes, Set1(0.0f));
    s.top[u] = -__builtin_inff();
  }
}

// One chunk of keys, from position `start` on, for one group of units. `view` holds its blocks from
// `block` on.
template <KvDType kType, bool kScaled, bool kAhead, int kUnitsNow>
void AttendChunk(const AttentionArgs& view, const AttentionState& s, int64_t first, int count,
                 int32_t start, int32_t block) {
  constexpr int kChunkBlocks = kAttentionChunk / kKvBlockTokens;
  const int32_t first_position = PositionOf(view, first);
  const int32_t last = PositionOf(view, first + count - 1);  // units are in order of position
  const int32_t begin =
      view.window > 0 && first_position >= view.window ? first_position - view.window + 1 : 0;
  if (start > last || start < begin / kAttentionChunk * kAttentionChunk) return;
  const int32_t keys = last + 1 - start < kAttentionChunk ? last + 1 - start : kAttentionChunk;
  const int blocks = (keys + kKvBlockTokens - 1) / kKvBlockTokens;
  constexpr int kStep = kUnitsNow <= 4 ? kChunkBlocks : 2;
  int j = 0;
  for (; j + kStep <= blocks; j += kStep) {
    ScoreBlocks<kType, kScaled, kAhead, kUnitsNow, kStep>(view, s, block + j, j);
  }
  for (; j < blocks; ++j) ScoreBlocks<kType, kScaled, kAhead, kUnitsNow, 1>(view, s, block + j, j);
  for (int u = 0; u < kUnitsNow; ++u) {
    const int64_t unit = first + (u < count ? u : count - 1);
    WeighChunk(view, s, u, PositionOf(view, unit), start, blocks);
  }
  const int32_t low = begin > start ? begin - start : 0;
  AddAllValues<kType, kScaled, kAhead, kUnitsNow>(view, s, block, blocks, low, keys);
}

inline void EndUnits(const AttentionArgs& a, const AttentionState& s, int64_t first, int count) {
  for (int u = 0; u < count; ++u) {
    const int64_t unit = first + u;
    const int64_t head = unit % a.group;
    float total = ReduceAdd(Load(s.sum + u * kLanes));
    float factor = 1.0f;
    if (a.sinks != nullptr) {
      const float top = s.top[u];
      const float sink = a.sinks[head];
      float lanes[kLanes];
      const float m = sink > top ? sink : top;
      Store(lanes, Exp(Set1(top - m)));
      factor = lanes[0];
      Store(lanes, Exp(Set1(sink - m)));
      total = total * factor + lanes[0];
    }
    float* to = a.out + unit / a.group * a.out_stride + head * a.value_dim;
    const F scale = Set1(factor / total);
    ForLanes(a.value_dim, [&](int32_t i, int n) {
      StoreN(to + i, Mul(LoadN(s.output + u * a.value_dim + i, n), scale), n);
    });
  }
}

// Where chunks begin that units from `first` on look at.
inline int32_t FirstChunk(const AttentionArgs& a, int64_t first) {
  const int32_t position = PositionOf(a, first);
  const int32_t begin = a.window > 0 && position >= a.window ? position - a.window + 1 : 0;
  return begin / kAttentionChunk * kAttentionChunk;
}

// A few units: keys and values are read as they are stored.
template <KvDType kType, int kUnitsNow>
void AttendUnits(const AttentionArgs& a, int64_t first, int count, AttentionState& s) {
  BeginUnits<kUnitsNow>(a, s, first, count);
  const int32_t last = PositionOf(a, first + count - 1);
  s.blocks = last / kKvBlockTokens + 1;
  for (int32_t start = FirstChunk(a, first); start <= last; start += kAttentionChunk) {
    AttendChunk<kType, kType == KvDType::kI8, true, kUnitsNow>(a, s, first, count, start,
                                                               start / kKvBlockTokens);
  }
  EndUnits(a, s, first, count);
}

// Calls use with 1, 2, 4 or kUnits, the least that `count` units take.
template <typename Use>
void WithUnits(int count, Use use) {
  if (count == 1) {
    use.template operator()<1>();
  } else if (count == 2) {
    use.template operator()<2>();
  } else if (count <= 4) {
    use.template operator()<4>();
  } else {
    use.template operator()<kUnits>();
  }
}

// Turns a chunk's keys and values into floats that lie as in blocks of kF32, scales behind them.
template <KvDType kType>
void UnpackBlock(const AttentionArgs& a, const std::byte* block, float* to) {
  constexpr int64_t kElement = static_cast<int64_t>(KvElementBytes(kType));
  auto unpack = [&](const std::byte* tile, int64_t values) {
    int64_t i = 0;
    for (; i + kLanes <= values; i += kLanes) {
      Store(to + i, LoadKv<kType>(tile, i));
      if (i * kElement % 64 == 0) PrefetchFar(tile + (i + 16 * kLanes) * kElement);
    }
    for (; i < values; ++i) to[i] = LoadKvOne<kType>(tile, i);
    to += values;
    if constexpr (kType == KvDType::kI8) {
      Store(to, Load(reinterpret_cast<const float*>(tile + values)));
    }
    to += kLanes;
  };
  unpack(block + a.key_offset, int64_t{a.key_dim} * kKvBlockTokens);
  unpack(block + a.value_offset, int64_t{a.value_dim} * kKvBlockTokens);
}

// Many units: all of them go through a chunk of keys and values before the next one is read, and
// share its unpacking. Each unit's arithmetic is that of AttendUnits, in the same order.
template <KvDType kType>
void AttendTogether(const AttentionArgs& a, int64_t first, int count) {
  AttentionState s;
  s.query = a.scratch;
  s.output = s.query + kAttentionTask * a.key_dim;
  s.sum = s.output + kAttentionTask * a.value_dim;
  s.top = s.sum + kAttentionTask * kLanes;
  s.score = s.top + kAttentionTask;
  s.blocks = 0;
  float* const unpacked = s.score + kUnits * kAttentionChunk;
  const int64_t block_floats = int64_t{a.key_dim + a.value_dim} * kKvBlockTokens + 2 * kLanes;
  constexpr int32_t kChunkBlocks = kAttentionChunk / kKvBlockTokens;
  const std::byte* tiles[kChunkBlocks];
  for (int32_t j = 0; j < kChunkBlocks; ++j) {
    tiles[j] = reinterpret_cast<const std::byte*>(unpacked + j * block_floats);
  }
  AttentionArgs view = a;
  view.blocks = tiles;
  view.key_offset = 0;
  view.value_offset = (int64_t{a.key_dim} * kKvBlockTokens + kLanes) * sizeof(float);
  auto each_group = [&](auto use) {
    for (int u = 0; u < count; u += kUnits) {
      AttentionState group = s;
      group.query += u * a.key_dim;
      group.output += u * a.value_dim;
      group.sum += u * kLanes;
      group.top += u;
      const int units = count - u < kUnits ? count - u : kUnits;
      WithUnits(units, [&]<int kUnitsNow>() {
        use.template operator()<kUnitsNow>(group, first + u, units);
      });
    }
  };
  each_group([&]<int kUnitsNow>(const AttentionState& group, int64_t unit, int units) {
    BeginUnits<kUnitsNow>(a, group, unit, units);
  });
  const int32_t last = PositionOf(a, first + count - 1);
  for (int32_t start = FirstChunk(a, first); start <= last; start += kAttentionChunk) {
    const int32_t block = start / kKvBlockTokens;
    for (int32_t j = 0; j < kChunkBlocks && start + j * kKvBlockTokens <= last; ++j) {
      UnpackBlock<kType>(a, a.blocks[block + j], unpacked + j * block_floats);
    }
    each_group([&]<int kUnitsNow>(const AttentionState& group, int64_t unit, int units) {
      AttendChunk<KvDType::kF32, kType == KvDType::kI8, false, kUnitsNow>(view, group, unit, units,
                                                                          start, 0);
    });
  }
  each_group([&]<int kUnitsNow>(const AttentionState& group, int64_t unit, int units) {
    EndUnits(a, group, unit, units);
  });
}

template <KvDType kType>
void AttendAll(const AttentionArgs& a, int64_t first, int64_t last) {
  if (last - first > kUnits) {
    for (int64_t unit = first; unit < last; unit += kAttentionTask) {
      const int64_t left = last - unit;
      AttendTogether<kType>(a, unit,
                            static_cast<int>(left < kAttentionTask ? left : kAttentionTask));
    }
    return;
  }
  AttentionState s;
  s.query = a.scratch;
  s.output = s.query + kUnits * a.key_dim;
  s.score = s.output + kUnits * a.value_dim;
  s.sum = s.score + kUnits * kAttentionChunk;
  s.top = s.sum + kUnits * kLanes;
  const int count = static_cast<int>(last - first);
  if (count <= 0) return;
  WithUnits(count, [&]<int kUnitsNow>() { AttendUnits<kType, kUnitsNow>(a, first, count, s); });
}

void AttentionRange(const AttentionArgs& a, int64_t first, int64_t last) {
  switch (a.kv_dtype) {
    case KvDType::kF16:
      return AttendAll<KvDType::kF16>(a, first, last);
    case KvDType::kI8:
      return AttendAll<KvDType::kI8>(a, first, last);
    case KvDType::kF32:
      return AttendAll<KvDType::kF32>(a, first, last);
  }
}

// ---- Measures of the machine
// ----------------------------------------------------------------------

int32_t ReadAll(const std::byte* data, int64_t bytes) {
  I sum[4] = {ZeroI(), ZeroI(), ZeroI(), ZeroI()};
  for (int64_t i = 0; i + 256 <= bytes; i += 256) {
#pragma GCC unroll 16
    for (int j = 0; j < 4; ++j) {
      PrefetchStream(data + i + 64 * j);
      sum[j] = AddI(sum[j], LoadI(data + i + 64 * j));
    }
  }
  return ReduceAddI(AddI(AddI(sum[0], sum[1]), AddI(sum[2], sum[3])));
}

int32_t Int8Rounds(int64_t rounds) {
  alignas(64) uint8_t bytes[4][64];
  for (int i = 0; i < 256; ++i) bytes[i / 64][i % 64] = static_cast<uint8_t>(i % 64);
  const int8_t x[3][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}, {1, -1, 2, -2}};
  I acc[12];
#pragma GCC unroll 16
  for (int j = 0; j < 12; ++j) acc[j] = SetI(j);  // or equal sums would be computed once
  for (int64_t r = 0; r < rounds; ++r) {
    asm volatile("" : "+m"(bytes));  // or the products would be hoisted
    B w[4];
#pragma GCC unroll 16
    for (int j = 0; j < 4; ++j) w[j] = LoadBytes(bytes[j]);
#pragma GCC unroll 16
    for (int j = 0; j < 12; ++j) acc[j] = Dot4<false>(acc[j], w[j % 4], x[j / 4]);
  }
#pragma GCC unroll 16
  for (int j = 1; j < 12; ++j) acc[0] = AddI(acc[0], acc[j]);
  return ReduceAddI(acc[0]);
}

float FloatRounds(int64_t rounds) {
  float start = 0.5f;
  F acc[12];
#pragma GCC unroll 16
  for (int j = 0; j < 12; ++j) acc[j] = Set1(static_cast<float>(j));
  for (int64_t r = 0; r < rounds; ++r) {
    asm volatile("" : "+m"(start));
    const F w = Set1(start);
#pragma GCC unroll 16
    for (int j = 0; j < 12; ++j) acc[j] = Fma(acc[j], w, w);
  }
#pragma GCC unroll 16
  for (int j = 1; j < 12; ++j) acc[0] = Add(acc[0], acc[j]);
  return ReduceAdd(acc[0]);
}

// ---- The table
// ------------------------------------------------------------------------------------

template <int kBits, int kOffsetShift, Extra kExtra = Extra::kNone>
using Simple = Format<kBits, kOffsetShift, 0, kExtra, 32, nullptr>;
template <int kBits, int kOffsetShift, int kSub, Extra kExtra = Extra::kNone>
using Super = Format<kBits, kOffsetShift, kSub, kExtra, 256, nullptr>;

// use.operator()<Format>() of a block format; null for other dtypes.
template <class Use>
constexpr MatMulFn ForBlockFormat(DType dtype, Use use) {
  switch (dtype) {
    case DType::kQ4_0:
      return use.template operator()<Simple<4, 3>>();
    case DType::kQ4_1:
      return use.template operator()<Simple<4, -1, Extra::kBias>>();
    case DType::kQ5_0:
      return use.template operator()<Simple<5, 4>>();
    case DType::kQ5_1:
      return use.template operator()<Simple<5, -1, Extra::kBias>>();
    case DType::kQ8_0:
      return use.template operator()<Simple<8, 7>>();
    case DType::kQ2_K:
      return use.template operator()<Super<2, -1, 16, Extra::kMin>>();
    case DType::kQ3_K:
      return use.template operator()<Super<3, 2, 16>>();
    case DType::kQ4_K:
      return use.template operator()<Super<4, -1, 32, Extra::kMin>>();
    case DType::kQ5_K:
      return use.template operator()<Super<5, -1, 32, Extra::kMin>>();
    case DType::kQ6_K:
      return use.template operator()<Super<6, 5, 16>>();
    case DType::kIQ4_NL:
      return use.template operator()<Format<4, 7, 0, Extra::kNone, 32, kIq4Table>>();
    case DType::kIQ4_XS:
      return use.template operator()<Format<4, 7, 32, Extra::kNone, 256, kIq4Table>>();
    case DType::kIQ3_S:
      return use.template operator()<Format<4, 4, 32, Extra::kNone, 256, kIq3Table>>();
    case DType::kMXFP4:
      return use.template operator()<Format<4, 4, 0, Extra::kNone, 32, kMxfp4Table, true>>();
    case DType::kTQ2_0:
      return use.template operator()<Super<2, 0, 0>>();
    default:
      return nullptr;
  }
}

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
