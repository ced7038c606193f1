// Sixteen lanes of AVX-512 (F, BW, VL, DQ, VNNI). Included by one translation unit, which is
// compiled for these instructions; everything has internal linkage.
#ifndef TERRACE_OPS_CPU_SIMD_AVX512_H_
#define TERRACE_OPS_CPU_SIMD_AVX512_H_

#include <immintrin.h>

#include <cstdint>

namespace terrace::ops::cpu {
namespace {

using F = __m512;   // 16 floats
using I = __m512i;  // 16 int32
using B = __m512i;  // 64 bytes

inline constexpr int kTileRows = 12;  // activation rows held in registers

inline F Set1(float x) { return _mm512_set1_ps(x); }
inline F Load(const float* p) { return _mm512_loadu_ps(p); }
inline void Store(float* p, F x) { _mm512_storeu_ps(p, x); }
inline F LoadPart(const float* p, int n) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p);
}
inline void StorePart(float* p, F x, int n) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), x);
}
inline F LoadHalf(const void* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
inline void StoreHalf(void* p, F x) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
inline F Add(F a, F b) { return _mm512_add_ps(a, b); }
inline F Sub(F a, F b) { return _mm512_sub_ps(a, b); }
inline F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F Div(F a, F b) { return _mm512_div_ps(a, b); }
inline F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F Max(F a, F b) { return _mm512_max_ps(a, b); }
inline F Min(F a, F b) { return _mm512_min_ps(a, b); }
inline F Abs(F a) { return _mm512_abs_ps(a); }
inline float ReduceAdd(F a) { return _mm512_reduce_add_ps(a); }
inline float ReduceMax(F a) { return _mm512_reduce_max_ps(a); }
// a where a lane of `test` is below `limit`, else b.
inline F SelectBelow(F test, F limit, F a, F b) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(test, limit, _CMP_LT_OQ), b, a);
}
// Lanes [low, high) of x, `fill` elsewhere.
inline F KeepLanes(F x, int low, int high, F fill) {
  const uint32_t mask =
      (high >= 16 ? 0xffffu : (1u << (high < 0 ? 0 : high)) - 1) & ~(low <= 0    ? 0u
                                                                     : low >= 16 ? 0xffffu
                                                                                 : (1u << low) - 1);
  return _mm512_mask_blend_ps(static_cast<__mmask16>(mask), fill, x);
}

