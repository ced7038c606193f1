// Sequences that share KV, give way for each other, and the law that none of this changes an
// answer.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <regex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/status.h"
#include "kv/redis_server.h"
#include "scheduler/fixture.h"

namespace terrace::scheduler {
namespace {

using Answers = std::vector<std::vector<int32_t>>;

// As `n` of the OpenAI API sends them: all at once, before anything of the prompt is computed.
TEST_F(CachedSchedulerTest, SiblingsSubmittedAtOnceComputeTheirPromptOnce) {
  Start(64 * kMiB);
  Add("qwen3");
  Random random(8);
  const std::vector<int32_t> prompt = RandomPrompt(random, 200);
  std::vector<std::shared_ptr<Heard>> heard;
  for (int i = 0; i < 8; ++i) {
    auto request = MakeRequest(std::to_string(i), "qwen3", prompt, 6);
    request->sampling.temperature = i < 4 ? 0.0f : 1.0f;
    request->sampling.seed = 100 + i;
    heard.push_back(Send(std::move(request)));
  }
  int32_t cached = 0;
  for (auto& one : heard) {
    one->finished.WaitForNotification();
    ASSERT_TRUE(one->info.status.ok()) << one->info.status;
    cached += one->info.cached_tokens;
  }
  for (int i = 1; i < 4; ++i)
    EXPECT_EQ(heard[static_cast<size_t>(i)]->Tokens(), heard[0]->Tokens());
  // 192 of 200 tokens are whole blocks; each of the others computes the last 8 itself.
  EXPECT_EQ(cached, 7 * 192);
  EXPECT_EQ(scheduler_->State().prompt_tokens, 200u + 7 * 8);
}

TEST_F(CachedSchedulerTest, WhoWaitsForAnothersPromptGoesOnWithoutIt) {
  SchedulerOptions options;
  options.step_tokens = 16;  // so that the long prompt takes many steps
  Start(64 * kMiB, options);
  Add("qwen3");
  Random random(9);
  const std::vector<int32_t> prompt = RandomPrompt(random, 1500);
  auto first = Send(MakeRequest("first", "qwen3", prompt, 4));
  auto second = Send(MakeRequest("second", "qwen3", prompt, 4));
  while (scheduler_->State().prompt_tokens < 64) std::this_thread::yield();
  scheduler_->Cancel("first");
  first->finished.WaitForNotification();
  EXPECT_EQ(first->info.reason, FinishReason::kCancelled);
  second->finished.WaitForNotification();
  ASSERT_TRUE(second->info.status.ok()) << second->info.status;
  EXPECT_GE(second->info.cached_tokens, 48) << "what the first had computed is not lost";
  EXPECT_EQ(second->Tokens(), Answer("third", "qwen3", prompt, 4));
}

TEST_F(CachedSchedulerTest, TheKvOfASequenceThatGivesWayMovesToDiskIfThatIsCheaper) {
  constexpr int32_t kTokens = 420;
  // Steps of one size, whichever requests share them: so the workspace is of one size, too.
  SchedulerOptions options;
  options.step_tokens = 16;
  Start(64 * kMiB, options);
  Add("qwen3");
  Random random(10);
  std::vector<std::vector<int32_t>> prompts;
  Answers alone;
  for (int i = 0; i < 4; ++i) {
    prompts.push_back(RandomPrompt(random, 16));
    alone.push_back(Answer("alone" + std::to_string(i), "qwen3", prompts.back(), kTokens));
  }
  // Weights, workspace, and KV for about one and a half such sequences: two are let in, and one of
  // them has to give way before it ends.
  const uint64_t kv_bytes = uint64_t{kTokens} * kKiB;
  const uint64_t budget =
      weight_bytes_["qwen3"] + rig_->engine().workspace_bytes() + kv_bytes * 8 / 5;
  const std::regex way("gave way, (moved|dropped): moving takes ([0-9.]+) ms, computing ([0-9.]+)");
  size_t moved = 0, dropped = 0;
  // If the second begins late enough after the first, all fit one after the other: then once more.
  for (int attempt = 0; attempt < 10 && moved + dropped == 0; ++attempt) {
    Stop();
    std::filesystem::remove_all(folder_.path());
    Start(budget, options);
    Add("qwen3");
    std::vector<std::shared_ptr<Heard>> heard;
    {
      // However slow this thread is, all are there before the first of them runs: another's sink
      // holds up the engine meanwhile.
      auto gate = Send(MakeRequest("gate", "qwen3", prompts[0], kTokens));
      absl::MutexLock hold(&gate->mutex);
      ASSERT_FALSE(gate->finished.HasBeenNotified());
      for (size_t i = 0; i < prompts.size(); ++i) {
        heard.push_back(Send(MakeRequest(std::to_string(i), "qwen3", prompts[i], kTokens)));
      }
      scheduler_->Cancel("gate");
    }
    for (size_t i = 0; i < heard.size(); ++i) {
      heard[i]->finished.WaitForNotification();
      EXPECT_TRUE(heard[i]->info.status.ok()) << heard[i]->info.status;
      EXPECT_EQ(heard[i]->Tokens(), alone[i]);
      const std::string& choice = heard[i]->info.kv_choice;
      for (std::sregex_iterator it(choice.begin(), choice.end(), way), end; it != end; ++it) {
        const double move_ms = std::stod((*it)[2]), compute_ms = std::stod((*it)[3]);
        const bool cheaper = move_ms == 0 || compute_ms == 0 || move_ms <= compute_ms;
        ++((*it)[1] == "moved" ? moved : dropped);
        if ((*it)[1] == "moved") {
          EXPECT_TRUE(cheaper) << choice;
        } else {
          // For its price only, which is known once something has been written and read.
          EXPECT_TRUE(move_ms > 0 && move_ms >= compute_ms) << choice;
        }
      }
    }
  }
  EXPECT_GT(moved + dropped, 0u) << "nobody gave way: the budget is too large for this test";
  if (moved > 0) {
    EXPECT_GT(cache_->State().moved, 0u);
  }
  EXPECT_TRUE(rig_->manager().CheckInvariants().ok());
}

class EqualityTest : public CachedSchedulerTest {
 protected:
  static constexpr size_t kPrompts = 64;

