// What device.deterministic promises (docs/CONFIG.md): the same logits, bit by bit, whatever the
// number of threads, the pieces a prompt is read in and the sequences beside it; the same of
// entries that ask to be computed uniformly; and what holds without either.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/random.h"
#include "engine/testing.h"

namespace terrace::engine {
namespace {

constexpr uint64_t kBudget = 64 * kMiB;
constexpr int32_t kPrompt = 64;  // above the rows from which kernels for many rows take over

struct Setting {
  int threads;
  int32_t piece;      // tokens of the prompt read in one step
  int32_t neighbour;  // tokens of another sequence in every step
};

std::vector<int32_t> Tokens(int32_t count, int32_t vocab, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(random.Below(static_cast<uint64_t>(vocab)));
  }
  return tokens;
}

enum class Mode { kFastest, kUniform, kDeterministic };

// The logits after the prompt's last token.
std::vector<float> LastLogits(const std::string& file, const std::string& variant, Mode mode,
                              const Setting& setting) {
  Rig rig(variant, kBudget, setting.threads, mode == Mode::kDeterministic);
  std::shared_ptr<EngineModel> model = rig.Open(file, "m");
  if (model == nullptr) return {};
  const std::vector<int32_t> prompt = Tokens(kPrompt, model->vocab_size(), 7);
  const uint64_t block_bytes = model->kv_geometry().block_bytes();
  kv::Sequence kv(&rig.manager(), nullptr, {}, {"m", "", tier::Kind::kKv}, block_bytes);
  std::vector<float> logits;
  for (int32_t done = 0; done < kPrompt; done += setting.piece) {
    kv::Sequence other_kv(&rig.manager(), nullptr, {}, {"m", "", tier::Kind::kKv}, block_bytes);
    const std::vector<int32_t> other =
        Tokens(setting.neighbour, model->vocab_size(), static_cast<uint64_t>(100 + done));
    const int32_t count = std::min(setting.piece, kPrompt - done);
    std::vector<StepEntry> entries;
    if (!other.empty()) entries.push_back({&other_kv, other, true});
    entries.push_back(
        {&kv, std::span(prompt).subspan(static_cast<size_t>(done), static_cast<size_t>(count)),
         true});
    entries.back().uniform = mode == Mode::kUniform;
    auto step = rig.engine().Step(*model, entries, nullptr);
    EXPECT_TRUE(step.ok()) << step.status();
    if (!step.ok()) return {};
    EXPECT_TRUE(step->entries.back().status.ok());
    logits.assign(step->entries.back().logits.begin(), step->entries.back().logits.end());
  }
  return logits;
}

constexpr Setting kSettings[] = {{1, 1, 0},   {1, kPrompt, 0}, {2, kPrompt, 0},
                                 {3, 16, 48}, {2, 5, 2},       {3, kPrompt, 1}};

// What rounding the factors of matrices to what a variant's kernels for many rows take may change,
// relative to the logits' RMS: as in golden_test.cc, each of 2 L + 1 operators adds an error of
// relative size u.
double Tolerance(double u, int layers, size_t values) {
  return u * std::sqrt(2.0 * layers + 1) * std::sqrt(2 * std::log(static_cast<double>(values)));
}
constexpr double kBf16 = 0x1p-9 / 1.7320508 * 2;  // both factors, as there

class DeterministicTest : public testing::TestWithParam<std::string> {
 protected:
  static std::string File(const char* name) {
    return std::string(TERRACE_TEST_DATA) + "/golden/" + name + ".gguf";
  }

  // In the units of logits.
  static double CheckedTolerance(const char* name, const std::vector<float>& logits, double u) {
    double rms = 0;
    for (float value : logits) rms += static_cast<double>(value) * value;
    rms = std::sqrt(rms / static_cast<double>(logits.size()));
    Rig rig("portable", kBudget);
    const int layers = rig.Open(File(name), "m")->architecture().config().layer_count();
    return rms * Tolerance(u, layers, logits.size());
  }

