// Streams of one model while the weights of another are on their way from a slow disk.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "../tier/testing.h"
#include "scheduler/fixture.h"
#include "tier/parts.h"

namespace terrace::scheduler {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);

// Counts tokens, slowly enough that a tiny model does not come to the end of its context at once,
// and ends when told to.
class Stream final : public TokenSink {
 public:
  struct State {
    std::atomic<int> tokens{0};
    std::atomic<bool> stop{false};
    absl::Notification finished;
    FinishInfo info;
  };
  explicit Stream(std::shared_ptr<State> state) : state_(std::move(state)) {}
  bool OnToken(const TokenEvent&) override {
    ++state_->tokens;
    std::this_thread::sleep_for(std::chrono::milliseconds(4));
    return !state_->stop;
  }
  void OnFinish(const FinishInfo& info) override {
    state_->info = info;
    state_->finished.Notify();
  }

 private:
  std::shared_ptr<State> state_;  // shared with the test, which looks at it after the sink has gone
};

class BesideTest : public SchedulerTest {
 protected:
  void SetUp() override {
    tier::TierManagerParts parts;
    auto reader = std::make_unique<tier::FaultyReader>(storage::DiskReader::Create({}).value());
    // On the reader's thread: others do not wait for it. Slow from the start, so that what the disk
    // takes is known when the second model is asked for.
    reader->after = [this](int, std::span<std::byte>) {
      std::this_thread::sleep_for(std::chrono::milliseconds(fast_ ? 0 : 30));
      const auto give_up = std::chrono::steady_clock::now() + kPatience;
      while (hold_ && hold_() && !gave_up_) {
        gave_up_ = std::chrono::steady_clock::now() > give_up;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    };
    parts.reader = std::move(reader);
    parts.checks = std::make_unique<os::WorkerPool>("check", 1);
    parts.producers = std::make_unique<os::WorkerPool>("import", 1);
    parts.policy = tier::CreateEvictionPolicy("lru").value();
    rig_ = std::make_unique<Rig>(device::CreateCpuDevice(),
                                 ops::CreateCpuBackend(variant_, &team_, {}).value(), 64 * kMiB,
                                 std::move(parts));
    scheduler_ = Scheduler::Create({}, &rig_->engine(), &rig_->clock(), &metrics_);
    for (const char* arch : {"qwen3", "gemma3"}) Add(arch);
    rig_->manager().EvictModel(1);
    rig_->manager().EvictModel(2);
    stream_ = Begin("stream", "qwen3", 400, SlaClass::kStandard);
    while (stream_->tokens < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    fast_ = true;
  }
  void TearDown() override {
    stream_->stop = true;
    stream_->finished.WaitForNotification();
    Stop();
    EXPECT_FALSE(gave_up_) << "reads were held for ever";
    EXPECT_TRUE(rig_->manager().CheckInvariants().ok()) << rig_->manager().CheckInvariants();
  }
  std::shared_ptr<Stream::State> Begin(const std::string& id, const std::string& arch,
                                       int32_t tokens, SlaClass sla) {
    auto state = std::make_shared<Stream::State>();
    auto request = MakeRequest(id, arch, {1, 2, 3, 4, 5}, tokens);
    request->sla = sla;
    request->sink = std::make_unique<Stream>(state);
    const absl::Status status = scheduler_->Submit(std::move(request));
    EXPECT_TRUE(status.ok()) << status;
    return state;
  }
  // While this says so no read goes on. To be set while there are none.
  std::function<bool()> hold_;
  std::atomic<bool> fast_{false};
  std::atomic<bool> gave_up_{false};
  ThreadTeam team_{1};
  std::shared_ptr<Stream::State> stream_;
};

TEST_F(BesideTest, StreamsGoOnWhileAnotherModelsWeightsCome) {
  const int before = stream_->tokens;
  const uint64_t evictions = rig_->manager().Snapshot().models[0].evictions;
  // None of its weights comes before the stream has gone on.
  hold_ = [this, before] { return stream_->tokens < before + 5; };
  auto other = Begin("other", "gemma3", 3, SlaClass::kStandard);
  other->finished.WaitForNotification();
  EXPECT_TRUE(other->info.status.ok()) << other->info.status;
  EXPECT_EQ(other->tokens, 3);
  EXPECT_GE(stream_->tokens, before + 5);
  const tier::TierSnapshot snapshot = rig_->manager().Snapshot();
  EXPECT_EQ(snapshot.models[0].evictions, evictions) << "the stream's weights made room";
#ifdef __SANITIZE_THREAD__
  // Steps are so slow that all of the weights may move within one.
  if (snapshot.held_loads.empty()) GTEST_SKIP() << "nothing was held back";
#endif
  // A stream is at work: the weights gave way to it, and it can be seen for whom.
  ASSERT_EQ(snapshot.held_loads.size(), 1u);
  EXPECT_EQ(snapshot.held_loads[0].model, "gemma3");
  EXPECT_EQ(snapshot.held_loads[0].by, "qwen3");
  EXPECT_GT(snapshot.held_loads[0].us, 0);
}

TEST_F(BesideTest, WeightsOfAMoreUrgentRequestDoNotGiveWay) {
  const int before = stream_->tokens;
  hold_ = [this, before] { return stream_->tokens < before + 5; };
  auto other = Begin("other", "gemma3", 3, SlaClass::kRealtime);
  other->finished.WaitForNotification();
  EXPECT_TRUE(other->info.status.ok()) << other->info.status;
  EXPECT_GE(stream_->tokens, before + 5);
  EXPECT_TRUE(rig_->manager().Snapshot().held_loads.empty());
}

TEST_F(BesideTest, WeightsOfWhichNothingComesAreAskedForInAStep) {
  bool asked = false, streaming = false;
  hold_ = [this, &asked, &streaming] {
    if (asked || rig_->manager().Snapshot().waiting == 0) return !asked;
    streaming = !stream_->finished.HasBeenNotified();
    asked = true;
    return false;
  };
  auto other = Begin("other", "gemma3", 3, SlaClass::kStandard);
  other->finished.WaitForNotification();
  EXPECT_TRUE(other->info.status.ok()) << other->info.status;
  EXPECT_EQ(other->tokens, 3);
  EXPECT_TRUE(streaming) << "they were asked for only once nobody streamed any more";
}

// A step that waits for its weights stands in nobody's way who is more urgent and has its own.
TEST_F(BesideTest, ARealtimeRequestDoesNotWaitForAnothersLoad) {
  stream_->stop = true;
  stream_->finished.WaitForNotification();
  std::atomic<bool> answered{false};
  hold_ = [&answered] { return !answered; };
  auto slow = Begin("slow", "gemma3", 3, SlaClass::kStandard);
  while (rig_->manager().Snapshot().waiting == 0 && !gave_up_) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  auto quick = Begin("quick", "qwen3", 3, SlaClass::kRealtime);
  quick->finished.WaitForNotification();
  EXPECT_TRUE(quick->info.status.ok()) << quick->info.status;
  EXPECT_FALSE(slow->finished.HasBeenNotified());
  answered = true;
  slow->finished.WaitForNotification();
  EXPECT_TRUE(slow->info.status.ok()) << slow->info.status;
  EXPECT_EQ(slow->tokens, 3);
}

}  // namespace
}  // namespace terrace::scheduler
