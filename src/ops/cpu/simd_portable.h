// Sixteen lanes in the compiler's own vector types, four registers a value: any machine with
// 128-bit vectors (SSE2, NEON). Included by one translation unit; everything has internal linkage.
#ifndef TERRACE_OPS_CPU_SIMD_PORTABLE_H_
#define TERRACE_OPS_CPU_SIMD_PORTABLE_H_

#include <cmath>
#include <cstdint>

#include "tensor/half.h"

namespace terrace::ops::cpu {
namespace {

typedef float F4 __attribute__((vector_size(16)));
typedef int32_t I4 __attribute__((vector_size(16)));
typedef uint32_t U4 __attribute__((vector_size(16)));
typedef int16_t I8x __attribute__((vector_size(16)));
typedef uint16_t U8x __attribute__((vector_size(16)));
typedef uint8_t B16 __attribute__((vector_size(16)));

struct F {
  F4 v[4];
};
struct I {
  I4 v[4];
};
struct B {
  B16 v[4];
};

inline constexpr int kTileRows = 4;
// TERRACE_HAS_WORDS is not defined: 16-bit dot products gain nothing over float32 here.
inline constexpr int32_t (*kWordRounds)(int64_t) = nullptr;

template <typename V, typename Op>
inline V Map(V a, V b, Op op) {
  V r;
  for (int i = 0; i < 4; ++i) r.v[i] = op(a.v[i], b.v[i]);
  return r;
}

inline F Set1(float x) {
  const F4 v = {x, x, x, x};
  return {{v, v, v, v}};
}
inline F Load(const float* p) {
  F r;
  __builtin_memcpy(&r, p, sizeof(r));
  return r;
}
inline void Store(float* p, F x) { __builtin_memcpy(p, &x, sizeof(x)); }
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
  uint16_t h[16];
  __builtin_memcpy(h, p, sizeof(h));
  F r;
  for (int j = 0; j < 4; ++j) {
    U4 bits = {h[j * 4], h[j * 4 + 1], h[j * 4 + 2], h[j * 4 + 3]};
    const U4 sign = (bits & 0x8000u) << 16;
    const U4 magnitude = bits & 0x7fffu;
    // Rebias by a multiplication, which also makes subnormals right; then infinities and NaN.
    const F4 scaled = reinterpret_cast<F4>(magnitude << 13) * 0x1p112f;
    const U4 special = reinterpret_cast<U4>(magnitude >= 0x7c00u) & 0x7f800000u;
    r.v[j] = reinterpret_cast<F4>(reinterpret_cast<U4>(scaled) | sign | special);
  }
  return r;
}
inline void StoreHalf(void* p, F x) {
  float t[16];
  uint16_t h[16];
  Store(t, x);
  for (int i = 0; i < 16; ++i) h[i] = FloatToHalf(t[i]);
  __builtin_memcpy(p, h, sizeof(h));
}
inline F Add(F x, F y) {
  return Map(x, y, [](F4 a, F4 b) { return a + b; });
}
inline F Sub(F x, F y) {
  return Map(x, y, [](F4 a, F4 b) { return a - b; });
}
inline F Mul(F x, F y) {
  return Map(x, y, [](F4 a, F4 b) { return a * b; });
}
inline F Div(F x, F y) {
  return Map(x, y, [](F4 a, F4 b) { return a / b; });
}
inline F Fma(F x, F y, F z) { return Add(Mul(x, y), z); }
inline F Max(F x, F y) {
  return Map(x, y, [](F4 a, F4 b) { return a > b ? a : b; });
}
inline F Min(F x, F y) {
  return Map(x, y, [](F4 a, F4 b) { return a < b ? a : b; });
}
inline F Abs(F x) {
  for (F4& v : x.v) v = reinterpret_cast<F4>(reinterpret_cast<U4>(v) & 0x7fffffffu);
  return x;
}
inline float ReduceAdd(F x) {
  const F4 s = (x.v[0] + x.v[1]) + (x.v[2] + x.v[3]);
  return (s[0] + s[1]) + (s[2] + s[3]);
}
inline float ReduceMax(F x) {
  float t[16];
  Store(t, x);
  float m = t[0];
  for (int i = 1; i < 16; ++i) m = t[i] > m ? t[i] : m;
  return m;
}
inline F SelectBelow(F test, F limit, F x, F y) {
  F r;
  for (int i = 0; i < 4; ++i) r.v[i] = test.v[i] < limit.v[i] ? x.v[i] : y.v[i];
  return r;
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
  const I4 v = {x, x, x, x};
  return {{v, v, v, v}};
}
inline I ZeroI() { return SetI(0); }
inline I AddI(I x, I y) {
  return Map(x, y, [](I4 a, I4 b) { return a + b; });
}
template <int kBits>
inline I ShlI(I x) {
  for (I4& v : x.v) v <<= kBits;
  return x;
}
template <int kBits>
inline I ShrI(I x) {  // of signed numbers
  for (I4& v : x.v) v >>= kBits;
  return x;
}
inline I AndI(I x, I y) {
  return Map(x, y, [](I4 a, I4 b) { return a & b; });
}
inline I MaxI(I x, I y) {
  return Map(x, y, [](I4 a, I4 b) { return a > b ? a : b; });
}
inline int32_t ReduceMaxI(I x) {
  int32_t t[16];
  __builtin_memcpy(t, &x, sizeof(t));
  int32_t m = t[0];
  for (int i = 1; i < 16; ++i) m = t[i] > m ? t[i] : m;
  return m;
}
inline int32_t ReduceAddI(I x) {
  const I4 s = (x.v[0] + x.v[1]) + (x.v[2] + x.v[3]);
  return (s[0] + s[1]) + (s[2] + s[3]);
}
inline F ToF(I x) {
  F r;
  for (int i = 0; i < 4; ++i) r.v[i] = __builtin_convertvector(x.v[i], F4);
  return r;
}
// Adding 1.5 * 2^23 rounds to the nearest integer, ties to even. REQUIRES: |x| < 2^22.
inline I RoundToI(F x) {
  I r;
  for (int i = 0; i < 4; ++i) {
    r.v[i] = reinterpret_cast<I4>(x.v[i] + 12582912.0f) - 0x4b400000;
  }
  return r;
}
inline F AsF(I x) {
  F r;
  __builtin_memcpy(&r, &x, sizeof(r));
  return r;
}
inline I AsI(F x) {
  I r;
  __builtin_memcpy(&r, &x, sizeof(r));
  return r;
}
inline void StoreI8(int8_t* p, I x) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(x.v[i / 4][i % 4]);
}
inline I LoadI8(const void* p) {
  const int8_t* b = static_cast<const int8_t*>(p);
  I r;
  for (int i = 0; i < 4; ++i) r.v[i] = I4{b[4 * i], b[4 * i + 1], b[4 * i + 2], b[4 * i + 3]};
  return r;
}
inline I LoadU8(const void* p) {
  const uint8_t* b = static_cast<const uint8_t*>(p);
  I r;
  for (int i = 0; i < 4; ++i) r.v[i] = I4{b[4 * i], b[4 * i + 1], b[4 * i + 2], b[4 * i + 3]};
  return r;
}
inline I LoadI(const void* p) {
  I r;
  __builtin_memcpy(&r, p, sizeof(r));
  return r;
}

