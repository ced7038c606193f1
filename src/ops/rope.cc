#include "ops/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace terrace::ops {
namespace {

// The pair whose wavelength makes `rotations` turns in the original context (YaRN, section 3.2).
double CorrectionDim(const RopeParams& p, double rotations) {
  return p.dim * std::log(p.yarn_original_context / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(static_cast<double>(p.base)));
}

}  // namespace

RopeTable::RopeTable(const RopeParams& p) {
  const int pairs = p.dim / 2;
  frequency_.resize(static_cast<size_t>(pairs));
  const double ext = p.yarn_ext_factor;
  double low = 0;
  double high = 0;
  if (ext != 0) {
    low = CorrectionDim(p, p.yarn_beta_fast);
    high = CorrectionDim(p, p.yarn_beta_slow);
    if (p.yarn_round_range) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(0.0, low);
    high = std::min(p.dim - 1.0, high);
  }
  for (int i = 0; i < pairs; ++i) {
    double frequency = std::pow(static_cast<double>(p.base), -2.0 * i / p.dim);
    if (p.frequency_factors.data != nullptr) frequency /= p.frequency_factors.data[i];
    double scaled = frequency * p.position_scale;
    if (ext != 0) {
      const double ramp = std::clamp((i - low) / std::max(0.001, high - low), 0.0, 1.0);
      const double mix = (1.0 - ramp) * ext;
      scaled = scaled * (1.0 - mix) + frequency * mix;
    }
    frequency_[static_cast<size_t>(i)] = scaled;
  }
  magnitude_ = p.yarn_attn_factor;
  if (ext != 0) magnitude_ *= 1.0 + 0.1 * std::log(1.0 / p.position_scale);
}

void RopeTable::Angles(int32_t position, float* cosines, float* sines) const {
  for (size_t i = 0; i < frequency_.size(); ++i) {
    const double angle = position * frequency_[i];
    cosines[i] = static_cast<float>(std::cos(angle) * magnitude_);
    sines[i] = static_cast<float>(std::sin(angle) * magnitude_);
  }
}

}  // namespace terrace::ops
