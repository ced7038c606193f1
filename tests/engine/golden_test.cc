// Every golden model against logits from an independent engine, on the reference backend, on each
// CPU variant that this machine runs, and on a device with memory of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engine/vendor_rig.h"

namespace terrace::engine {
namespace {

constexpr uint64_t kBudget = 64 * kMiB;

std::vector<std::string> Variants() {
  std::vector<std::string> names = {"ref"};
  for (const ops::CpuVariant& variant : ops::CpuVariants()) {
    if (variant.supported) names.emplace_back(variant.name);
  }
  if (HaveOpenCl()) names.insert(names.end(), {"opencl", "tiles"});
  // Devices over stand-ins for vendors' libraries.
  names.insert(names.end(), {"ascend", "cambricon", "cnnl"});
  return names;
}

double Rms(std::span<const float> values) {
  double sum = 0;
  for (float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

// How far logits may be from those of exact float32 arithmetic, relative to their RMS.
//
// Each operator of a layer adds an error of relative size u to a stream that has unit RMS after its
// norm; L layers of two blocks each add 2 L such errors, which are independent, so their RMS grows
// with sqrt(2 L + 1) (the head is one more). The worst of N logits of an error that is about normal
// is sqrt(2 ln N) of its RMS.
//   - KV in F16: u = 2^-11 / sqrt(3) (rounding, uniform), in every attention block;
//   - float32 sums in another order: 2^-24 sqrt(width), far below that;
//   - activations in int8 per 32-block (CPU variants on quantised weights): the step is
//     max|x| / 127 and the error uniform, so step / sqrt(12); max|x| of 32 normal values is about
//     2.1 of their RMS (3.0 of 256), which gives u = 2.1 / 127 / sqrt(12) = 0.0048 and 0.0068.
// Kernels for many rows may take both factors of every matrix in BF16, and weights and values of
// attention: then six operators of a layer err (the projections of q, k and v, weighted values, the
// output; gate, up, down), each by the rounding of two factors, 2^-8 / sqrt(3) at most.
double Tolerance(int layers, int operators, double u, size_t values) {
  return u * std::sqrt(1.0 * operators * layers + 1) *
         std::sqrt(2 * std::log(static_cast<double>(values)));
}

constexpr double kF16 = 0x1p-11 / 1.7320508;
// F16 and BF16 weights are multiplied with activations rounded to BF16 at worst (8 bits).
constexpr double kBf16 = 0x1p-9 / 1.7320508 * 2;
constexpr double kInt8 = 0.0068;
constexpr double kBothBf16 = 0x1p-8 / 1.7320508 * 1.4142136;

struct Errors {
  double u;
  int operators = 2;  // of a layer
};

void CheckModel(const std::string& base, const std::string& variant, Errors errors,
                bool deterministic = false) {
  SCOPED_TRACE(base + " on " + variant + (deterministic ? ", deterministic" : ""));
  Golden golden = ReadGolden(base);
  ThreadTeam team(2);
  const std::unique_ptr<Rig> made = MakeRig(variant, kBudget, &team, deterministic);
  Rig& rig = *made;
  std::shared_ptr<EngineModel> model = rig.Open(base + ".gguf", "m");
  ASSERT_NE(model, nullptr);
  ASSERT_EQ(model->vocab_size(), golden.vocab);
  auto logits = rig.engine().AllLogits(*model, golden.tokens);
  ASSERT_TRUE(logits.ok()) << logits.status();
  ASSERT_EQ(logits->size(), golden.logits.size());
  const double scale = Rms(golden.logits);
  const double tolerance = scale * Tolerance(model->architecture().config().layer_count(),
                                             errors.operators, errors.u, logits->size());
  // BF16 in every operator may change a router's close choices.
  const bool routed = model->architecture().config().experts.count > 0 && errors.operators > 2;
  const double worst = WorstError(*logits, golden.logits, static_cast<size_t>(golden.vocab),
                                  routed ? golden.tokens.size() / 16 : 0);
  std::printf("%s: worst error %.2g of the RMS, tolerance %.2g\n", base.c_str(), worst / scale,
              tolerance / scale);
  EXPECT_LE(worst, tolerance) << "RMS of the logits is " << scale;

  // Greedy tokens, where the margin is above what both logits may be off. The engine's own choice
  // is overruled by the golden one so that each step is judged alone.
  std::vector<int32_t> tokens = golden.tokens;
  kv::Sequence kv(&rig.manager(), nullptr, {}, {"m", "", tier::Kind::kKv},
                  model->kv_geometry().block_bytes());
  std::span<const int32_t> next = tokens;
  for (size_t i = 0; i < golden.greedy.size(); ++i) {
    StepEntry entry{&kv, next, true};
    auto step = rig.engine().Step(*model, {&entry, 1}, nullptr);
    ASSERT_TRUE(step.ok()) << step.status();
    ASSERT_TRUE(step->entries[0].status.ok());
    std::span<float> row = step->entries[0].logits;
    const auto best = std::max_element(row.begin(), row.end()) - row.begin();
    if (golden.greedy_margin[i] > 2 * tolerance) {
      EXPECT_EQ(best, golden.greedy[i]) << "step " << i;
    }
    next = {&golden.greedy[i], 1};
  }
}

class GoldenTest : public testing::TestWithParam<std::string> {
 protected:
  static std::string Folder() { return std::string(TERRACE_TEST_DATA) + "/golden"; }
  // Float32 sums over weights as they are: all that kernels of the common dialect do, too, and what
  // the host computes for a chip that cannot.
  bool reference() const {
    return GetParam() == "ref" || GetParam() == "opencl" || GetParam() == "cambricon";
  }
  // Nothing was called in a wrong order or left behind.
  void TearDown() override {
    if (!IsVendor(GetParam())) return;
    const device::VendorFake* fake =
        device::FakeOf(GetParam() == "cnnl" ? "cambricon" : GetParam());
    EXPECT_THAT(fake->violations, testing::IsEmpty());
    EXPECT_EQ(fake->Alive(), 0u);
    EXPECT_GT(fake->copies, 0u);
  }

  // A model of float weights: as it is, and, where that takes BF16, without.
  void CheckFloats(const std::string& base) {
    if (GetParam() == "tiles") {
      CheckModel(base, GetParam(), {kBothBf16, 6});
    } else if (ops::CpuFactors(GetParam(), DType::kF16, 32, 32) == ops::Factors::kBf16) {
      CheckModel(base, GetParam(), {kBothBf16, 6});
      CheckModel(base, GetParam(), {kBf16}, true);
    } else {
      CheckModel(base, GetParam(), {reference() ? kF16 : kBf16});
    }
  }
};

TEST_P(GoldenTest, Architectures) {
  for (const char* name : {"llama", "llama-rope-scaled", "qwen2", "qwen3", "gemma3", "phi3",
                           "mixtral", "qwen3moe", "gpt-oss", "deepseek2"}) {
    CheckFloats(Folder() + "/arch/" + name);
  }
}

TEST_P(GoldenTest, Formats) {
  if (IsVendor(GetParam())) {
    // 16-bit weights and float32 are the chip's; the others are the host's, whatever the format.
    for (const char* name : {"F32", "F16", "BF16", "Q4_K_M"}) {
      CheckModel(Folder() + "/quant/wide." + name, GetParam(), {reference() ? kF16 : kBf16});
    }
    return;
  }
  for (const char* name : {"F32", "F16", "BF16"}) {
    CheckFloats(Folder() + "/quant/wide." + name);
  }
  if (GetParam() == "tiles") {
    // Codes are exact in BF16, activations are not.
    for (const char* name : {"Q4_0", "Q4_K_M", "Q6_K", "IQ4_XS", "MXFP4_MOE"}) {
      CheckModel(Folder() + "/quant/wide." + name, GetParam(), {kBothBf16, 6});
    }
    return;
  }
  for (const char* name : {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K_M", "Q4_K_M",
                           "Q5_K_M", "Q6_K", "IQ4_NL", "IQ4_XS", "IQ3_S", "MXFP4_MOE", "TQ2_0"}) {
    CheckModel(Folder() + "/quant/wide." + name, GetParam(), {reference() ? kF16 : kInt8});
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, GoldenTest, testing::ValuesIn(Variants()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace terrace::engine
