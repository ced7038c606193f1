// The two forms of latent attention compute the same but for rounding, each where it is cheaper: a
// prompt from its beginning expanded, what follows KV absorbed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engine/testing.h"

namespace terrace::engine {
namespace {

constexpr uint64_t kBudget = 64 * kMiB;
constexpr int kLayers = 3;

// The logits after each of `tokens`, read in pieces of `piece` by steps that are `uniform` or not.
// `before`: another sequence's prompt in the first step, and a token of it in the others.
std::vector<float> Logits(Rig* rig, EngineModel* model, std::span<const int32_t> tokens,
                          size_t piece, bool uniform, std::span<const int32_t> before = {}) {
  const tier::Owner owner{"m", "", tier::Kind::kKv};
  const uint64_t block_bytes = model->kv_geometry().block_bytes();
  kv::Sequence kv(&rig->manager(), nullptr, {}, owner, block_bytes);
  kv::Sequence other(&rig->manager(), nullptr, {}, owner, block_bytes);
  std::vector<float> logits;
  for (size_t done = 0; done < tokens.size(); done += piece) {
    std::vector<StepEntry> entries;
    if (!before.empty()) {
      const auto part = done == 0 ? before : before.first(1);
      entries.push_back({.kv = &other, .tokens = part, .want_logits = true});
    }
    const std::span<const int32_t> part =
        tokens.subspan(done, std::min(piece, tokens.size() - done));
    entries.push_back({.kv = &kv, .tokens = part, .uniform = uniform, .every = true});
    auto step = rig->engine().Step(*model, entries, nullptr);
    EXPECT_TRUE(step.ok()) << step.status();
    if (!step.ok()) return {};
    for (const std::span<float> row : step->entries.back().each) {
      logits.insert(logits.end(), row.begin(), row.end());
    }
  }
  return logits;
}

class LatentTest : public testing::TestWithParam<std::string> {
 protected:
  // As in golden_test.cc. Each form rounds keys and values once to F16 (u = 2^-11, uniform), the
  // latent vector or the heads'; variants take the factors of matrices as 14-bit words (the step of
  // a block's largest, at most 3 times its RMS, / 8191 is uniform) or as BF16. Of a layer's
  // operators the latent form has nine: queries and keys down and up, values, weighted values,
  // output; gate with up, down.
  // With KV in float32, sums in another order as in reference_test.cc.
  double Tolerance(const Golden& golden, ops::KvDType kv) const {
    double rms = 0;
    for (float value : golden.logits) rms += double{value} * value;
    rms = std::sqrt(rms / static_cast<double>(golden.logits.size()));
    double u = kv == ops::KvDType::kF32 ? 128 * 0x1p-24 : 0x1p-11 / std::sqrt(3.0);
    const ops::Factors factors = ops::CpuFactors(GetParam(), DType::kF16, 64, 128);
    if (factors != ops::Factors::kStored) u = std::hypot(u, 3.0 / 8191 / std::sqrt(6.0));
    if (factors == ops::Factors::kBf16) u = 0x1p-8 / std::sqrt(3.0) * std::sqrt(2.0);
    return rms * u * std::sqrt(9.0 * kLayers + 1) *
           std::sqrt(2 * std::log(static_cast<double>(golden.logits.size())));
  }
};

TEST_P(LatentTest, BothFormsGiveTheSameLogits) {
  const std::string base = std::string(TERRACE_TEST_DATA) + "/golden/arch/deepseek2";
  const Golden golden = ReadGolden(base);
  for (const ops::KvDType kv : {ops::KvDType::kF16, ops::KvDType::kF32}) {
    Rig rig(GetParam(), kBudget, 2);
    EngineModelOptions options;
    options.kv_dtype = kv;
    auto model = rig.Open(base + ".gguf", "m", false, options);
    ASSERT_NE(model, nullptr);
    const std::span<const int32_t> tokens(golden.tokens);
    const std::vector<float> absorbed = Logits(&rig, model.get(), tokens, 64, true);
    const std::vector<float> expanded = Logits(&rig, model.get(), tokens, 64, false);
    ASSERT_EQ(absorbed.size(), golden.logits.size());
    ASSERT_EQ(expanded.size(), golden.logits.size());
    const auto vocab = static_cast<size_t>(golden.vocab);
    // A router's close choice may turn out the other way for a token.
    constexpr size_t kFlips = 4;
    const double tolerance = Tolerance(golden, kv);
    const double apart = WorstError(expanded, absorbed, vocab, kFlips);
    std::printf("%s: the forms are %.2g apart, tolerance %.2g\n", GetParam().c_str(), apart,
                std::sqrt(2.0) * tolerance);
    EXPECT_LE(apart, std::sqrt(2.0) * tolerance);
    EXPECT_LE(WorstError(expanded, golden.logits, vocab, kFlips), tolerance);
    EXPECT_LE(WorstError(absorbed, golden.logits, vocab, kFlips), tolerance);
    EXPECT_NE(expanded, absorbed) << "the same form was used for both";

    // What follows the beginning is absorbed, beside others in either form.
    const std::vector<float> pieces = Logits(&rig, model.get(), tokens, 50, false);
    EXPECT_LE(WorstError(pieces, golden.logits, vocab, kFlips), tolerance);
    for (size_t count : {1, 5, 50}) {
      const std::vector<float> beside =
          Logits(&rig, model.get(), tokens, 50, false, tokens.first(count));
      EXPECT_LE(WorstError(beside, golden.logits, vocab, kFlips), tolerance) << count;
    }
  }
}

// Short prompts and decoding are absorbed, and so is everything where rounding must not depend on
// how a token comes.
TEST_P(LatentTest, TheFormFollowsThePhase) {
  const std::string base = std::string(TERRACE_TEST_DATA) + "/golden/arch/deepseek2";
  const Golden golden = ReadGolden(base);
  const std::span<const int32_t> tokens(golden.tokens);
  Rig rig("ref", kBudget, 2);  // on which nothing else depends on the number of rows
  auto model = rig.Open(base + ".gguf", "m");
  ASSERT_NE(model, nullptr);
  const std::vector<float> absorbed = Logits(&rig, model.get(), tokens, 64, true);
  EXPECT_EQ(Logits(&rig, model.get(), tokens, 15, false), absorbed);
  EXPECT_EQ(Logits(&rig, model.get(), tokens, 64, true, tokens.first(3)), absorbed);
  EXPECT_EQ(Logits(&rig, model.get(), tokens, 31, true), absorbed);
  EXPECT_NE(Logits(&rig, model.get(), tokens, 64, false), absorbed);
  Rig exact(GetParam(), kBudget, 2, true);
  auto same = exact.Open(base + ".gguf", "m");
  ASSERT_NE(same, nullptr);
  EXPECT_EQ(Logits(&exact, same.get(), tokens, 64, false),
            Logits(&exact, same.get(), tokens, 9, false));
}

std::vector<std::string> Variants() {
  std::vector<std::string> names;
  for (const ops::CpuVariant& variant : ops::CpuVariants()) {
    if (variant.supported) names.emplace_back(variant.name);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Variants, LatentTest, testing::ValuesIn(Variants()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace terrace::engine
