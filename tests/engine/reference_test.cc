// Checkpoints that the reference library made (tests/data/checkpoints/make.py), against its logits:
// whole forward passes of architectures and of kinds of rope scaling, read from safetensors
// folders.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/testing.h"

namespace terrace::engine {
namespace {

constexpr uint64_t kBudget = 64 * kMiB;

// As in golden_test.cc: the error of an operator, of size `u` relative to a stream of unit RMS,
// adds up over `operators` of each of L layers and the head; the worst of n logits is sqrt(2 ln n)
// of its RMS.
double Tolerance(int layers, int operators, double u, size_t values) {
  return u * std::sqrt(1.0 * operators * layers + 1) *
         std::sqrt(2 * std::log(static_cast<double>(values)));
}

// With KV in float32 what is left are sums of at most 128 terms; in F16, their rounding; and for
// CPU variants activations in BF16.
constexpr double kF32 = 128 * 0x1p-24;
constexpr double kF16 = 0x1p-11 / 1.7320508;
constexpr double kBf16 = 0x1p-9 / 1.7320508 * 2;
// Kernels for many rows may take both factors in BF16, in every matrix and in attention: six
// operators of a layer (see golden_test.cc).
constexpr double kBothBf16 = kBf16 * 1.4142136;

class ReferenceCheckpoint : public testing::TestWithParam<std::string> {};

struct Case {
  std::string variant;
  double u;
  ops::KvDType kv = ops::KvDType::kF16;
  int operators = 2;  // of a layer that err by u
  bool deterministic = false;
};

void Check(const std::string& name, const Case& c) {
  SCOPED_TRACE(name + " on " + c.variant + (c.deterministic ? ", deterministic" : ""));
  const std::string folder = std::string(TERRACE_TEST_DATA) + "/checkpoints/" + name;
  const auto tokens = boost::json::value_to<std::vector<int32_t>>(
      boost::json::parse(ReadFile(folder + "/tokens.json")).at("tokens"));
  const std::string raw = ReadFile(folder + "/logits.f32");
  std::vector<float> want(raw.size() / sizeof(float));
  std::memcpy(want.data(), raw.data(), raw.size());
  Rig rig(c.variant, kBudget, 2, c.deterministic);
  EngineModelOptions options;
  options.kv_dtype = c.kv;
  auto model = rig.Open(folder, "m", false, std::move(options));
  ASSERT_NE(model, nullptr);
  auto logits = rig.engine().AllLogits(*model, tokens);
  ASSERT_TRUE(logits.ok()) << logits.status();
  ASSERT_EQ(logits->size(), want.size());
  double squares = 0;
  for (float value : want) squares += double{value} * value;
  const model::Config& config = model->architecture().config();
  const size_t flips = c.operators > 2 && config.experts.count > 0 ? tokens.size() / 16 : 0;
  const double worst = WorstError(*logits, want, want.size() / tokens.size(), flips);
  const double rms = std::sqrt(squares / static_cast<double>(want.size()));
  const double tolerance = rms * Tolerance(config.layer_count(), c.operators, c.u, want.size());
  std::printf("%s on %s: worst error %.2g of the RMS, tolerance %.2g\n", name.c_str(),
              c.variant.c_str(), worst / rms, tolerance / rms);
  EXPECT_LE(worst, tolerance);
}

TEST_P(ReferenceCheckpoint, GivesTheLogitsOfTheReferenceLibrary) {
  Check(GetParam(), {"ref", kF32, ops::KvDType::kF32});
  Check(GetParam(), {"ref", kF16});
  if (HaveOpenCl()) Check(GetParam(), {"opencl", kF16});
  for (const ops::CpuVariant& variant : ops::CpuVariants()) {
    if (!variant.supported) continue;
    if (ops::CpuFactors(variant.name, DType::kF16, 32, 32) == ops::Factors::kBf16) {
      Check(GetParam(), {variant.name, kBothBf16, ops::KvDType::kF16, 6});
      Check(GetParam(), {variant.name, kBf16, ops::KvDType::kF16, 2, true});
    } else {
      Check(GetParam(), {variant.name, kBf16});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ReferenceCheckpoint,
                         testing::Values("llama-yarn", "llama-linear", "llama-dynamic",
                                         "llama-frequencies", "mistral-window", "qwen3-yarn",
                                         "gemma2", "granite", "olmo2", "glm4", "qwen2-moe",
                                         "deepseek-v3-yarn", "gpt-oss-yarn"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace terrace::engine
