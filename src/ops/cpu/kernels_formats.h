// The packed block formats (packing.h): how codes are unpacked and what scales them. Part of
// kernels_impl.h.
#ifndef TERRACE_OPS_CPU_KERNELS_FORMATS_H_
#define TERRACE_OPS_CPU_KERNELS_FORMATS_H_

#include "ops/cpu/kernels.h"

namespace terrace::ops::cpu {
namespace {

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

struct AsStored {
  F operator()(F x) const { return x; }
};

// What 32 columns of 16 rows are scaled by: `block` is the block of the format, `planes` its group
// of 32 columns.
template <class Fm>
struct BlockScales {
  // `read` is called with what the block's own scales are.
  template <class Read = AsStored>
  inline __attribute__((always_inline)) BlockScales(const uint8_t* block, const uint8_t* planes,
                                                    Read read = {}) {
    const F d = read(Fm::LoadD(block));
    F dextra = Set1(0.0f);
    if constexpr (Fm::kHasExtra) dextra = read(LoadHalf(block + Fm::kDBytes));
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

}  // namespace
}  // namespace terrace::ops::cpu

#endif  // TERRACE_OPS_CPU_KERNELS_FORMATS_H_