  void SetUp() override {
    Random random(64);
    const std::vector<int32_t> common = RandomPrompt(random, 40);
    for (size_t i = 0; i < kPrompts; ++i) {
      std::vector<int32_t> prompt;
      if (i % 2 == 0) prompt = common;
      const std::vector<int32_t> own = RandomPrompt(random, 1 + random.Below(70));
      prompt.insert(prompt.end(), own.begin(), own.end());
      prompts_.push_back(std::move(prompt));
    }
  }

  // Each alone, without a cache.
  void Measure(const engine::EngineModelOptions& options) {
    options_ = options;
    use_cache_ = false;
    Start(64 * kMiB);
    Add("qwen3", options);
    for (size_t i = 0; i < kPrompts; ++i) {
      alone_.push_back(Answer("alone" + std::to_string(i), "qwen3", prompts_[i], tokens_));
    }
    Stop();
  }

  // All at once, in an order of its own for each `round`. Returns the prompt tokens restored.
  int32_t CheckBatched(size_t round) {
    std::map<size_t, std::shared_ptr<Heard>> heard;
    for (size_t i = 0; i < kPrompts; ++i) {
      const size_t at = (i * (2 * round + 1) + 7 * round) % kPrompts;
      heard[at] = Send(MakeRequest(std::to_string(round) + "-" + std::to_string(at), "qwen3",
                                   prompts_[at], tokens_));
    }
    int32_t restored = 0;
    for (auto& [at, one] : heard) {
      one->finished.WaitForNotification();
      EXPECT_TRUE(one->info.status.ok()) << one->info.status;
      EXPECT_EQ(one->Tokens(), alone_[at]) << "prompt " << at << ", round " << round;
      restored += one->info.restored_tokens;
    }
    return restored;
  }

  void CheckAll() {
    use_cache_ = false;
    SchedulerOptions small;
    small.step_tokens = 48;
    Start(64 * kMiB, small);
    Add("qwen3", options_);
    for (size_t round = 0; round < 2; ++round) CheckBatched(round);
    Stop();
    use_cache_ = true;
    Start(64 * kMiB);
    Add("qwen3", options_);
    for (size_t round = 2; round < 4; ++round) CheckBatched(round);  // from device memory
    cache_->Flush();
    Stop();
    Start(64 * kMiB);
    Add("qwen3", options_);
    EXPECT_GT(CheckBatched(4), 0) << "nothing came from disk";
    Stop();
    // Weights, workspace and some KV: most wait until others have ended.
    Start(weight_bytes_["qwen3"] + 2 * kMiB);
    Add("qwen3", options_);
    CheckBatched(5);
    EXPECT_TRUE(rig_->manager().CheckInvariants().ok());
  }

