// Serving on devices with a memory of their own, one of which the host can't even reach: weights
// and KV move between tiers by copies alone, and answers do not change.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "scheduler/fixture.h"

namespace terrace::scheduler {
namespace {

class SeparateMemoryTest : public CachedSchedulerTest,
                           public testing::WithParamInterface<std::string> {
 protected:
  SeparateMemoryTest() { variant_ = GetParam(); }
  void SetUp() override {
    if (variant_ == "opencl" && !engine::HaveOpenCl()) {
      GTEST_SKIP() << "no OpenCL device on this machine";
    }
  }
};

TEST_P(SeparateMemoryTest, ModelsThatDoNotFitTogetherTakeTurnsAndAnswerAlike) {
  const std::vector<std::string> archs = {"qwen3", "gemma3", "mixtral"};
  std::map<std::string, std::vector<int32_t>> alone;
  use_cache_ = false;
  uint64_t most = 0;
  for (const std::string& arch : archs) {
    Start(64 * kMiB);
    Add(arch);
    alone[arch] = Answer("alone", arch, engine::ReadGolden(Arch(arch)).tokens, 12);
    EXPECT_EQ(alone[arch].size(), 12u);
    most = std::max(most, weight_bytes_[arch]);
    Stop();
  }
  // Room for the largest model, its KV and the workspace, but not for two models.
  Start(most + most / 4 + 3 * kMiB);
  for (const std::string& arch : archs) Add(arch);
  for (int round = 0; round < 3; ++round) {
    for (const std::string& arch : archs) {
      EXPECT_EQ(Answer("turn", arch, engine::ReadGolden(Arch(arch)).tokens, 12), alone[arch])
          << arch << " in round " << round;
    }
  }
  uint64_t loads = 0;
  for (const tier::ModelState& model : rig_->manager().Snapshot().models) loads += model.loads;
  EXPECT_GT(loads, 0u);
  EXPECT_TRUE(rig_->manager().CheckInvariants().ok());
}

TEST_P(SeparateMemoryTest, AModelLargerThanTheBudgetStreamsThroughIt) {
  use_cache_ = false;
  Start(64 * kMiB);
  Add("llama");
  const std::vector<int32_t> prompt = engine::ReadGolden(Arch("llama")).tokens;
  const std::vector<int32_t> whole = Answer("whole", "llama", prompt, 6);
  uint64_t largest = 0;
  for (const tier::ModelState& model : rig_->manager().Snapshot().models) {
    for (const tier::SegmentState& segment : model.segments) {
      largest = std::max(largest, segment.bytes);
    }
  }
  Stop();
  // The embedding's segment stays during a pass; beside it, hardly more than one other fits.
  const uint64_t budget = 2 * largest + 2 * kMiB;
  Start(budget);
  Add("llama");
  EXPECT_EQ(Answer("streamed", "llama", prompt, 6), whole);
  EXPECT_LE(rig_->manager().Snapshot().device_used_bytes, budget);
}

TEST_P(SeparateMemoryTest, AReturningPromptIsTakenFromMemoryAndAfterARestartFromDisk) {
  Start(64 * kMiB);
  Add("qwen3");
  const Golden golden = engine::ReadGolden(Arch("qwen3"));
  const auto found = static_cast<int32_t>((golden.tokens.size() - 1) / 16 * 16);
  const std::vector<int32_t> first = Answer("a", "qwen3", golden.tokens, 20);
  EXPECT_EQ(Answer("b", "qwen3", golden.tokens, 20), first);
  EXPECT_EQ(last_.cached_tokens, found);
  EXPECT_EQ(last_.restored_tokens, 0);
  cache_->Flush();
  EXPECT_GT(store_->State().blocks, 0u);
  Stop();
  Start(64 * kMiB);
  Add("qwen3");
  EXPECT_EQ(Answer("c", "qwen3", golden.tokens, 20), first);
  EXPECT_EQ(last_.restored_tokens, found);
}

TEST_P(SeparateMemoryTest, GuessedTokensAreCheckedOnTheDevice) {
  use_cache_ = false;
  const std::vector<int32_t> prompt = {5, 6, 7, 8, 5, 6, 7, 8, 5, 6, 7, 8, 5, 6, 7};
  Start(64 * kMiB);
  Add("qwen2");
  const std::vector<int32_t> plain = Answer("plain", "qwen2", prompt, 24);
  Stop();
  Start(64 * kMiB);
  engine::EngineModelOptions options;
  options.speculation.kind = engine::SpeculationOptions::Kind::kNgram;
  Add("qwen2", options);
  EXPECT_EQ(Answer("guessed", "qwen2", prompt, 24), plain);
}

INSTANTIATE_TEST_SUITE_P(Devices, SeparateMemoryTest, testing::Values("opencl", "sim"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace terrace::scheduler
