// Models opened for an engine: tensors pinned through the tier manager equal an independent
// packing, from the source while the image is being written and from the image after that.
#include "weights/model_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/units.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/thread_team.h"
#include "weights_testing.h"

namespace terrace::weights {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ModelWeightsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    tier::TierManagerOptions options;
    options.device_budget_bytes = 256 * kMiB;
    auto manager = tier::TierManager::Create(options, device_.get(), &clock_);
    ASSERT_TRUE(manager.ok()) << manager.status();
    manager_ = *std::move(manager);
  }

  absl::StatusOr<std::unique_ptr<ModelWeights>> Open(const std::string& path,
                                                     const ops::Backend& backend) {
    OpenOptions options;
    options.name = "m@1";
    options.source_path = path;
    options.image_folder = folder_ / "images";
    return ModelWeights::Open(options, &backend, manager_.get());
  }

  void ExpectTensorsEqualSource(ModelWeights& weights, const std::string& path,
                                const ops::Backend& backend) {
    auto source = format::OpenGguf(path).value();
    for (uint32_t s = 0; s < weights.segments().size(); ++s) {
      auto pin = manager_->Acquire(weights.tier_id(), s, tier::Priority::kDemand, nullptr);
      ASSERT_TRUE(pin.ok()) << pin.status();
      for (const format::TensorInfo& tensor : source.tensors) {
        const TensorPlace* place = weights.Find(tensor.name);
        ASSERT_NE(place, nullptr) << tensor.name;
        // A spread stack has a matrix in each of so many segments.
        const auto count = place->spread ? static_cast<uint32_t>(place->shape[0]) : 1u;
        if (s < place->segment || s >= place->segment + count) continue;
        auto want = PackWhole(source, backend, *place);
        EXPECT_EQ(std::memcmp(pin->data() + place->offset,
                              want.data() + (s - place->segment) * place->bytes, place->bytes),
                  0)
            << tensor.name;
      }
    }
    EXPECT_TRUE(manager_->CheckInvariants().ok()) << manager_->CheckInvariants();
  }

  TempFolder folder_;
  RealClock clock_;
  std::unique_ptr<device::Device> device_ = device::CreateCpuDevice({});
  std::unique_ptr<tier::TierManager> manager_;
  ThreadTeam team_{1};
};

TEST_F(ModelWeightsTest, EveryTensorOfEveryGoldenModelEqualsAnIndependentPacking) {
  for (bool packed : {false, true}) {
    auto backend = MakeBackend(packed, &team_);
    for (const std::string& path : GoldenModels()) {
      SCOPED_TRACE(path);
      auto weights = Open(path, *backend);
      ASSERT_TRUE(weights.ok()) << weights.status();
      ExpectTensorsEqualSource(**weights, path, *backend);
      ASSERT_TRUE((*weights)->WaitForImage().ok()) << (*weights)->WaitForImage();
      EXPECT_TRUE((*weights)->image_complete());
      manager_->EvictModel((*weights)->tier_id());
      ExpectTensorsEqualSource(**weights, path, *backend);
    }
  }
}

TEST_F(ModelWeightsTest, AnswersBeforeTheImageIsCompleteAndReadsItAfterwards) {
  std::string path = folder_ / "big.gguf";
  WriteModel(path, 96);
  auto backend = MakeBackend(true, &team_);
  auto weights = Open(path, *backend);
  ASSERT_TRUE(weights.ok()) << weights.status();
  auto pin = manager_->Acquire((*weights)->tier_id(), 1, tier::Priority::kDemand, nullptr);
  ASSERT_TRUE(pin.ok()) << pin.status();
  EXPECT_FALSE((*weights)->image_complete()) << "the first load must not wait for the image";
  pin->Release();
  ASSERT_TRUE((*weights)->WaitForImage().ok());
  manager_->EvictModel((*weights)->tier_id());
  ExpectTensorsEqualSource(**weights, path, *backend);
}

TEST_F(ModelWeightsTest, ClosingWhileTheImageIsWrittenIsCleanAndReopeningWorks) {
  std::string path = folder_ / "big.gguf";
  WriteModel(path, 32);
  auto backend = MakeBackend(true, &team_);
  for (int round = 0; round < 3; ++round) {
    auto weights = Open(path, *backend);
    ASSERT_TRUE(weights.ok()) << weights.status();
    manager_->Prefetch((*weights)->tier_id(), 0, 4, tier::Priority::kPredicted);
  }
  auto weights = Open(path, *backend);
  ASSERT_TRUE(weights.ok()) << weights.status();
  ExpectTensorsEqualSource(**weights, path, *backend);
}

TEST_F(ModelWeightsTest, DescribesTheModel) {
  auto backend = MakeBackend(true, &team_);
  auto weights = Open(Golden("arch/qwen2"), *backend).value();
  EXPECT_EQ(weights->metadata().GetString("general.architecture").value(), "qwen2");
  EXPECT_EQ(weights->fingerprint().size(), 32u);
  EXPECT_EQ(weights->Find("no.such.tensor"), nullptr);
  uint64_t sum = 0;
  for (const tier::SegmentSpec& segment : weights->segments()) sum += segment.bytes;
  EXPECT_EQ(weights->total_bytes(), sum);
  const TensorPlace* bias = weights->Find("blk.0.attn_q.bias");
  ASSERT_NE(bias, nullptr);
  EXPECT_EQ(bias->dtype, DType::kF32);
  EXPECT_EQ(weights->segments()[bias->segment].name, "blk.0.attn");
}

// A01: a model that cannot be loaded is refused, and the other model keeps serving.
TEST_F(ModelWeightsTest, ACutOffModelIsRefusedAndAnotherKeepsServing) {
  auto backend = MakeBackend(true, &team_);
  auto weights = Open(Golden("arch/llama"), *backend).value();
  std::string good = format::ReadFile(Golden("arch/qwen3"));
  std::string path = folder_ / "cut.gguf";
  for (size_t length : {good.size() - 4096, size_t{2000}, size_t{4}}) {
    format::WriteFile(path, std::string_view(good).substr(0, length));
    auto cut = Open(path, *backend);
    ASSERT_FALSE(cut.ok());
    EXPECT_THAT(std::string(Message(cut.status())), AllOf(HasSubstr("m@1"), HasSubstr(path)));
    ExpectTensorsEqualSource(*weights, Golden("arch/llama"), *backend);
  }
}

TEST_F(ModelWeightsTest, ANameInUseIsRefused) {
  auto backend = MakeBackend(true, &team_);
  auto weights = Open(Golden("arch/llama"), *backend).value();
  EXPECT_FALSE(Open(Golden("arch/qwen3"), *backend).ok());
  weights.reset();
  EXPECT_TRUE(Open(Golden("arch/qwen3"), *backend).ok());
}

}  // namespace
}  // namespace terrace::weights
