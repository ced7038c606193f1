// Models whose every layer has a sliding window hold only the KV that the window still shows.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "scheduler/fixture.h"

namespace terrace::scheduler {
namespace {

// The golden gemma3 with its first five layers only, all of which see 16 tokens.
std::string WindowedModel(const std::string& folder) {
  std::string bytes = engine::ReadFile(Arch("gemma3") + ".gguf");
  const std::string key = "gemma3.block_count";
  const size_t at = bytes.find(key) + key.size() + sizeof(uint32_t);  // behind the value's type
  const uint32_t layers = 5;
  std::memcpy(bytes.data() + at, &layers, sizeof(layers));
  const std::string path = folder + "/windowed.gguf";
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

TEST_F(CachedSchedulerTest, ALongPromptFitsWhereItsWindowDoes) {
  constexpr int32_t kPrompt = 900, kTokens = 60;
  TempFolder folder;
  const std::string path = WindowedModel(folder.path());
  Random random(31);
  const std::vector<int32_t> prompt = RandomPrompt(random, kPrompt);
  SchedulerOptions options;
  options.step_tokens = 64;
  std::vector<int32_t> plain;
  uint64_t budget = 0;
  for (const bool cached : {false, true}) {
    use_cache_ = cached;
    Start(cached ? budget : 64 * kMiB, options);
    std::shared_ptr<engine::EngineModel> model = rig_->Open(path, "windowed", true);
    ASSERT_NE(model, nullptr);
    EXPECT_EQ(model->kv_window(), 16);
    ASSERT_TRUE(model->weights().WaitForImage().ok());
    ASSERT_TRUE(scheduler_->AddModel(model).ok());
    const std::vector<int32_t> answer = Answer("a", "windowed", prompt, kTokens);
    ASSERT_EQ(answer.size(), static_cast<size_t>(kTokens));
    if (!cached) {
      plain = answer;
      // Half of what the prompt's KV takes as a whole.
      budget = model->weights().total_bytes() + rig_->engine().workspace_bytes() +
               model->KvBytes(kPrompt) / 2;
      Stop();
      continue;
    }
    EXPECT_EQ(answer, plain);
    // A conversation that comes back finds its end, and goes on from there.
    std::vector<int32_t> more = prompt;
    more.insert(more.end(), answer.begin(), answer.end());
    more.push_back(3);
    Answer("b", "windowed", more, 4);
    EXPECT_TRUE(rig_->manager().CheckInvariants().ok());
    EXPECT_TRUE(cache_->CheckInvariants().ok());
  }
}

}  // namespace
}  // namespace terrace::scheduler
