// Very many requests of random lengths, of which many are cancelled, over two models, a small
// budget, the cache and its disk: afterwards everything is as at the start.
#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "absl/time/time.h"

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/status.h"
#include "scheduler/fixture.h"

namespace terrace::scheduler {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kRequests = 1'000;  // some ten times slower each
#else
constexpr int kRequests = 10'000;
#endif

// A quarter of the clients go away in the middle: their sinks say stop, as one does whose
// connection is gone; another part is cancelled from outside, at any moment.
TEST_F(CachedSchedulerTest, TenThousandRandomRequestsLeaveNothingBehind) {
  const char* given = std::getenv("TERRACE_SEED");
  const uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 20261129;
  SCOPED_TRACE(testing::Message() << "TERRACE_SEED=" << seed);
  SchedulerOptions options;
  options.max_queue = 64;
  disk_cap_bytes_ = kMiB;
  Start(4 * kMiB, options);
  Add("qwen3");
  engine::EngineModelOptions guessing;
  guessing.speculation.kind = engine::SpeculationOptions::Kind::kNgram;
  Add("llama", std::move(guessing));
  Random random(seed);
  std::vector<std::vector<int32_t>> beginnings;
  for (int i = 0; i < 20; ++i) beginnings.push_back(RandomPrompt(random, random.Below(64)));
  std::vector<std::shared_ptr<Heard>> heard;
  int refused = 0;
  for (int i = 0; i < kRequests; ++i) {
    std::vector<int32_t> prompt = beginnings[random.Below(beginnings.size())];
    const std::vector<int32_t> own = RandomPrompt(random, 1 + random.Below(24), 3);
    prompt.insert(prompt.end(), own.begin(), own.end());
    auto request = MakeRequest(std::to_string(i), random.Below(3) == 0 ? "llama" : "qwen3",
                               std::move(prompt), static_cast<int32_t>(1 + random.Below(12)));
    if (random.Below(5) == 0) request->tenant = "other";
    auto one = std::make_shared<Heard>();
    const int leaves_after = random.Below(4) == 0 ? static_cast<int>(1 + random.Below(4)) : -1;
    request->sink = std::make_unique<RecordingSink>(one, leaves_after);
    const absl::Status status = scheduler_->Submit(std::move(request));
    if (status.ok()) {
      heard.push_back(one);
    } else {
      ASSERT_TRUE(absl::IsResourceExhausted(status)) << status;
      ++refused;
      heard[random.Below(heard.size())]->finished.WaitForNotification();
      heard.back()->finished.WaitForNotification();
    }
    if (random.Below(4) == 0)
      scheduler_->Cancel(std::to_string(i - static_cast<int>(random.Below(40))));
  }
  int cancelled = 0, ended = 0;
  for (auto& one : heard) {
    one->finished.WaitForNotification();
    const absl::Status& status = one->info.status;
    ASSERT_TRUE(status.ok() || absl::IsCancelled(status)) << status;
    ++(status.ok() ? ended : cancelled);
  }
  std::printf("%d ended, %d cancelled, %d refused by a full queue\n", ended, cancelled, refused);
  EXPECT_GT(ended, kRequests / 4);
  EXPECT_GT(cancelled, kRequests / 100);
  const SchedulerState state = scheduler_->State();
  for (const ModelQueueState& model : state.models) {
    EXPECT_EQ(model.waiting, 0) << model.model;
    EXPECT_EQ(model.running, 0) << model.model;
  }
  EXPECT_TRUE(cache_->CheckInvariants().ok()) << cache_->CheckInvariants();
  cache_->Flush();
  EXPECT_TRUE(store_->CheckInvariants().ok()) << store_->CheckInvariants();
  // Loads for requests that were cancelled may still be under way; they hold their blocks till
  // then.
  for (int i = 0; i < 5000 && cache_->State().blocks > 0; ++i) {
    cache_->Clear();
    if (cache_->State().blocks > 0) absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(cache_->State().blocks, 0u) << "a block is still held by somebody";
  EXPECT_EQ(KvBytes(), 0u);
  EXPECT_TRUE(rig_->manager().CheckInvariants().ok()) << rig_->manager().CheckInvariants();
}

}  // namespace
}  // namespace terrace::scheduler
