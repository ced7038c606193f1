// Sixteen lanes of AVX2 with FMA and F16C: two registers a value. Included by one translation unit,
// which is compiled for these instructions; everything has internal linkage.
#ifndef TERRACE_OPS_CPU_SIMD_AVX2_H_
#define TERRACE_OPS_CPU_SIMD_AVX2_H_

#include <immintrin.h>

#include <cstdint>

namespace terrace::ops::cpu {
namespace {

struct F {
  __m256 a, b;
};
struct I {
  __m256i a, b;
};
using B = I;

inline constexpr int kTileRows = 4;
// TERRACE_HAS_WORDS is not defined: 16-bit dot products gain nothing over float32 here.
inline constexpr int32_t (*kWordRounds)(int64_t) = nullptr;

inline F Set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void Store(float* p, F x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
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
  const __m128i* h = static_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1))};
}
inline void StoreHalf(void* p, F x) {
  __m128i* h = static_cast<__m128i*>(p);
  _mm_storeu_si128(h, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(h + 1, _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
inline F Add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline F Sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline F Mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline F Div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline F Fma(F x, F y, F z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline F Max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline F Min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline F Abs(F x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
inline float ReduceAdd(F x) {
  const __m256 t = _mm256_add_ps(x.a, x.b);
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
inline float ReduceMax(F x) {
  const __m256 t = _mm256_max_ps(x.a, x.b);
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}
inline F SelectBelow(F test, F limit, F x, F y) {
  return {_mm256_blendv_ps(y.a, x.a, _mm256_cmp_ps(test.a, limit.a, _CMP_LT_OQ)),
          _mm256_blendv_ps(y.b, x.b, _mm256_cmp_ps(test.b, limit.b, _CMP_LT_OQ))};
}
inline F KeepLanes(F x, int low, int high, F fill) {
  float t[16];
  float f[16];
  Store(t, x);
  Store(f, fill);
  for (int i = 0; i < 16; ++i) t[i] = i >= low && i < high ? t[i] : f[i];
  return Load(t);
}

inline I ZeroI() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline I SetI(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline I AddI(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
template <int kBits>
inline I ShlI(I x) {
  return {_mm256_slli_epi32(x.a, kBits), _mm256_slli_epi32(x.b, kBits)};
}
template <int kBits>
inline I ShrI(I x) {  // of signed numbers
  return {_mm256_srai_epi32(x.a, kBits), _mm256_srai_epi32(x.b, kBits)};
}
inline I AndI(I x, I y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
inline I MaxI(I x, I y) { return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)}; }
inline int32_t ReduceMaxI(I x) {
  __m256i t = _mm256_max_epi32(x.a, x.b);
  __m128i s = _mm_max_epi32(_mm256_castsi256_si128(t), _mm256_extracti128_si256(t, 1));
  s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
inline int32_t ReduceAddI(I x) {
  __m256i t = _mm256_add_epi32(x.a, x.b);
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(t), _mm256_extracti128_si256(t, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
inline F ToF(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline I RoundToI(F x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
inline F AsF(I x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
inline I AsI(F x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
// REQUIRES: values in the range of int8.
inline void StoreI8(int8_t* p, I x) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(p),
      _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
inline I LoadI8(const void* p) {
  const __m128i t = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepi8_epi32(t), _mm256_cvtepi8_epi32(_mm_srli_si128(t, 8))};
}
inline I LoadU8(const void* p) {
  const __m128i t = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return {_mm256_cvtepu8_epi32(t), _mm256_cvtepu8_epi32(_mm_srli_si128(t, 8))};
}
inline I LoadI(const void* p) {
  const __m256i* v = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
}

inline B LoadBytes(const void* p) { return LoadI(p); }
inline B And(B x, uint8_t mask) {
  const __m256i m = _mm256_set1_epi8(static_cast<char>(mask));
  return {_mm256_and_si256(x.a, m), _mm256_and_si256(x.b, m)};
}
inline B Or(B x, B y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
template <int kBits>
inline B Shr(B x) {
  return {_mm256_srli_epi16(x.a, kBits), _mm256_srli_epi16(x.b, kBits)};
}
template <int kBits>
inline B Shl(B x) {
  return {_mm256_slli_epi16(x.a, kBits), _mm256_slli_epi16(x.b, kBits)};
}
inline B LoadTable(const uint8_t* table) {
  const __m256i t =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return {t, t};
}
inline B Lookup(B table, B codes) {
  return {_mm256_shuffle_epi8(table.a, codes.a), _mm256_shuffle_epi8(table.b, codes.b)};
}

// Without VNNI: pairs of products are summed in 16 bits where they fit (bytes of w up to 127), else
// even and odd bytes are widened first.
template <bool kWide>
inline __m256i Dot4Half(__m256i acc, __m256i w, __m256i x) {
  if constexpr (kWide) {
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(w, _mm256_set1_epi16(0xff)),
                                           _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8));
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(w, 8), _mm256_srai_epi16(x, 8));
    return _mm256_add_epi32(acc, _mm256_add_epi32(even, odd));
  } else {
    const __m256i pairs = _mm256_maddubs_epi16(w, x);
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
}
template <bool kWide>
inline I Dot4(I acc, B w, const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  const __m256i v = _mm256_set1_epi32(four);
  return {Dot4Half<kWide>(acc.a, w.a, v), Dot4Half<kWide>(acc.b, w.b, v)};
}

// Into the second-level cache only.
inline void PrefetchFar(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
inline void Prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

}  // namespace
}  // namespace terrace::ops::cpu

#endif  // TERRACE_OPS_CPU_SIMD_AVX2_H_
