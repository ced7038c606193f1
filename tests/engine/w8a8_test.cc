// A model of INT8 matrices with a scale a row (W8A8) against the same weights in float32.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "engine/testing.h"
#include "format/gguf.h"
#include "format/requantize.h"

namespace terrace::engine {
namespace {

std::vector<float> Logits(const std::string& variant, const std::string& file, int* layers) {
  Rig rig(variant, 64 * kMiB);
  std::shared_ptr<EngineModel> model = rig.Open(file, "m");
  if (model == nullptr) return {};
  *layers = model->architecture().config().layer_count();
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 45; ++i) tokens.push_back((i * 37 + 11) % model->vocab_size());
  auto logits = rig.engine().AllLogits(*model, tokens);
  EXPECT_TRUE(logits.ok()) << logits.status();
  return logits.ok() ? *std::move(logits) : std::vector<float>();
}

TEST(W8A8Test, LogitsAreThoseOfTheWeightsButForRoundedActivations) {
  TempFolder folder;
  const std::string int8 = folder.path() + "/w8a8.gguf", floats = folder.path() + "/floats.gguf";
  auto source = format::OpenGguf(std::string(TERRACE_TEST_DATA) + "/golden/quant/wide.F32.gguf");
  ASSERT_TRUE(source.ok()) << source.status();
  ASSERT_TRUE(format::Requantize(*source, DType::kW8A8, int8).ok());
  auto quantised = format::OpenGguf(int8);
  ASSERT_TRUE(quantised.ok()) << quantised.status();
  ASSERT_TRUE(format::Requantize(*quantised, DType::kF32, floats).ok());

  int layers = 0;
  const std::vector<float> want = Logits("ref", floats, &layers);
  ASSERT_FALSE(want.empty());
  double rms = 0;
  for (float v : want) rms += static_cast<double>(v) * v;
  rms = std::sqrt(rms / static_cast<double>(want.size()));
  // As in golden_test.cc, with steps of the largest of a row of up to 1024 normal values: 3.4 RMS.
  const double u = 3.4 / 127 / std::sqrt(12.0);
  const double tolerance = rms * u * std::sqrt(2.0 * layers + 1) *
                           std::sqrt(2 * std::log(static_cast<double>(want.size())));
  std::vector<std::string> variants = {"ref"};
  for (const ops::CpuVariant& variant : ops::CpuVariants()) {
    if (variant.supported) variants.push_back(variant.name);
  }
  if (HaveOpenCl()) variants.push_back("opencl");
  for (const std::string& variant : variants) {
    const std::vector<float> got = Logits(variant, int8, &layers);
    ASSERT_EQ(got.size(), want.size()) << variant;
    double worst = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      worst = std::max(worst, std::fabs(static_cast<double>(got[i]) - want[i]));
    }
    std::printf("%s: worst error %.2g of the RMS, tolerance %.2g\n", variant.c_str(), worst / rms,
                tolerance / rms);
    EXPECT_LE(worst, variant == "ref" ? 0.0 : tolerance) << variant;
    if (variant != "ref" && variant != "opencl") {
      EXPECT_GT(worst, 0.0) << "activations are not rounded by " << variant;
    }
  }
}

}  // namespace
}  // namespace terrace::engine
