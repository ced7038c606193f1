#include "ops/tolerance.h"

#include <algorithm>
#include <cmath>

namespace terrace::ops {

float MatMulTolerance(DType dtype, const float* w, const float* x, int32_t cols, Factors factors) {
  constexpr double kEps = kFloatEps;
  double products = 0;
  double squares = 0;        // of products
  double variance = 0;       // of activations at steps of largest / 127
  double word_variance = 0;  // of weights at steps of largest / 8191
  double hard = 0;
  double magnitude = 0;
  double row_max = 0, row_w1 = 0, row_w2 = 0;
  for (int32_t b = 0; b < cols; b += 32) {
    double x_max = 0, w_max = 0, w1 = 0, w2 = 0, x1 = 0, x2 = 0;
    for (int32_t i = b; i < std::min(b + 32, cols); ++i) {
      const double wi = w[i];
      const double xi = x[i];
      x_max = std::max(x_max, std::fabs(xi));
      w_max = std::max(w_max, std::fabs(wi));
      w1 += std::fabs(wi);
      w2 += wi * wi;
      x1 += std::fabs(xi);
      x2 += xi * xi;
      products += std::fabs(wi * xi);
      squares += wi * wi * xi * xi;
    }
    row_max = std::max(row_max, x_max);
    row_w1 += w1;
    row_w2 += w2;
    const double d = x_max / 127;
    variance += d * d / 12 * w2;
    word_variance += w_max / 8191 * (w_max / 8191) / 12 * x2;
    hard += d / 2 * w1;
    magnitude += 2 * w_max * x1;
  }
  const double between_blocks = (cols / 32.0 + 8) * kEps * magnitude;
  double tolerance = 1e-30;
  if (factors == Factors::kBf16) {
    tolerance += std::min(0x1p-7 * products, 6 * 0x1p-8 * std::sqrt(2.0 / 3 * squares)) +
                 (cols + 4) * kEps * products;
  } else if (dtype == DType::kW8A8) {
    const double d = row_max / 127;
    const double row_hard = d / 2 * row_w1;
    tolerance +=
        std::min(row_hard, 6 * d * std::sqrt(row_w2 / 12)) + 8 * kEps * (products + row_hard);
  } else if (Info(dtype).quantised) {
    tolerance += std::min(hard, 6 * std::sqrt(variance)) + between_blocks;
  } else {
    tolerance += (cols + 4) * kEps * products;
    const double finer = 127.0 / 8191;
    if (factors == Factors::kWords) {
      tolerance += 6 * std::sqrt(variance * finer * finer + word_variance) + between_blocks;
    }
  }
  return static_cast<float>(tolerance);
}

float AttentionTolerance(int32_t key_dim, int32_t keys, float scale, float softcap,
                         float largest_query, float largest_key, float largest_value, bool tiles) {
  const float dim = static_cast<float>(key_dim);
  const float products = dim * largest_query * largest_key * scale;
  const float score = (dim + 3) * kFloatEps * products + softcap * 8 * kFloatEps +
                      (tiles ? 3 * 0x1p-16f * products : 0.0f);
  return 2 * largest_value * (score + 4 * kFloatEps) + (tiles ? 0x1p-7f * largest_value : 0.0f) +
         static_cast<float>(keys + 4) * kFloatEps * largest_value;
}

}  // namespace terrace::ops
