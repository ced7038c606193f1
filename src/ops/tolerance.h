// Derived bounds on how far an operator's result may be from the exact one: used by tests and by
// `terrace verify ops`, so that both hold kernels to the same measure.
#ifndef TERRACE_OPS_TOLERANCE_H_
#define TERRACE_OPS_TOLERANCE_H_

#include <cstdint>

#include "tensor/dtype.h"

namespace terrace::ops {

inline constexpr float kFloatEps = 0x1p-24f;  // rounding of one float32 operation

// How a matrix kernel takes its factors.
enum class Factors : uint8_t {
  kStored,  // float formats as they are; block formats and W8A8 by activations rounded to INT8
  kWords,   // float formats rounded to 14-bit integers, in blocks of 32 columns
  kBf16,    // weights and activations rounded to BF16
};

// For one element y = w . x of a matrix multiplication with weights of `dtype`.
//
// Float formats: n products and sums in float32 err by at most n eps sum|w x|. As words both
// factors are rounded to steps of their block's largest / 8191.
//
// Block formats round activations to multiples of d = max|x| / 127 of their block of 32. The error
// of an element is at most d / 2 and, for data that does not know the grid, uniform: its variance
// is d^2 / 12. The sum's deviation is s = sqrt(sum_b d_b^2 / 12 |w_b|^2); six s are exceeded once
// in 5e8 normal draws (a sum of few uniforms even less), and never more than the hard bound sum_b
// d_b / 2 |w_b|_1. Sums inside a block are exact integers; between blocks they round, and codes are
// offset before, so magnitudes up to twice the block's largest weight take part.
// W8A8: the same with one d for the whole row; sums are exact integers, and the result is rounded a
// few times.
//
// BF16 keeps 8 bits: a factor is off by at most 2^-8 of itself, and uniformly. Over both factors
// the sum's deviation is at most sqrt(2 / 3 sum (2^-8 w x)^2), six of which count, and never more
// than 2^-7 sum|w x|; sums are float32.
float MatMulTolerance(DType dtype, const float* w, const float* x, int32_t cols, Factors factors);

// For one element of attention whose scores are q . k * scale, capped by `softcap` if positive.
// `largest_*` bound the magnitudes of elements. A score is a float32 sum of key_dim products: it
// errs by at most (key_dim + 3) eps key_dim |q| |k| scale, a softcap adds a few ulp of the cap. A
// weight e^(s - max) carries that as a relative error, and e^x adds 2 ulp. The output is a convex
// combination of values, so it errs by twice the weights' error times the largest value, and its
// float32 sums add (keys + 4) eps of that.
// With `tiles`, queries and keys are sums of two BF16 numbers, each of which leaves at most 2^-18
// of its factor, as does the product of the low ones, and weights and values are rounded to BF16.
float AttentionTolerance(int32_t key_dim, int32_t keys, float scale, float softcap,
                         float largest_query, float largest_key, float largest_value,
                         bool tiles = false);

}  // namespace terrace::ops

#endif  // TERRACE_OPS_TOLERANCE_H_
