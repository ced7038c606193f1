// Sixteen lanes of NEON (AArch64), four registers a value. Included by one translation unit for
// each variant, which defines TERRACE_NEON_DOT where it is compiled for the dot-product
// instructions (Armv8.2 FEAT_DotProd); everything has internal linkage.
#ifndef TERRACE_OPS_CPU_SIMD_NEON_H_
#define TERRACE_OPS_CPU_SIMD_NEON_H_

#include <arm_neon.h>

#include <cstdint>

namespace terrace::ops::cpu {
namespace {

struct F {
  float32x4_t v[4];
};
struct I {
  int32x4_t v[4];
};
struct B {
  uint8x16_t v[4];
};

inline constexpr int kTileRows = 4;
// TERRACE_HAS_WORDS is not defined: 16-bit dot products gain nothing over float32 here.
inline constexpr int32_t (*kWordRounds)(int64_t) = nullptr;

// One operation of four lanes, over the four registers.
template <typename V, typename Op>
inline V Each(Op op) {
  return {{op(0), op(1), op(2), op(3)}};
}

inline F Set1(float x) {
  return Each<F>([&](int) { return vdupq_n_f32(x); });
}
inline F Load(const float* p) {
  return Each<F>([&](int i) { return vld1q_f32(p + 4 * i); });
}
inline void Store(float* p, F x) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, x.v[i]);
}
inline F LoadPart(const float* p, int n) {
  float t[16] = {};
  for (int i = 0; i < n; ++i) t[i] = p[i];
  return Load(t);
}
inline void StorePart(float* p, F x, int n) {
  float t[16];
  Store(t, x);
  for (int i = 0; i < n; ++i) p[i] = t[i];
}
inline F LoadHalf(const void* p) {
  const uint16_t* h = static_cast<const uint16_t*>(p);
  return Each<F>([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(h + 4 * i))); });
}
inline void StoreHalf(void* p, F x) {
  uint16_t* h = static_cast<uint16_t*>(p);
  for (int i = 0; i < 4; ++i) vst1_u16(h + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(x.v[i])));
}
inline F Add(F x, F y) {
  return Each<F>([&](int i) { return vaddq_f32(x.v[i], y.v[i]); });
}
inline F Sub(F x, F y) {
  return Each<F>([&](int i) { return vsubq_f32(x.v[i], y.v[i]); });
}
inline F Mul(F x, F y) {
  return Each<F>([&](int i) { return vmulq_f32(x.v[i], y.v[i]); });
}
inline F Div(F x, F y) {
  return Each<F>([&](int i) { return vdivq_f32(x.v[i], y.v[i]); });
}
inline F Fma(F x, F y, F z) {
  return Each<F>([&](int i) { return vfmaq_f32(z.v[i], x.v[i], y.v[i]); });
}
// The second operand where one of them is a NaN, as on other machines.
inline F Max(F x, F y) {
  return Each<F>([&](int i) { return vbslq_f32(vcgtq_f32(x.v[i], y.v[i]), x.v[i], y.v[i]); });
}
inline F Min(F x, F y) {
  return Each<F>([&](int i) { return vbslq_f32(vcltq_f32(x.v[i], y.v[i]), x.v[i], y.v[i]); });
}
inline F Abs(F x) {
  return Each<F>([&](int i) { return vabsq_f32(x.v[i]); });
}
inline float ReduceAdd(F x) {
  return vaddvq_f32(vaddq_f32(vaddq_f32(x.v[0], x.v[1]), vaddq_f32(x.v[2], x.v[3])));
}
inline float ReduceMax(F x) {
  return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.v[0], x.v[1]), vmaxq_f32(x.v[2], x.v[3])));
}
inline F SelectBelow(F test, F limit, F x, F y) {
  return Each<F>(
      [&](int i) { return vbslq_f32(vcltq_f32(test.v[i], limit.v[i]), x.v[i], y.v[i]); });
}
inline F KeepLanes(F x, int low, int high, F fill) {
  float t[16];
  float f[16];
  Store(t, x);
  Store(f, fill);
  for (int i = 0; i < 16; ++i) t[i] = i >= low && i < high ? t[i] : f[i];
  return Load(t);
}

