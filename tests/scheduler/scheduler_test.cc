// The scheduler over a real engine and the tiny golden models.
#include "scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/status.h"
#include "scheduler/fixture.h"

namespace terrace::scheduler {
namespace {

TEST_F(SchedulerTest, AnswersAsTheGoldenDoes) {
  Start(64 * kMiB);
  Add("qwen3");
  Golden golden = engine::ReadGolden(Arch("qwen3"));
  std::vector<int32_t> tokens = Answer("a", "qwen3", golden.tokens, 24);
  ASSERT_EQ(tokens.size(), 24u);
  // Until the first step whose margin is too thin to be sure of.
  for (size_t i = 0; i < tokens.size() && golden.greedy_margin[i] > 0.1; ++i) {
    EXPECT_EQ(tokens[i], golden.greedy[i]) << i;
  }
  EXPECT_EQ(last_.reason, FinishReason::kLength);
  EXPECT_EQ(last_.prompt_tokens, static_cast<int32_t>(golden.tokens.size()));
  EXPECT_EQ(last_.completion_tokens, 24);
  EXPECT_EQ(KvBytes(), 0u);
}

TEST_F(SchedulerTest, AnEngineWithNothingToDoGivesASignOfLifeWhenItIsAskedForOne) {
  Start(64 * kMiB);
  Add("qwen3");
  const std::vector<int32_t> prompt = {1, 2, 3};
  ASSERT_EQ(Answer("a", "qwen3", prompt, 4).size(), 4u);
  EXPECT_FALSE(scheduler_->State().probed);
  EXPECT_EQ(scheduler_->State().probed_us, 0);
  int64_t last_us = 0;
  for (int i = 0; i < 50; ++i) {
    // What has just looked may have its lock: then it has not been asked.
    while (scheduler_->State().probed_us == last_us) scheduler_->Probe();
    while (scheduler_->State().probed) std::this_thread::yield();
    last_us = scheduler_->State().probed_us;
  }
  // Requests do not wait for it, nor it for more than them.
  auto heard = Send(MakeRequest("b", "qwen3", prompt, 200));
  for (int i = 0; i < 10; ++i) scheduler_->Probe();
  heard->finished.WaitForNotification();
  EXPECT_TRUE(heard->info.status.ok()) << heard->info.status;
  while (scheduler_->State().probed) std::this_thread::yield();
  EXPECT_GE(scheduler_->State().probed_us, last_us);
}

TEST_F(SchedulerTest, TwoModelsTakeTurnsInABudgetThatHoldsOne) {
  Start(64 * kMiB);
  Add("qwen3");
  Add("llama");
  Golden qwen = engine::ReadGolden(Arch("qwen3")), llama = engine::ReadGolden(Arch("llama"));
  const std::vector<int32_t> qwen_answer = Answer("q", "qwen3", qwen.tokens, 8);
  const std::vector<int32_t> llama_answer = Answer("l", "llama", llama.tokens, 8);
  scheduler_.reset();

  // Beside the larger one there is room for the workspace and the KV of 40 tokens each, and for
  // less than the other's weights.
  const uint64_t workspace = rig_->engine().workspace_bytes();
  const uint64_t least = std::min(weight_bytes_["qwen3"], weight_bytes_["llama"]);
  const uint64_t budget =
      std::max(weight_bytes_["qwen3"], weight_bytes_["llama"]) + workspace + least / 2;
  SchedulerOptions options;
  options.max_wait_us = int64_t{3600} * 1'000'000;  // however slow the machine
  Start(budget, options);
  Add("qwen3");
  Add("llama");
  for (int round = 0; round < 5; ++round) {
    const uint64_t switches = scheduler_->State().model_switches;
    auto a = Send(MakeRequest("a" + std::to_string(round), "qwen3", qwen.tokens, 8));
    auto b = Send(MakeRequest("b" + std::to_string(round), "llama", llama.tokens, 8));
    a->finished.WaitForNotification();
    b->finished.WaitForNotification();
    ASSERT_TRUE(a->info.status.ok()) << a->info.status;
    ASSERT_TRUE(b->info.status.ok()) << b->info.status;
    EXPECT_EQ(a->Tokens(), qwen_answer);
    EXPECT_EQ(b->Tokens(), llama_answer);
    const tier::TierSnapshot snapshot = rig_->manager().Snapshot();
    EXPECT_LE(snapshot.device_used_bytes, budget);
    // To the one that had no turn last, and to the other one if that came first.
    const uint64_t more = scheduler_->State().model_switches - switches;
    EXPECT_TRUE(more == 1 || more == 2) << more << " in round " << round;
  }
  EXPECT_TRUE(rig_->manager().CheckInvariants().ok());
}

TEST_F(SchedulerTest, TurnsOfModelsThatAreThereTogetherAreNoSwitches) {
  Start(64 * kMiB);
  std::shared_ptr<engine::EngineModel> qwen = rig_->Open(Arch("qwen3") + ".gguf", "qwen3", true);
  ASSERT_TRUE(qwen != nullptr && qwen->weights().WaitForImage().ok());
  ASSERT_TRUE(scheduler_->AddModel(qwen).ok());
  Add("llama");
  // Their weights come: at most the second is a switch from the first.
  const std::vector<int32_t> prompt = {1, 2, 3};
  Answer("q", "qwen3", prompt, 2);
  Answer("l", "llama", prompt, 2);
  const uint64_t switches = scheduler_->State().model_switches;
  EXPECT_LE(switches, 1u);
  for (int round = 0; round < 5; ++round) {
    Answer("a" + std::to_string(round), "qwen3", prompt, 4);
    Answer("b" + std::to_string(round), "llama", prompt, 4);
  }
  EXPECT_EQ(scheduler_->State().model_switches, switches);
  // One that went has to come back; the other one did not go.
  for (uint64_t round = 1; round <= 3; ++round) {
    rig_->manager().EvictModel(qwen->weights().tier_id());
    Answer("c" + std::to_string(round), "qwen3", prompt, 4);
    Answer("d" + std::to_string(round), "llama", prompt, 4);
    EXPECT_EQ(scheduler_->State().model_switches, switches + round);
  }
}

TEST_F(SchedulerTest, BatchNeighboursAndOrderChangeNothing) {
  SchedulerOptions options;
  options.step_tokens = 24;  // prompts are cut into chunks
  Start(64 * kMiB, options);
  Add("qwen3");
  Random random(5);
  std::vector<std::vector<int32_t>> prompts(12);
  std::vector<std::vector<int32_t>> alone;
  for (size_t i = 0; i < prompts.size(); ++i) {
    for (uint64_t n = 1 + random.Below(60); n > 0; --n) {
      prompts[i].push_back(static_cast<int32_t>(random.Below(500)));
    }
    alone.push_back(Answer("alone" + std::to_string(i), "qwen3", prompts[i], 10));
  }
  for (int round = 0; round < 3; ++round) {
    std::map<size_t, std::shared_ptr<Heard>> heard;
    for (size_t i = 0; i < prompts.size(); ++i) {
      const size_t at = (i * 5 + static_cast<size_t>(round)) % prompts.size();
      heard[at] = Send(
          MakeRequest(std::to_string(round) + "-" + std::to_string(at), "qwen3", prompts[at], 10));
    }
    for (auto& [at, one] : heard) {
      one->finished.WaitForNotification();
      EXPECT_EQ(one->Tokens(), alone[at]) << "prompt " << at << " round " << round;
    }
  }
}

TEST_F(SchedulerTest, TheSinkAndEndTokensStopARequest) {
  Start(64 * kMiB);
  Add("qwen3");
  Golden golden = engine::ReadGolden(Arch("qwen3"));
  auto heard = Send(MakeRequest("a", "qwen3", golden.tokens, 50), 3);
  heard->finished.WaitForNotification();
  EXPECT_EQ(heard->info.reason, FinishReason::kStop);
  EXPECT_EQ(heard->info.completion_tokens, 3);

  auto request = MakeRequest("b", "qwen3", golden.tokens, 50);
  request->end_tokens = {heard->Tokens()[2]};
  auto ended = Send(std::move(request));
  ended->finished.WaitForNotification();
  EXPECT_EQ(ended->info.reason, FinishReason::kStop);
  EXPECT_EQ(ended->Tokens().size(), 2u);
}

TEST_F(SchedulerTest, RefusesWhatCannotBe) {
  SchedulerOptions options;
  options.max_queue = 2;
  Start(8 * kMiB, options);
  Add("qwen3");
  auto status_of = [&](std::unique_ptr<Request> request) {
    request->sink = std::make_unique<RecordingSink>(std::make_shared<Heard>(), -1);
    return scheduler_->Submit(std::move(request)).code();
  };
  EXPECT_EQ(status_of(MakeRequest("a", "nobody", {1}, 5)), absl::StatusCode::kNotFound);
  EXPECT_EQ(status_of(MakeRequest("a", "qwen3", {}, 5)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status_of(MakeRequest("a", "qwen3", {1}, 0)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status_of(MakeRequest("a", "qwen3", {512}, 5)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status_of(MakeRequest("a", "qwen3", {-1}, 5)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status_of(MakeRequest("a", "qwen3", std::vector<int32_t>(2048, 1), 5)),
            absl::StatusCode::kInvalidArgument);
}

// A19, A20: prompts around the context's end, and limits beyond the room that is left.
TEST_F(SchedulerTest, TheContextsEndIsAClearErrorOrALength) {
  Start(64 * kMiB);
  engine::EngineModelOptions options;
  options.max_context = 512;
  Add("qwen3", options);
  for (const size_t tokens : {size_t{512}, size_t{513}, size_t{5000}}) {
    auto request = MakeRequest("long", "qwen3", std::vector<int32_t>(tokens, 7), 5);
    request->sink = std::make_unique<RecordingSink>(std::make_shared<Heard>(), -1);
    const absl::Status status = scheduler_->Submit(std::move(request));
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_NE(status.ToString().find(std::to_string(tokens)), std::string::npos) << status;
    EXPECT_NE(status.ToString().find("512 tokens"), std::string::npos) << status;
  }
  EXPECT_EQ(Answer("511", "qwen3", std::vector<int32_t>(511, 7), 100).size(), 1u);
  EXPECT_EQ(last_.reason, FinishReason::kLength);
  EXPECT_EQ(Answer("500", "qwen3", std::vector<int32_t>(500, 7), 100).size(), 12u);
  EXPECT_EQ(last_.reason, FinishReason::kLength);
  EXPECT_EQ(Answer("all", "qwen3", {1, 2, 3}, 2'000'000'000).size(), 509u);
  EXPECT_EQ(last_.reason, FinishReason::kLength);
  EXPECT_EQ(scheduler_->State().models[0].running, 0);
  EXPECT_EQ(KvBytes(), 0u);
}

// A32, A33: cancelled requests end within a step, queued ones are never started.
TEST_F(SchedulerTest, CancelledRequestsEndAndGiveEverythingBack) {
  SchedulerOptions options;
  options.max_batch = 1;
  Start(64 * kMiB, options);
  Add("qwen3");
  Golden golden = engine::ReadGolden(Arch("qwen3"));
  auto running = Send(MakeRequest("run", "qwen3", golden.tokens, 1500));
  std::vector<std::shared_ptr<Heard>> queued;
  for (int i = 0; i < 5; ++i) {
    queued.push_back(Send(MakeRequest("q" + std::to_string(i), "qwen3", golden.tokens, 4)));
  }
  while (running->Tokens().size() < 3) std::this_thread::yield();
  for (int i = 0; i < 4; ++i) scheduler_->Cancel("q" + std::to_string(i));
  for (int i = 0; i < 4; ++i) {
    queued[static_cast<size_t>(i)]->finished.WaitForNotification();
    EXPECT_EQ(queued[static_cast<size_t>(i)]->info.reason, FinishReason::kCancelled);
    EXPECT_TRUE(queued[static_cast<size_t>(i)]->Tokens().empty());
  }
  scheduler_->Cancel("run");
  running->finished.WaitForNotification();
  EXPECT_EQ(running->info.reason, FinishReason::kCancelled);
  queued[4]->finished.WaitForNotification();
  EXPECT_EQ(queued[4]->Tokens().size(), 4u);
  // Only two prompts were ever computed.
  EXPECT_EQ(scheduler_->State().prompt_tokens, 2 * golden.tokens.size());
  EXPECT_EQ(KvBytes(), 0u);
}

TEST_F(SchedulerTest, GivesWayWhenKvRunsOutAndStillAnswersAlike) {
  Start(64 * kMiB);
  Add("qwen3");
  Golden golden = engine::ReadGolden(Arch("qwen3"));
  const std::vector<int32_t> alone = Answer("alone", "qwen3", golden.tokens, 400);
  scheduler_.reset();
  // Weights, a workspace, and KV for about one and a half such sequences.
  const uint64_t kv_bytes = 16 * 1024 * (400 + golden.tokens.size()) / 16;
  Start(weight_bytes_["qwen3"] + 3 * kMiB + kv_bytes * 3 / 2);
  Add("qwen3");
  std::vector<std::shared_ptr<Heard>> heard;
  for (int i = 0; i < 4; ++i) {
    heard.push_back(Send(MakeRequest(std::to_string(i), "qwen3", golden.tokens, 400)));
  }
  for (auto& one : heard) {
    one->finished.WaitForNotification();
    EXPECT_TRUE(one->info.status.ok()) << one->info.status;
    EXPECT_EQ(one->Tokens(), alone);
  }
  EXPECT_EQ(KvBytes(), 0u);
}

TEST_F(SchedulerTest, DrainLetsStreamsEndAndRefusesNewOnes) {
  Start(64 * kMiB);
  Add("qwen3");
  auto heard = Send(MakeRequest("a", "qwen3", {1, 2, 3}, 200));
  EXPECT_TRUE(scheduler_->Drain(60'000'000));
  ASSERT_TRUE(heard->finished.HasBeenNotified());
  EXPECT_EQ(heard->Tokens().size(), 200u);
  auto late = MakeRequest("b", "qwen3", {1}, 5);
  late->sink = std::make_unique<RecordingSink>(std::make_shared<Heard>(), -1);
  EXPECT_EQ(scheduler_->Submit(std::move(late)).code(), absl::StatusCode::kUnavailable);
}

TEST_F(SchedulerTest, RandomRequestsCancelsAndModelsLeakNothing) {
  const uint64_t seed = 77;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  use_cache_ = true;
  Start(4 * kMiB);
  Add("qwen3");
  Add("llama");
  Random random(seed);
  std::vector<std::shared_ptr<Heard>> heard;
  for (int i = 0; i < 300; ++i) {
    const std::string model = random.Below(4) == 0 ? "llama" : "qwen3";
    std::vector<int32_t> prompt(1 + random.Below(80), static_cast<int32_t>(random.Below(3)));
    const std::string id = std::to_string(i);
    heard.push_back(Send(
        MakeRequest(id, model, std::move(prompt), static_cast<int32_t>(1 + random.Below(20)))));
    if (random.Below(3) == 0) scheduler_->Cancel(std::to_string(random.Below(i + 1)));
    if (random.Below(10) == 0) heard[random.Below(heard.size())]->finished.WaitForNotification();
  }
  for (auto& one : heard) {
    one->finished.WaitForNotification();
    EXPECT_TRUE(one->info.status.ok() || absl::IsCancelled(one->info.status)) << one->info.status;
  }
  cache_->Flush();
  cache_->Clear();
  EXPECT_EQ(KvBytes(), 0u);
  EXPECT_TRUE(rig_->manager().CheckInvariants().ok());
  EXPECT_TRUE(cache_->CheckInvariants().ok());
  EXPECT_TRUE(store_->CheckInvariants().ok());
}

}  // namespace
}  // namespace terrace::scheduler