inline B LoadBytes(const void* p) {
  B r;
  __builtin_memcpy(&r, p, sizeof(r));
  return r;
}
inline B And(B x, uint8_t mask) {
  for (B16& v : x.v) v &= mask;
  return x;
}
inline B Or(B x, B y) {
  return Map(x, y, [](B16 a, B16 b) { return a | b; });
}
template <int kBits>
inline B Shr(B x) {
  for (B16& v : x.v) v = reinterpret_cast<B16>(reinterpret_cast<U8x>(v) >> kBits);
  return x;
}
template <int kBits>
inline B Shl(B x) {
  for (B16& v : x.v) v = reinterpret_cast<B16>(reinterpret_cast<U8x>(v) << kBits);
  return x;
}
inline B LoadTable(const uint8_t* table) {
  B r;
  for (B16& v : r.v) __builtin_memcpy(&v, table, 16);
  return r;
}
inline B Lookup(B table, B codes) {
  B r;
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 16; ++j) r.v[i][j] = table.v[0][codes.v[i][j] & 15];
  }
  return r;
}

// Even and odd bytes as 16-bit units: a product of an unsigned and a signed byte fits in 16 bits.
template <bool kWide>
inline I Dot4(I acc, B w, const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  const I4 broadcast = {four, four, four, four};
  const I8x xs = reinterpret_cast<I8x>(broadcast);
  const I8x x_even = (xs << 8) >> 8;
  const I8x x_odd = xs >> 8;
  for (int i = 0; i < 4; ++i) {
    const U8x ws = reinterpret_cast<U8x>(w.v[i]);
    const I8x even = reinterpret_cast<I8x>(ws & 0xff) * x_even;
    const I8x odd = reinterpret_cast<I8x>(ws >> 8) * x_odd;
    const I4 e = reinterpret_cast<I4>(even);
    const I4 o = reinterpret_cast<I4>(odd);
    acc.v[i] += (((e << 16) >> 16) + (e >> 16)) + (((o << 16) >> 16) + (o >> 16));
  }
  return acc;
}

// Into the second-level cache only.
inline void PrefetchFar(const void* p) { __builtin_prefetch(p, 0, 2); }
inline void Prefetch(const void* p) { __builtin_prefetch(p); }

}  // namespace
}  // namespace terrace::ops::cpu

#endif  // TERRACE_OPS_CPU_SIMD_PORTABLE_H_