// Lane j of row i becomes lane i of row j.
#define TERRACE_HAS_TRANSPOSE 1
inline void Transpose(F* r) {
  F t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  // Four rows: [4 q + k] has column 4 l + k of rows 4 q .. 4 q + 3 in its 128-bit part l.
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const __m512d a = _mm512_castps_pd(t[i]), b = _mm512_castps_pd(t[i + 1]);
    const __m512d c = _mm512_castps_pd(t[i + 2]), d = _mm512_castps_pd(t[i + 3]);
    r[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
    r[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
    r[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
    r[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
  }
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    t[k] = _mm512_shuffle_f32x4(r[k], r[4 + k], 0x88);           // parts 0 2 of rows 0, 0 2 of 4
    t[4 + k] = _mm512_shuffle_f32x4(r[k], r[4 + k], 0xdd);       // parts 1 3
    t[8 + k] = _mm512_shuffle_f32x4(r[8 + k], r[12 + k], 0x88);  // of rows 8 and 12
    t[12 + k] = _mm512_shuffle_f32x4(r[8 + k], r[12 + k], 0xdd);
  }
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    r[k] = _mm512_shuffle_f32x4(t[k], t[8 + k], 0x88);
    r[8 + k] = _mm512_shuffle_f32x4(t[k], t[8 + k], 0xdd);
    r[4 + k] = _mm512_shuffle_f32x4(t[4 + k], t[12 + k], 0x88);
    r[12 + k] = _mm512_shuffle_f32x4(t[4 + k], t[12 + k], 0xdd);
  }
}

inline I ZeroI() { return _mm512_setzero_si512(); }
inline I SetI(int32_t x) { return _mm512_set1_epi32(x); }
inline I AddI(I a, I b) { return _mm512_add_epi32(a, b); }
template <int kBits>
inline I ShlI(I a) {
  return _mm512_slli_epi32(a, kBits);
}
template <int kBits>
inline I ShrI(I a) {  // of signed numbers
  return _mm512_srai_epi32(a, kBits);
}
inline I AndI(I a, I b) { return _mm512_and_si512(a, b); }
inline I MaxI(I a, I b) { return _mm512_max_epi32(a, b); }
inline int32_t ReduceMaxI(I a) { return _mm512_reduce_max_epi32(a); }
inline int32_t ReduceAddI(I a) { return _mm512_reduce_add_epi32(a); }
inline F ToF(I a) { return _mm512_cvtepi32_ps(a); }
inline I RoundToI(F a) { return _mm512_cvtps_epi32(a); }
inline F AsF(I a) { return _mm512_castsi512_ps(a); }
inline I AsI(F a) { return _mm512_castps_si512(a); }
inline void StoreI8(int8_t* p, I a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a));
}
inline I LoadI8(const void* p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
inline I LoadU8(const void* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
inline I LoadI(const void* p) { return _mm512_loadu_si512(p); }

inline B LoadBytes(const void* p) { return _mm512_loadu_si512(p); }
inline B And(B a, uint8_t mask) {
  return _mm512_and_si512(a, _mm512_set1_epi8(static_cast<char>(mask)));
}
inline B Or(B a, B b) { return _mm512_or_si512(a, b); }
// Shifts of 16-bit units: bits cross bytes and are masked away by the caller.
template <int kBits>
inline B Shr(B a) {
  return _mm512_srli_epi16(a, kBits);
}
template <int kBits>
inline B Shl(B a) {
  return _mm512_slli_epi16(a, kBits);
}
inline B LoadTable(const uint8_t* table) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
}
// table[code] for bytes below 16.
inline B Lookup(B table, B codes) { return _mm512_shuffle_epi8(table, codes); }

// acc[i] + sum over 4 bytes of w (unsigned) * x (signed), x the same four bytes for all lanes.
// kWide: bytes of w may exceed 127.
template <bool kWide>
inline I Dot4(I acc, B w, const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  return _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(four));
}

// acc[i] + w[i].low * x.low + w[i].high * x.high over signed 16-bit halves, x the same for all
// lanes.
#define TERRACE_HAS_WORDS 1
inline I DotWords(I acc, I w, const int16_t* x) {
  int32_t pair;
  __builtin_memcpy(&pair, x, 4);
  return _mm512_dpwssd_epi32(acc, w, _mm512_set1_epi32(pair));
}
inline I OrI(I a, I b) { return _mm512_or_si512(a, b); }
inline void StoreI(void* p, I a) { _mm512_storeu_si512(p, a); }
inline void StoreI16(int16_t* p, I a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a));
}

// The rate of 16-bit dot products (see Kernels::word_rounds).
inline int32_t WordRounds(int64_t rounds) {
  I w = _mm512_set1_epi16(3);
  I acc[12];
#pragma GCC unroll 12
  for (int j = 0; j < 12; ++j) acc[j] = SetI(j);
  for (int64_t r = 0; r < rounds; ++r) {
    asm volatile("" : "+v"(w));
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) acc[j] = _mm512_dpwssd_epi32(acc[j], w, w);
  }
#pragma GCC unroll 12
  for (int j = 1; j < 12; ++j) acc[0] = AddI(acc[0], acc[j]);
  return ReduceAddI(acc[0]);
}
inline constexpr int32_t (*kWordRounds)(int64_t) = WordRounds;

// Into the second-level cache only.
inline void PrefetchFar(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }
inline void Prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

}  // namespace
}  // namespace terrace::ops::cpu

#endif  // TERRACE_OPS_CPU_SIMD_AVX512_H_
