// Golden models computed by groups of devices: logits against those of an independent engine, and
// what the members exchange against the formula of docs/PARALLEL.md.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/member.h"
#include "engine/testing.h"
#include "model/share.h"
#include "parallel/thread_group.h"

namespace terrace::engine {
namespace {

constexpr uint64_t kBudget = 32 * kMiB;

std::string Arch(const std::string& name) {
  return std::string(TERRACE_TEST_DATA) + "/golden/arch/" + name;
}

// Members of a group in one process, each with a device, memory and threads of its own.
class Group {
 public:
  Group(const std::string& variant, int32_t size) : group_(size) {
    for (int32_t r = 0; r < size; ++r) {
      rigs_.push_back(std::make_unique<Rig>(variant, kBudget, 1, true));
    }
  }

  int32_t size() const { return group_.size(); }

  void Open(const std::string& path, bool tensor, bool experts) {
    models_.clear();
    for (int32_t r = 0; r < size(); ++r) {
      EngineModelOptions more;
      more.seat.group = &group_.member(r);
      weights::OpenOptions open;
      open.part = PartOfMember({r, size(), tensor, experts});
      models_.push_back(rigs_[static_cast<size_t>(r)]->Open(path, "m", false, more, open));
      ASSERT_NE(models_.back(), nullptr);
    }
  }

  // By member.
  std::vector<absl::StatusOr<std::vector<float>>> AllLogits(std::span<const int32_t> tokens) {
    std::vector<absl::StatusOr<std::vector<float>>> logits(static_cast<size_t>(size()),
                                                           absl::UnknownError("not run"));
    std::vector<std::thread> threads;
    for (size_t r = 0; r < logits.size(); ++r) {
      threads.emplace_back([&, r] {
        logits[r] = rigs_[r]->engine().AllLogits(*models_[r], tokens);
        if (!logits[r].ok()) models_[r]->group()->GiveUp(logits[r].status());
      });
    }
    for (std::thread& thread : threads) thread.join();
    return logits;
  }

  uint64_t sent_bytes() {
    uint64_t sum = 0;
    for (int32_t r = 0; r < size(); ++r) sum += group_.member(r).traffic().sent_bytes;
    return sum;
  }
  const model::Config& config() const { return models_[0]->architecture().config(); }

