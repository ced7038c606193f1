// INT8 and F16 KV against float32 KV, on every backend that this machine runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engine/testing.h"

namespace terrace::engine {
namespace {

std::vector<float> Logits(const std::string& arch, const std::string& variant, ops::KvDType dtype,
                          int* layers) {
  const std::string base = std::string(TERRACE_TEST_DATA) + "/golden/arch/" + arch;
  Rig rig(variant, 64 * kMiB, 2, true);  // the same kernels for each type
  EngineModelOptions options;
  options.kv_dtype = dtype;
  auto model = rig.Open(base + ".gguf", "m", false, options);
  if (model == nullptr) return {};
  *layers = model->architecture().config().layer_count();
  auto logits = rig.engine().AllLogits(*model, ReadGolden(base).tokens);
  EXPECT_TRUE(logits.ok()) << logits.status();
  return logits.ok() ? *std::move(logits) : std::vector<float>();
}

// One rounding of relative size u enters the stream with each layer's values, and one with its
// keys, which moves scores of RMS s by s u and with them the weights of the values: together u
// sqrt(1 + s^2). The errors of L layers are independent, so their RMS grows with sqrt(L), and the
// worst of N about normal errors is sqrt(2 ln N) of it. s is at most about 2 in these models (qwen3
// scales its keys by weights of its own). For F16 u is 2^-11 / sqrt(3) at most.
double F16Tolerance(int layers, size_t values) {
  constexpr double kScores = 2;
  return 0x1p-11 / std::sqrt(3.0) * std::sqrt((1 + kScores * kScores) * layers) *
         std::sqrt(2 * std::log(static_cast<double>(values)));
}

// INT8 errors pass through the same model, so they are to those of F16 as one u to the other:
//   - INT8 with a scale a token and head: the step is max|x| / 127 and the error uniform, so
//     step / sqrt(12); max|x| of some dozen to 256 normal values is at most 3 of their RMS: 0.0068.
//   - F16, on average over mantissas m in [1, 2): 2^-11 / sqrt(3) times the mean of 1 / m, ln 2.
// Half as much again for the worst of two samples of errors.
constexpr double kInt8OverF16 = 3.0 / 127 / 3.4641 / (0x1p-11 / 1.7320508 * 0.6931);
constexpr double kSamples = 1.5;

TEST(KvDType, LogitsStayWithinTheRoundingOfKeysAndValues) {
  std::vector<std::string> variants = {"ref"};
  for (const ops::CpuVariant& variant : ops::CpuVariants()) {
    if (variant.supported) variants.emplace_back(variant.name);
  }
  if (HaveOpenCl()) variants.emplace_back("opencl");
  for (const std::string& variant : variants) {
    for (const char* arch : {"qwen3", "gemma3", "phi3"}) {
      SCOPED_TRACE(std::string(arch) + " on " + variant);
      int layers = 0;
      const std::vector<float> exact = Logits(arch, variant, ops::KvDType::kF32, &layers);
      ASSERT_FALSE(exact.empty());
      double sum = 0;
      for (float value : exact) sum += static_cast<double>(value) * value;
      const double rms = std::sqrt(sum / static_cast<double>(exact.size()));
      double tolerance = F16Tolerance(layers, exact.size());
      for (const ops::KvDType dtype : {ops::KvDType::kF16, ops::KvDType::kI8}) {
        const std::vector<float> logits = Logits(arch, variant, dtype, &layers);
        ASSERT_EQ(logits.size(), exact.size());
        double worst = 0;
        for (size_t i = 0; i < exact.size(); ++i) {
          worst = std::max(worst, std::abs(static_cast<double>(logits[i]) - exact[i]));
        }
        std::printf("%s on %s, %s: worst %.2g of the RMS, tolerance %.2g\n", arch, variant.c_str(),
                    std::string(KvDTypeName(dtype)).c_str(), worst / rms, tolerance);
        EXPECT_LE(worst / rms, tolerance);
        EXPECT_GT(worst, 0) << "the type makes no difference";
        tolerance = worst / rms * kInt8OverF16 * kSamples;
      }
    }
  }
}

}  // namespace
}  // namespace terrace::engine
