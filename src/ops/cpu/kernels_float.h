// Matrix multiplication of float formats, in float32. Part of kernels_impl.h.
#ifndef TERRACE_OPS_CPU_KERNELS_FLOAT_H_
#define TERRACE_OPS_CPU_KERNELS_FLOAT_H_

#include "ops/cpu/kernels_stream.h"

namespace terrace::ops::cpu {
namespace {

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
        WithTileHeight<kFloatTile>(
            count, [&]<int kTile>() { FloatTile<W, kTile>(weight, a.cols, x, a.x_stride, acc); });
        WriteTile(a, acc, g, n, count);
        n += count;
      }
    }
  }
}

}  // namespace
}  // namespace terrace::ops::cpu

#endif  // TERRACE_OPS_CPU_KERNELS_FLOAT_H_