 private:
  parallel::ThreadGroup group_;
  std::vector<std::unique_ptr<Rig>> rigs_;
  std::vector<std::shared_ptr<EngineModel>> models_;
};

double Rms(std::span<const float> values) {
  double sum = 0;
  for (float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

// As in golden_test: KV in F16, and activations rounded to BF16 where a variant multiplies F16
// weights so, err by u in both blocks of each of L layers; sums of float32 in another order are far
// below that.
constexpr double kF16 = 0x1p-11 / 1.7320508;
constexpr double kBf16 = 0x1p-8 / 1.7320508;
constexpr double kInt8 = 0.0068;  // activations in int8 beside quantised weights

double Tolerance(const model::Config& config, double u, std::span<const float> want) {
  return Rms(want) * u * std::sqrt(2.0 * config.layer_count() + 1) *
         std::sqrt(2 * std::log(static_cast<double>(want.size())));
}

// What all members send for `rows` tokens of which all have logits, as the document says.
uint64_t Formula(int64_t members, int64_t rows, int64_t width, int64_t sums, int64_t vocab) {
  return static_cast<uint64_t>(4 * (members - 1) * rows * (2 * width * sums + vocab));
}

enum class By { kTensor, kExperts, kBoth };

// `expert_layers`: layers whose FFN is one of experts.
void Check(const std::string& name, const std::string& variant, int32_t size, By by,
           int64_t expert_layers = 0) {
  SCOPED_TRACE(name + " on " + std::to_string(size) + " x " + variant);
  const bool tensor = by != By::kExperts;
  const Golden golden = ReadGolden(Arch(name));
  Group group(variant, size);
  group.Open(Arch(name) + ".gguf", tensor, by != By::kTensor);
  if (testing::Test::HasFatalFailure()) return;
  const auto logits = group.AllLogits(golden.tokens);
  for (const auto& got : logits) {
    ASSERT_TRUE(got.ok()) << got.status();
    ASSERT_EQ(got->size(), golden.logits.size());
    EXPECT_EQ(*got, *logits[0]);  // the same bits at every member
  }
  const double tolerance =
      Tolerance(group.config(), variant == "sim" ? kBf16 : kF16, golden.logits);
  const double worst = WorstError(*logits[0], golden.logits, static_cast<size_t>(golden.vocab));
  std::printf("%s on %d: worst error %.2g, tolerance %.2g\n", name.c_str(), size, worst, tolerance);
  EXPECT_LE(worst, tolerance);
  // By hand, from what the golden models are: width 128, 512 tokens of vocabulary.
  const auto rows = static_cast<int64_t>(golden.tokens.size());
  const int64_t layers = group.config().layer_count();
  EXPECT_EQ(group.sent_bytes(), tensor ? Formula(size, rows, 128, 1 + 2 * layers, 512)
                                       : Formula(size, rows, 128, expert_layers, 0));
  EXPECT_EQ(group.sent_bytes(), model::PassTraffic(group.config(), rows, rows));
}

constexpr const char* kDense[] = {"llama", "llama-rope-scaled", "qwen2", "qwen3", "gemma3", "phi3"};
struct WithExperts {
  const char* name;
  int64_t expert_layers;
};
constexpr WithExperts kExperts[] = {
    {"mixtral", 2}, {"qwen3moe", 2}, {"gpt-oss", 4}, {"deepseek2", 2}};

class ParallelTest : public testing::TestWithParam<std::string> {};

TEST_P(ParallelTest, TensorsDividedAmongDevices) {
  for (const int32_t size : {2, 4}) {
    for (const char* name : kDense) Check(name, GetParam(), size, By::kTensor);
    for (const WithExperts& model : kExperts) Check(model.name, GetParam(), size, By::kTensor);
  }
}

TEST_P(ParallelTest, ExpertsDividedAmongDevices) {
  for (const WithExperts& model : kExperts) {
    Check(model.name, GetParam(), 2, By::kExperts, model.expert_layers);
    Check(model.name, GetParam(), 3, By::kExperts, model.expert_layers);
    Check(model.name, GetParam(), 2, By::kBoth);
    Check(model.name, GetParam(), 4, By::kBoth);
  }
}

// Blocks of 32 columns go to members whole. The model's FFN is one block of 256 columns, which
// cannot be divided.
TEST_P(ParallelTest, QuantisedWeightsDividedByBlocks) {
  const std::string base = std::string(TERRACE_TEST_DATA) + "/golden/quant/wide.";
  for (const char* format : {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL"}) {
    SCOPED_TRACE(format);
    const Golden golden = ReadGolden(base + format);
    Group group(GetParam(), 2);
    group.Open(base + format + ".gguf", true, false);
    if (testing::Test::HasFatalFailure()) return;
    const auto logits = group.AllLogits(golden.tokens);
    ASSERT_TRUE(logits[0].ok()) << logits[0].status();
    const auto vocab = static_cast<size_t>(golden.vocab);
    const double u = GetParam() == "sim" ? kInt8 : kF16;
    EXPECT_LE(WorstError(*logits[0], golden.logits, vocab),
              Tolerance(group.config(), u, golden.logits));
  }
  Rig rig(GetParam(), kBudget);
  weights::OpenOptions open;
  open.name = "m";
  open.source_path = base + "Q4_K_M.gguf";
  open.part = PartOfMember({0, 2, true, false});
  const auto refused = weights::ModelWeights::Open(open, &rig.backend(), &rig.manager());
  EXPECT_THAT(refused.status().message(),
              testing::HasSubstr("the FFN of 256, in runs of 256, cannot be divided among 2"));
}

std::vector<std::string> Devices() {
  std::vector<std::string> names = {"ref", "sim"};
  if (HaveOpenCl()) names.emplace_back("opencl");
  return names;
}

INSTANTIATE_TEST_SUITE_P(Devices, ParallelTest, testing::ValuesIn(Devices()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace terrace::engine