inline I SetI(int32_t x) {
  return Each<I>([&](int) { return vdupq_n_s32(x); });
}
inline I ZeroI() { return SetI(0); }
inline I AddI(I x, I y) {
  return Each<I>([&](int i) { return vaddq_s32(x.v[i], y.v[i]); });
}
template <int kBits>
inline I ShlI(I x) {
  return Each<I>([&](int i) { return vshlq_n_s32(x.v[i], kBits); });
}
template <int kBits>
inline I ShrI(I x) {  // of signed numbers
  return Each<I>([&](int i) { return vshrq_n_s32(x.v[i], kBits); });
}
inline I AndI(I x, I y) {
  return Each<I>([&](int i) { return vandq_s32(x.v[i], y.v[i]); });
}
inline I MaxI(I x, I y) {
  return Each<I>([&](int i) { return vmaxq_s32(x.v[i], y.v[i]); });
}
inline int32_t ReduceMaxI(I x) {
  return vmaxvq_s32(vmaxq_s32(vmaxq_s32(x.v[0], x.v[1]), vmaxq_s32(x.v[2], x.v[3])));
}
inline int32_t ReduceAddI(I x) {
  return vaddvq_s32(vaddq_s32(vaddq_s32(x.v[0], x.v[1]), vaddq_s32(x.v[2], x.v[3])));
}
inline F ToF(I x) {
  return Each<F>([&](int i) { return vcvtq_f32_s32(x.v[i]); });
}
inline I RoundToI(F x) {
  return Each<I>([&](int i) { return vcvtnq_s32_f32(x.v[i]); });
}
inline F AsF(I x) {
  return Each<F>([&](int i) { return vreinterpretq_f32_s32(x.v[i]); });
}
inline I AsI(F x) {
  return Each<I>([&](int i) { return vreinterpretq_s32_f32(x.v[i]); });
}
// REQUIRES: values in the range of int8.
inline void StoreI8(int8_t* p, I x) {
  const int16x8_t low = vcombine_s16(vmovn_s32(x.v[0]), vmovn_s32(x.v[1]));
  const int16x8_t high = vcombine_s16(vmovn_s32(x.v[2]), vmovn_s32(x.v[3]));
  vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}
inline I LoadI8(const void* p) {
  const int8x16_t b = vld1q_s8(static_cast<const int8_t*>(p));
  const int16x8_t low = vmovl_s8(vget_low_s8(b));
  const int16x8_t high = vmovl_s8(vget_high_s8(b));
  return {{vmovl_s16(vget_low_s16(low)), vmovl_s16(vget_high_s16(low)),
           vmovl_s16(vget_low_s16(high)), vmovl_s16(vget_high_s16(high))}};
}
inline I LoadU8(const void* p) {
  const uint8x16_t b = vld1q_u8(static_cast<const uint8_t*>(p));
  const uint16x8_t low = vmovl_u8(vget_low_u8(b));
  const uint16x8_t high = vmovl_u8(vget_high_u8(b));
  return {{vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))),
           vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(low))),
           vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))),
           vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(high)))}};
}
inline I LoadI(const void* p) {
  const int32_t* w = static_cast<const int32_t*>(p);
  return Each<I>([&](int i) { return vld1q_s32(w + 4 * i); });
}

inline B LoadBytes(const void* p) {
  const uint8_t* b = static_cast<const uint8_t*>(p);
  return Each<B>([&](int i) { return vld1q_u8(b + 16 * i); });
}
inline B And(B x, uint8_t mask) {
  return Each<B>([&](int i) { return vandq_u8(x.v[i], vdupq_n_u8(mask)); });
}
inline B Or(B x, B y) {
  return Each<B>([&](int i) { return vorrq_u8(x.v[i], y.v[i]); });
}
// Bytes by themselves: what other machines let cross bytes is masked away by the caller.
template <int kBits>
inline B Shr(B x) {
  return Each<B>([&](int i) { return vshrq_n_u8(x.v[i], kBits); });
}
template <int kBits>
inline B Shl(B x) {
  return Each<B>([&](int i) { return vshlq_n_u8(x.v[i], kBits); });
}
inline B LoadTable(const uint8_t* table) {
  return Each<B>([&](int) { return vld1q_u8(table); });
}
inline B Lookup(B table, B codes) {
  return Each<B>([&](int i) { return vqtbl1q_u8(table.v[0], codes.v[i]); });
}

// Signed dot products of four bytes a lane.
inline int32x4_t DotSigned(int32x4_t acc, int8x16_t w, int8x16_t x) {
#ifdef TERRACE_NEON_DOT
  return vdotq_s32(acc, w, x);
#else
  const int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(x));
  const int16x8_t high = vmull_high_s8(w, x);
  return vaddq_s32(acc, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
#endif
}

// Both factors are signed here: bytes of w that may exceed 127 are moved down by 128, and 128 times
// the sum of x, the same for all lanes, is added for it.
template <bool kWide>
inline I Dot4(I acc, B w, const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  const int8x16_t xs = vreinterpretq_s8_s32(vdupq_n_s32(four));
  if constexpr (kWide) {
    const int32x4_t moved = vdupq_n_s32((x[0] + x[1] + x[2] + x[3]) * 128);
    return Each<I>([&](int i) {
      const int8x16_t ws = vreinterpretq_s8_u8(veorq_u8(w.v[i], vdupq_n_u8(0x80)));
      return DotSigned(vaddq_s32(acc.v[i], moved), ws, xs);
    });
  } else {
    return Each<I>([&](int i) { return DotSigned(acc.v[i], vreinterpretq_s8_u8(w.v[i]), xs); });
  }
}

// Into the second-level cache only.
inline void PrefetchFar(const void* p) { __builtin_prefetch(p, 0, 2); }
inline void Prefetch(const void* p) { __builtin_prefetch(p); }

}  // namespace
}  // namespace terrace::ops::cpu

#endif  // TERRACE_OPS_CPU_SIMD_NEON_H_