  // Logits of a setting are near `want`, and the same with one thread more.
  static void ExpectClose(const char* name, const Setting& s, const std::vector<float>& want,
                          double tolerance) {
    const std::vector<float> logits = LastLogits(File(name), GetParam(), Mode::kFastest, s);
    ASSERT_EQ(logits.size(), want.size());
    for (size_t i = 0; i < logits.size(); ++i) {
      ASSERT_NEAR(logits[i], want[i], tolerance) << name << ", logit " << i;
    }
    Setting more = s;
    more.threads = s.threads + 1;
    EXPECT_EQ(LastLogits(File(name), GetParam(), Mode::kFastest, more), logits) << name;
  }
};

TEST_P(DeterministicTest, LogitsAreBitEqual) {
  for (const char* name : {"quant/wide.F16", "quant/wide.BF16", "quant/wide.Q4_K_M",
                           "arch/qwen3moe", "arch/gemma3", "arch/deepseek2"}) {
    const std::vector<float> first =
        LastLogits(File(name), GetParam(), Mode::kDeterministic, kSettings[0]);
    ASSERT_FALSE(first.empty());
    for (const Setting& s : kSettings) {
      EXPECT_EQ(LastLogits(File(name), GetParam(), Mode::kDeterministic, s), first)
          << name << " with " << s.threads << " threads, pieces of " << s.piece << " beside "
          << s.neighbour;
    }
  }
}

TEST_P(DeterministicTest, UniformEntriesAreBitEqual) {
  for (const char* name : {"quant/wide.F16", "quant/wide.BF16", "quant/wide.Q4_K_M",
                           "quant/wide.Q8_0", "arch/qwen3moe", "arch/gemma3", "arch/deepseek2"}) {
    const std::vector<float> first =
        LastLogits(File(name), GetParam(), Mode::kUniform, kSettings[0]);
    ASSERT_FALSE(first.empty());
    for (const Setting& s : kSettings) {
      EXPECT_EQ(LastLogits(File(name), GetParam(), Mode::kUniform, s), first)
          << name << " with " << s.threads << " threads, pieces of " << s.piece << " beside "
          << s.neighbour;
    }
  }
}

TEST_P(DeterministicTest, BlockFormatsAreBitEqualByDefaultOrDifferByRounding) {
  const bool bf16 = ops::CpuFactors(GetParam(), DType::kQ4_0, kPrompt, 256) == ops::Factors::kBf16;
  for (const char* name : {"quant/wide.Q4_0", "quant/wide.Q8_0", "quant/wide.IQ3_S"}) {
    const std::vector<float> first =
        LastLogits(File(name), GetParam(), Mode::kFastest, kSettings[0]);
    ASSERT_FALSE(first.empty());
    // Few rows have activations in INT8: u as in golden_test.cc.
    const double tolerance = CheckedTolerance(name, first, std::hypot(0.0068, kBf16));
    for (const Setting& s : kSettings) {
      if (bf16) {
        ExpectClose(name, s, first, tolerance);
        continue;
      }
      EXPECT_EQ(LastLogits(File(name), GetParam(), Mode::kFastest, s), first)
          << name << " with " << s.threads << " threads, pieces of " << s.piece << " beside "
          << s.neighbour;
    }
  }
}

// Logits after every token of an entry, in pieces and beside others, are what diagnosis computes.
TEST_P(DeterministicTest, EveryTokensLogitsCanBeHad) {
  Rig rig(GetParam(), kBudget, 2, true);
  std::shared_ptr<EngineModel> model = rig.Open(File("arch/qwen2"), "m");
  ASSERT_NE(model, nullptr);
  const std::vector<int32_t> prompt = Tokens(kPrompt, model->vocab_size(), 7);
  const auto want = rig.engine().AllLogits(*model, prompt);
  ASSERT_TRUE(want.ok());
  const tier::Owner owner{"m", "", tier::Kind::kKv};
  const uint64_t block_bytes = model->kv_geometry().block_bytes();
  kv::Sequence kv(&rig.manager(), nullptr, {}, owner, block_bytes);
  kv::Sequence before(&rig.manager(), nullptr, {}, owner, block_bytes);
  const auto vocab = static_cast<size_t>(model->vocab_size());
  for (size_t done = 0, piece = 23; done < prompt.size(); done += piece) {
    piece = std::min(piece, prompt.size() - done);
    const bool last = done + piece == prompt.size();
    const StepEntry entries[] = {
        {.kv = &before, .tokens = std::span(prompt).first(3), .want_logits = true, .guessed = 2},
        {.kv = &kv,
         .tokens = std::span(prompt).subspan(done, piece),
         .want_logits = last,
         .every = true}};
    auto step = rig.engine().Step(*model, entries, nullptr);
    ASSERT_TRUE(step.ok()) << step.status();
    before.TrimReserve();
    const EntryResult& got = step->entries[1];
    ASSERT_EQ(got.each.size(), piece);
    EXPECT_TRUE(got.after_guess.empty());
    for (size_t i = 0; i < piece; ++i) {
      const auto row = std::span(*want).subspan((done + i) * vocab, vocab);
      EXPECT_TRUE(std::ranges::equal(got.each[i], row)) << done + i;
    }
    EXPECT_EQ(got.logits.data(), last ? got.each.back().data() : nullptr);
    EXPECT_EQ(step->entries[0].after_guess.size(), 2u);
  }
}

// Float formats: within what 14-bit factors or BF16 cost, and never by the number of threads.
TEST_P(DeterministicTest, FloatFormatsDifferByRoundingOnlyByDefault) {
  const bool bf16 = ops::CpuFactors(GetParam(), DType::kF16, kPrompt, 256) == ops::Factors::kBf16;
  // The step of a block's largest (at most 3.0 times its RMS) / 8191 is uniform, for both factors.
  const double u = bf16 ? kBf16 : 3.0 / 8191 / std::sqrt(12.0) * std::sqrt(2.0);
  for (const char* name : {"quant/wide.F16", "quant/wide.BF16"}) {
    const std::vector<float> first =
        LastLogits(File(name), GetParam(), Mode::kFastest, kSettings[0]);
    ASSERT_FALSE(first.empty());
    const double tolerance = CheckedTolerance(name, first, u);
    for (const Setting& s : kSettings) ExpectClose(name, s, first, tolerance);
  }
}

std::vector<std::string> Variants() {
  std::vector<std::string> names;
  for (const ops::CpuVariant& variant : ops::CpuVariants()) {
    if (variant.supported) names.emplace_back(variant.name);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Variants, DeterministicTest, testing::ValuesIn(Variants()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace terrace::engine
