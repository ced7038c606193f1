// Rows of activations as integers, in the forms that matrix kernels take (MatMulArgs). Part of
// kernels_impl.h.
#ifndef TERRACE_OPS_CPU_KERNELS_QUANTIZE_H_
#define TERRACE_OPS_CPU_KERNELS_QUANTIZE_H_

#include "ops/cpu/kernels.h"

namespace terrace::ops::cpu {
namespace {

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
    out->neg_sum_8 = -8 * (s0 + s1);
    out->neg_sum_half_32[0] = -32 * s0;
    out->neg_sum_half_32[1] = -32 * s1;
  }
}

void QuantizeWholeRow(const float* x, int32_t cols, int8_t* q, int64_t step, int64_t pair_step,
                      float* scale, int32_t* sum) {
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
  for (int32_t c = 0; c < cols; c += kBlock) {
    const I q0 = RoundToI(Mul(Load(x + c), Set1(inverse)));
    const I q1 = RoundToI(Mul(Load(x + c + kLanes), Set1(inverse)));
    int8_t* const to = q + c / (2 * kBlock) * pair_step + c / kBlock % 2 * step;
    StoreI8(to, q0);
    StoreI8(to + kLanes, q1);
    total = AddI(total, AddI(q0, q1));
  }
  *sum = ReduceAddI(total);
}

#ifdef TERRACE_HAS_WORDS

// 32 products of two such integers fill an int32 to its last bit, and no further: 32 * 8191^2 <
// 2^31.
inline constexpr float kWordMax = 8191.0f;

// Weights below this count as zero beside the rounding of any ordinary block.
inline constexpr float kWordTiny = 1e-30f;

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

#endif  // TERRACE_HAS_WORDS

}  // namespace
}  // namespace terrace::ops::cpu

#endif  // TERRACE_OPS_CPU_KERNELS_QUANTIZE_H_
