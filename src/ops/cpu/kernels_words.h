// Matrix multiplication of float formats as 16-bit integers, for many rows. Included by
// kernels_impl.h where the lanes have such dot products.
#ifndef TERRACE_OPS_CPU_KERNELS_WORDS_H_
#define TERRACE_OPS_CPU_KERNELS_WORDS_H_

#include "ops/cpu/kernels_float.h"
#include "ops/cpu/kernels_quantize.h"

namespace terrace::ops::cpu {
namespace {

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

}  // namespace
}  // namespace terrace::ops::cpu

#endif  // TERRACE_OPS_CPU_KERNELS_WORDS_H_
