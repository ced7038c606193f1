// Passes that begin with a few rows of the embedding, before its segment has come.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "../../bench/generate_model.h"
#include "../tier/testing.h"
#include "engine/testing.h"
#include "os/worker_pool.h"

namespace terrace::engine {
namespace {

constexpr uint64_t kBudget = 256 * kMiB;

// A generated model whose image is on disk, all of it evicted when `Open` returns.
class RowFetchTest : public testing::TestWithParam<std::string> {
 protected:
  std::shared_ptr<EngineModel> Open(Rig& rig, const std::string& shape = "small") {
    bench::GenerateOptions options;
    options.shape = bench::FindShape(shape).value();
    options.shape.vocab = 4096;
    const std::string path = folder_.path() + "/m.gguf";
    EXPECT_TRUE(bench::GenerateModel(options, path).ok());
    auto model = rig.Open(path, "m", /*write_image=*/true);
    EXPECT_TRUE(model->weights().WaitForImage().ok());
    rig.manager().EvictModel(model->weights().tier_id());
    return model;
  }

  // The logits after `tokens`, and what the disk gave meanwhile.
  static std::vector<float> Step(Rig& rig, EngineModel& model, std::span<const int32_t> tokens,
                                 uint64_t* disk_bytes = nullptr) {
    kv::Sequence kv(&rig.manager(), nullptr, {}, {"m", "", tier::Kind::kKv},
                    model.kv_geometry().block_bytes());
    const uint64_t before = rig.manager().Snapshot().links[0].bytes;
    StepEntry entry{&kv, tokens, true};
    auto step = rig.engine().Step(model, {&entry, 1}, nullptr);
    EXPECT_TRUE(step.ok()) << step.status();
    if (!step.ok()) return {};
    if (disk_bytes != nullptr) *disk_bytes = rig.manager().Snapshot().links[0].bytes - before;
    EXPECT_TRUE(rig.manager().CheckInvariants().ok());
    const std::span<float> logits = step->entries[0].logits;
    return {logits.begin(), logits.end()};
  }

  TempFolder folder_;
};

TEST_P(RowFetchTest, GivesTheSameLogitsAsTheWholeEmbedding) {
  if (GetParam() == "opencl" && !HaveOpenCl()) GTEST_SKIP() << "no OpenCL device";
  Rig rig(GetParam(), kBudget, 2, true);
  auto model = Open(rig);
  const uint64_t bytes = model->weights().total_bytes();
  // Neighbours, one twice, the first and the last row.
  const std::vector<int32_t> tokens = {11, 205, 206, 11, 0, 4095};
  uint64_t cold_bytes = 0, hot_bytes = 0;
  const std::vector<float> cold = Step(rig, *model, tokens, &cold_bytes);
  EXPECT_GT(cold_bytes, bytes) << "rows came beside the weights";
  const std::vector<float> hot = Step(rig, *model, tokens, &hot_bytes);
  EXPECT_EQ(hot_bytes, 0u);
  ASSERT_FALSE(hot.empty());
  EXPECT_EQ(cold, hot) << "not a bit differs";
}

TEST_P(RowFetchTest, ReadsTheWholeEmbeddingForManyTokens) {
  if (GetParam() == "opencl" && !HaveOpenCl()) GTEST_SKIP() << "no OpenCL device";
  Rig rig(GetParam(), kBudget, 2, true);
  auto model = Open(rig);
  std::vector<int32_t> tokens(128);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 32);
  uint64_t cold_bytes = 0;
  const std::vector<float> cold = Step(rig, *model, tokens, &cold_bytes);
  EXPECT_EQ(cold_bytes, model->weights().total_bytes());
  EXPECT_EQ(cold, Step(rig, *model, tokens));
}

INSTANTIATE_TEST_SUITE_P(Backends, RowFetchTest,
                         testing::Values("ref", "portable", ops::BestCpuVariant(), "sim",
                                         "opencl"));

class SpoiledRowsTest : public RowFetchTest {
 protected:
  // The rig's reader spoils the first small read.
  std::unique_ptr<Rig> Make() {
    tier::TierManagerParts parts;
    auto reader = std::make_unique<tier::FaultyReader>(storage::DiskReader::Create({}).value());
    reader->after = [this](int, std::span<std::byte> out) {
      if (out.size() > 32 * kKiB || spoiled_.exchange(true)) return;
      for (std::byte& byte : out) byte ^= std::byte{0x55};
    };
    parts.reader = std::move(reader);
    parts.checks = std::make_unique<os::WorkerPool>("check", 1);
    parts.producers = std::make_unique<os::WorkerPool>("import", 1);
    parts.policy = tier::CreateEvictionPolicy("lru").value();
    ops::CpuOptions cpu;
    cpu.deterministic = true;
    return std::make_unique<Rig>(device::CreateCpuDevice(),
                                 ops::CreateCpuBackend(ops::BestCpuVariant(), &team_, cpu).value(),
                                 kBudget, std::move(parts));
  }
  ThreadTeam team_{2};
  std::atomic<bool> spoiled_{true};
};

// No checksum covers a few rows: that they were wrong is seen when their block has come.
TEST_F(SpoiledRowsTest, AreSeenAndNeverServed) {
  std::unique_ptr<Rig> rig = Make();
  auto model = Open(*rig);
  const std::vector<int32_t> tokens = {11, 205, 7};
  spoiled_ = false;
  const std::vector<float> cold = Step(*rig, *model, tokens);
  EXPECT_TRUE(spoiled_);
  ASSERT_FALSE(cold.empty());
  EXPECT_EQ(cold, Step(*rig, *model, tokens));
}

}  // namespace
}  // namespace terrace::engine