  engine::EngineModelOptions options_;
  int32_t tokens_ = 8;
  std::vector<std::vector<int32_t>> prompts_;
  Answers alone_;
};

TEST_F(EqualityTest, SixtyFourPromptsAnswerAlikeHoweverTheirKvComes) {
  Measure({});
  CheckAll();
}

TEST_F(EqualityTest, AlsoWithInt8Kv) {
  engine::EngineModelOptions options;
  options.kv_dtype = ops::KvDType::kI8;
  Measure(options);
  CheckAll();
}

// Two servers with a disk each and one remote store: what one has computed twice, the other finds.
TEST_F(EqualityTest, AlsoFromARemoteStore) {
  if (!testing_redis::RedisServer::Installed()) GTEST_SKIP() << "redis-server is not installed";
  testing_redis::RedisServer redis;
  RealClock clock;
  storage::RemoteStoreOptions options;
  options.port = redis.port();
  storage::RemoteStore remote(options, &clock);
  Measure({});
  use_cache_ = true;
  remote_ = &remote;
  Start(64 * kMiB);
  Add("qwen3");
  for (size_t round = 0; round < 2; ++round) CheckBatched(round);
  cache_->Flush();
  Stop();
  std::filesystem::remove_all(folder_.path());
  Start(64 * kMiB);
  Add("qwen3");
  EXPECT_GT(CheckBatched(2), 0) << "nothing came from the remote store";
  EXPECT_GT(cache_->State().remote_hits, 0u);
  // Without it, serving goes on.
  redis.Kill();
  cache_->Clear();
  std::filesystem::remove_all(folder_.path());
  CheckBatched(3);
  EXPECT_FALSE(remote.State().usable);
}

// Answers that are longer than what is booked when their requests are let in: room for three when
// they begin, and for fewer before they end.
TEST_F(EqualityTest, AlsoWhenSequencesGiveWay) {
  tokens_ = 290;
  Measure({});
  use_cache_ = true;
  Start(weight_bytes_["qwen3"] + 2 * kMiB);
  Add("qwen3", options_);
  CheckBatched(0);
  EXPECT_GT(Preemptions(), 0);
  EXPECT_TRUE(rig_->manager().CheckInvariants().ok());
}

// A device with memory of its own, too small for all of them: what leaves it comes back from the
// host's.
TEST_F(EqualityTest, AlsoFromHostMemory) {
  variant_ = "sim";
  Measure({});
  use_cache_ = true;
  host_bytes_ = 64 * kMiB;
  Start(weight_bytes_["qwen3"] + 2 * kMiB);
  Add("qwen3", options_);
  for (size_t round = 0; round < 3; ++round) CheckBatched(round);
  EXPECT_GT(cache_->State().host_hits, 0u) << "nothing came from host memory";
  EXPECT_TRUE(host_->CheckInvariants().ok()) << host_->CheckInvariants();
  EXPECT_TRUE(rig_->manager().CheckInvariants().ok());
}

// F16 and INT8 KV of the same tokens are different blocks.
TEST_F(CachedSchedulerTest, KvOfAnotherTypeIsNotFound) {
  Random random(12);
  const std::vector<int32_t> prompt = RandomPrompt(random, 100);
  for (const ops::KvDType dtype : {ops::KvDType::kF16, ops::KvDType::kI8}) {
    Start(64 * kMiB);
    engine::EngineModelOptions options;
    options.kv_dtype = dtype;
    Add("qwen3", options);
    Answer("a", "qwen3", prompt, 4);
    EXPECT_EQ(last_.cached_tokens, 0);
    Answer("b", "qwen3", prompt, 4);
    EXPECT_EQ(last_.cached_tokens, 96);
    cache_->Flush();
    Stop();
  }
}

}  // namespace
}  // namespace terrace::scheduler
