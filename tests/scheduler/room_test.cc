// Sequences, workspace and weights in a budget that is too small for all of them: who gives way.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/status.h"
#include "scheduler/fixture.h"

namespace terrace::scheduler {
namespace {

class RoomTest : public CachedSchedulerTest {
 protected:
  // Bytes of weights brought in since the scheduler's start.
  uint64_t LoadedBytes(const std::string& name) {
    for (const tier::ModelState& model : rig_->manager().Snapshot().models) {
      if (model.name == name) return model.loaded_bytes;
    }
    return 0;
  }
};

// Eight sequences in room for one and a half: as each grows, others wait or give way. The weights
// are read once, not in every step.
TEST_F(RoomTest, KvThatGrowsDoesNotDisplaceTheWeightsOfItsOwnModel) {
  for (const bool cached : {false, true}) {
    SCOPED_TRACE(cached ? "with a cache" : "without a cache");
    use_cache_ = cached;
    constexpr int32_t kTokens = 300;
    SchedulerOptions options;
    options.step_tokens = 16;
    Start(64 * kMiB, options);
    Add("qwen3");
    Random random(8);
    std::vector<std::vector<int32_t>> prompts, alone;
    for (int i = 0; i < 8; ++i) {
      prompts.push_back(RandomPrompt(random, 20));
      alone.push_back(Answer("alone" + std::to_string(i), "qwen3", prompts.back(), kTokens));
    }
    const uint64_t kv_bytes = uint64_t{20 + kTokens} * kKiB;
    const uint64_t workspace = rig_->engine().workspace_bytes();
    Stop();
    std::filesystem::remove_all(folder_.path());
    Start(weight_bytes_["qwen3"] + workspace + kv_bytes * 3 / 2, options);
    Add("qwen3");
    std::vector<std::shared_ptr<Heard>> heard;
    for (size_t i = 0; i < prompts.size(); ++i) {
      heard.push_back(Send(MakeRequest(std::to_string(i), "qwen3", prompts[i], kTokens)));
    }
    for (size_t i = 0; i < heard.size(); ++i) {
      heard[i]->finished.WaitForNotification();
      EXPECT_TRUE(heard[i]->info.status.ok()) << heard[i]->info.status;
      EXPECT_EQ(heard[i]->Tokens(), alone[i]);
    }
    EXPECT_LE(LoadedBytes("qwen3"), 2 * weight_bytes_["qwen3"]);
    EXPECT_TRUE(rig_->manager().CheckInvariants().ok());
    Stop();
  }
}

// A long prompt is read in as large pieces as there is room for; the workspace that they need does
// not stand in the way of the request that comes, nor of the next one.
TEST_F(RoomTest, ALongPromptIsReadInPiecesThatFitBesideItsKv) {
  constexpr int32_t kPrompt = 480, kTokens = 20;
  Start(64 * kMiB);
  Add("qwen3");
  Random random(9);
  const std::vector<int32_t> longer = RandomPrompt(random, kPrompt);
  const std::vector<int32_t> shorter = RandomPrompt(random, 20);
  const std::vector<int32_t> want = Answer("a", "qwen3", longer, kTokens);
  const std::vector<int32_t> short_want = Answer("b", "qwen3", shorter, kTokens);
  const uint64_t whole = rig_->engine().workspace_bytes();
  Stop();
  std::filesystem::remove_all(folder_.path());
  const uint64_t kv_bytes = uint64_t{kPrompt + kTokens + 16} * kKiB;
  const uint64_t room = kv_bytes + kMiB;
  ASSERT_GT(whole, kMiB) << "the whole prompt in one step must not fit";
  Start(weight_bytes_["qwen3"] + room);
  Add("qwen3");
  for (int i = 0; i < 3; ++i) {
    const std::string id = std::to_string(i);
    EXPECT_EQ(Answer("long" + id, "qwen3", longer, kTokens), want);
    EXPECT_EQ(Answer("short" + id, "qwen3", shorter, kTokens), short_want);
    cache_->Clear();
  }
  EXPECT_LE(LoadedBytes("qwen3"), 2 * weight_bytes_["qwen3"]);
  EXPECT_TRUE(rig_->manager().CheckInvariants().ok());
}

}  // namespace
}  // namespace terrace::scheduler
