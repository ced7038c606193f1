// Norms, rotations, activations and the mathematics they take, for one row. Part of kernels_impl.h.
#ifndef TERRACE_OPS_CPU_KERNELS_ELEMENTWISE_H_
#define TERRACE_OPS_CPU_KERNELS_ELEMENTWISE_H_

#include "ops/cpu/kernels_lanes.h"

namespace terrace::ops::cpu {
namespace {

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

// activation(gate) * up.
inline F Glu(Activation activation, F gate, F up) {
  F exponent = Sub(Set1(0.0f), gate);
  if (activation == Activation::kGeluTanh) {
    // 0.5 (1 + tanh(u)) = 1 / (1 + e^-2u), u = sqrt(2 / pi) (g + 0.044715 g^3)
    const F cubic = Fma(Mul(Mul(gate, gate), Set1(0.044715f)), gate, gate);
    exponent = Mul(cubic, Set1(-1.5957691216057308f));
  }
  return Mul(Div(gate, Add(Set1(1.0f), Exp(exponent))), up);
}

void GluRow(Activation activation, const float* gate, const float* up, int32_t n, float* out) {
  ForLanes(n, [&](int32_t i, int count) {
    StoreN(out + i, Glu(activation, LoadN(gate + i, count), LoadN(up + i, count)), count);
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

}  // namespace
}  // namespace terrace::ops::cpu

#endif  // TERRACE_OPS_CPU_KERNELS_ELEMENTWISE_H_
