// Who gives way to whom: for room, and in the middle of a step.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/status.h"
#include "scheduler/fixture.h"
#include "scheduler/shares.h"
#include "scheduler/step_work.h"

namespace terrace::scheduler {
namespace {

// Waits at its fifth token until it may go on.
class WaitingSink final : public TokenSink {
 public:
  struct State {
    absl::Notification five, go_on, finished;
    std::vector<int32_t> tokens;  // to be read once it has finished
    FinishInfo info;
  };
  explicit WaitingSink(std::shared_ptr<State> state) : state_(std::move(state)) {}
  bool OnToken(const TokenEvent& event) override {
    state_->tokens.push_back(event.token);
    if (state_->tokens.size() == 5) {
      state_->five.Notify();
      state_->go_on.WaitForNotification();
    }
    return true;
  }
  void OnFinish(const FinishInfo& info) override {
    state_->info = info;
    state_->finished.Notify();
  }

 private:
  std::shared_ptr<State> state_;  // shared with the test
};

// The given one's time, and what was added.
class ShiftedClock final : public Clock {
 public:
  explicit ShiftedClock(const Clock& clock) : clock_(clock) {}
  int64_t NowUs() const override { return clock_.NowUs() + added_.NowUs(); }
  int64_t WallUs() const override { return clock_.WallUs() + added_.NowUs(); }
  void AdvanceUs(int64_t us) { added_.AdvanceUs(us); }

 private:
  const Clock& clock_;
  ManualClock added_;
};

struct Order {
  absl::Mutex mutex;
  std::vector<std::string> ended;
};

class GivingWayTest : public CachedSchedulerTest {
 protected:
  std::shared_ptr<WaitingSink::State> Begin(const std::string& id, std::vector<int32_t> prompt,
                                            int32_t tokens, SlaClass sla) {
    auto state = std::make_shared<WaitingSink::State>();
    auto request = MakeRequest(id, "qwen3", std::move(prompt), tokens);
    request->sla = sla;
    request->tenant = id;
    request->sink = std::make_unique<WaitingSink>(state);
    const absl::Status status = scheduler_->Submit(std::move(request));
    EXPECT_TRUE(status.ok()) << status;
    return state;
  }
};

// Room for the KV of one and a half: a newcomer is let in at once if whoever is at work is of a
// worse class, and waits else. What gave way goes on later as if nothing had been.
TEST_F(GivingWayTest, AWorseClassGivesWayForKvRoomAndAnEqualOneDoesNot) {
  constexpr int32_t kTokens = 300;
  Random random(8);
  const std::vector<int32_t> first = RandomPrompt(random, 20), second = RandomPrompt(random, 20);
  SchedulerOptions options;
  options.step_tokens = 16;
  Start(64 * kMiB, options);
  Add("qwen3");
  const std::vector<int32_t> alone = Answer("alone", "qwen3", first, kTokens);
  const uint64_t kv_bytes = uint64_t{20 + kTokens} * kKiB;
  const uint64_t workspace = rig_->engine().workspace_bytes();
  Stop();
  for (const SlaClass newcomer : {SlaClass::kBatch, SlaClass::kStandard, SlaClass::kRealtime}) {
    SCOPED_TRACE(static_cast<int>(newcomer));
    std::filesystem::remove_all(folder_.path());
    Start(weight_bytes_["qwen3"] + workspace + kv_bytes * 3 / 2, options);
    Add("qwen3");
    const double before = Preemptions();
    auto batch = Begin("batch", first, kTokens, SlaClass::kBatch);
    batch->five.WaitForNotification();
    auto request = MakeRequest("other", "qwen3", second, kTokens);
    request->sla = newcomer;
    request->tenant = "other";
    auto other = Send(std::move(request));
    batch->go_on.Notify();
    other->finished.WaitForNotification();
    EXPECT_TRUE(other->info.status.ok()) << other->info.status;
    EXPECT_EQ(other->Tokens().size(), static_cast<size_t>(kTokens));
    const bool gave_way = newcomer != SlaClass::kBatch;
    EXPECT_EQ(batch->finished.HasBeenNotified(), !gave_way);
    batch->finished.WaitForNotification();
    EXPECT_TRUE(batch->info.status.ok()) << batch->info.status;
    EXPECT_EQ(batch->tokens, alone);
    EXPECT_EQ(Preemptions() - before, gave_way ? 1 : 0);
    EXPECT_TRUE(rig_->manager().CheckInvariants().ok());
    Stop();
  }
}

// Room for one model and the KV of one of its requests: whose turn it is has the other's give way,
// and does not hold the turn with nothing to compute while the other's weights go and come again.
TEST_F(GivingWayTest, AModelThatHasTheTurnIsNotKeptFromItByPausedKvOfAnother) {
  constexpr int32_t kTokens = 300;
  constexpr int64_t kMaxWaitUs = int64_t{60} * 1'000'000;  // more than the whole test takes
  Random random(9);
  const std::vector<int32_t> first = RandomPrompt(random, 20), second = RandomPrompt(random, 400);
  SchedulerOptions options;
  options.step_tokens = 16;
  options.max_wait_us = kMaxWaitUs;
  Start(64 * kMiB, options);
  Add("qwen3");
  Add("llama");
  const std::vector<int32_t> alone = Answer("alone", "qwen3", first, kTokens);
  Answer("other", "llama", second, 8);
  const uint64_t workspace = rig_->engine().workspace_bytes();
  const uint64_t weights = std::max(weight_bytes_["qwen3"], weight_bytes_["llama"]);
  Stop();
  std::filesystem::remove_all(folder_.path());
  Start(weights + workspace + (20 + kTokens + 8) * kKiB, options);
  ShiftedClock clock(rig_->clock());
  options.cache = cache_.get();
  scheduler_ = Scheduler::Create(options, &rig_->engine(), &clock, &metrics_);
  Add("qwen3");
  Add("llama");
  const double before = Preemptions();
  auto long_one = Begin("long", first, kTokens, SlaClass::kStandard);
  long_one->five.WaitForNotification();
  auto other = Send(MakeRequest("other", "llama", second, 8));
  clock.AdvanceUs(20 * kMaxWaitUs);  // it is overdue, and the turn has lasted for longer than any
  long_one->go_on.Notify();
  other->finished.WaitForNotification();
  EXPECT_FALSE(long_one->finished.HasBeenNotified()) << "it had to wait for its end";
  EXPECT_TRUE(other->info.status.ok()) << other->info.status;
  long_one->finished.WaitForNotification();
  EXPECT_TRUE(long_one->info.status.ok()) << long_one->info.status;
  EXPECT_EQ(long_one->tokens, alone);
  EXPECT_GE(Preemptions() - before, 1);
  EXPECT_LT(scheduler_->State().model_switches, kTokens / 10u) << "not for every token";
  Stop();
}

// Who gave way for a realtime request holds up those of its own class until somebody ends, not the
// next realtime request, for which another one gives way.
TEST_F(GivingWayTest, ASecondRealtimeRequestDoesNotWaitForTheEndOfTheFirst) {
  constexpr int32_t kTokens = 300;
  Random random(9);
  SchedulerOptions options;
  options.step_tokens = 16;
  options.aging_us = 0;  // however slow the machine: no batch request comes to be as good as they
  Start(64 * kMiB, options);
  Add("qwen3");
  Answer("alone", "qwen3", RandomPrompt(random, 20), kTokens);
  const uint64_t kv_bytes = uint64_t{20 + kTokens} * kKiB;
  const uint64_t workspace = rig_->engine().workspace_bytes();
  Stop();
  std::filesystem::remove_all(folder_.path());
  Start(weight_bytes_["qwen3"] + workspace + kv_bytes * 5 / 2, options);
  Add("qwen3");
  std::vector<std::shared_ptr<WaitingSink::State>> batch, realtime;
  for (const char* id : {"b1", "b2"}) {
    batch.push_back(Begin(id, RandomPrompt(random, 20), kTokens, SlaClass::kBatch));
  }
  batch[0]->five.WaitForNotification();
  batch[0]->go_on.Notify();
  batch[1]->five.WaitForNotification();  // both are in
  realtime.push_back(Begin("r1", RandomPrompt(random, 20), kTokens, SlaClass::kRealtime));
  batch[1]->go_on.Notify();
  realtime[0]->five.WaitForNotification();
  realtime.push_back(Begin("r2", RandomPrompt(random, 20), kTokens, SlaClass::kRealtime));
  realtime[0]->go_on.Notify();
  realtime[1]->five.WaitForNotification();
  EXPECT_FALSE(realtime[0]->finished.HasBeenNotified()) << "the second waited for its end";
  EXPECT_FALSE(batch[0]->finished.HasBeenNotified());
  EXPECT_FALSE(batch[1]->finished.HasBeenNotified());
  realtime[1]->go_on.Notify();
  for (const auto& each : {realtime[0], realtime[1], batch[0], batch[1]}) {
    each->finished.WaitForNotification();
    EXPECT_TRUE(each->info.status.ok()) << each->info.status;
    EXPECT_EQ(each->tokens.size(), static_cast<size_t>(kTokens));
  }
  EXPECT_EQ(Preemptions(), 2);
}

// Looks at what a tenant holds at each token of its own, and notes in which order requests end.
class WatchingSink final : public TokenSink {
 public:
  WatchingSink(std::string name, std::function<void()> look, std::shared_ptr<Order> order)
      : name_(std::move(name)), look_(std::move(look)), order_(std::move(order)) {}
  bool OnToken(const TokenEvent&) override {
    look_();
    return true;
  }
  void OnFinish(const FinishInfo& info) override {
    absl::MutexLock lock(&order_->mutex);
    EXPECT_TRUE(info.status.ok()) << info.status;
    order_->ended.push_back(name_);
  }

 private:
  const std::string name_;
  const std::function<void()> look_;
  const std::shared_ptr<Order> order_;
};

TEST_F(GivingWayTest, ATenantsKvStaysWithinItsQuotaAndOthersDoNotWaitForIt) {
  constexpr int32_t kTokens = 200;
  constexpr uint64_t kQuota = 300 * kKiB;  // of one request and a half: a KiB a token
  Start(64 * kMiB);
  Add("qwen3");
  scheduler_->SetTenants({{"narrow", {.memory_bytes = kQuota}}});
  std::atomic<uint64_t> most{0};
  auto look = [this, &most] {
    uint64_t held = 0;
    for (const tier::LedgerLine& line : rig_->manager().Snapshot().ledger) {
      if (line.owner.tenant == "narrow" && line.owner.kind == tier::Kind::kKv) held += line.bytes;
    }
    most = std::max<uint64_t>(most, held);
  };
  auto order = std::make_shared<Order>();
  Random random(8);
  auto ask = [&](const std::string& name, const std::string& tenant, int32_t tokens) {
    auto request = MakeRequest(name, "qwen3", RandomPrompt(random, 20), tokens);
    request->tenant = tenant;
    request->sink = std::make_unique<WatchingSink>(name, look, order);
    const absl::Status status = scheduler_->Submit(std::move(request));
    EXPECT_TRUE(status.ok()) << status;
  };
  ask("first", "narrow", kTokens);
  ask("second", "narrow", kTokens);
  ask("wide", "wide", 20);
  auto too_long = MakeRequest("long", "qwen3", RandomPrompt(random, 400), 1);
  too_long->tenant = "narrow";
  too_long->sink = std::make_unique<WatchingSink>("long", look, order);
  const absl::Status refused = scheduler_->Submit(std::move(too_long));
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_NE(refused.message().find("tenant 'narrow' (300.0 KiB, of which"), std::string::npos)
      << refused;
  const auto all = [&] { return order->ended.size() == 3; };
  absl::MutexLock lock(&order->mutex);
  order->mutex.Await(absl::Condition(&all));
  EXPECT_EQ(order->ended, (std::vector<std::string>{"wide", "first", "second"}));
  EXPECT_GT(most, uint64_t{kTokens} * kKiB);
  EXPECT_LE(most, kQuota);
}

// Weights that stay for the next realtime request are no room for the KV of others, nor are those
// of the model at work: of two batch sequences that fit beside each other, but not beside both
// models as well, one waits, and KV that is kept goes. Without realtime requests the idle model's
// weights go.
TEST_F(GivingWayTest, KvOfOthersTakesNoRoomOfWeightsThatStayForRealtimeRequests) {
  constexpr int32_t kTokens = 300;
  Random random(10);
  const std::vector<int32_t> first = RandomPrompt(random, 20), second = RandomPrompt(random, 20);
  SchedulerOptions options;
  options.step_tokens = 16;
  Start(64 * kMiB, options);
  for (const char* arch : {"qwen3", "gemma3"}) Add(arch);
  Answer("alone", "qwen3", first, kTokens);
  Answer("other", "gemma3", first, 3);
  const uint64_t kv_bytes = uint64_t{20 + kTokens} * kKiB;
  const uint64_t workspace = rig_->engine().workspace_bytes();
  Stop();
  for (const SlaClass sla : {SlaClass::kRealtime, SlaClass::kStandard}) {
    SCOPED_TRACE(static_cast<int>(sla));
    std::filesystem::remove_all(folder_.path());
    Start(weight_bytes_["qwen3"] + weight_bytes_["gemma3"] + workspace + kv_bytes * 3 / 2, options);
    // It stands still, ahead of the tier manager's: weights stay for as long as the test takes.
    const ManualClock frozen(rig_->clock().NowUs() + int64_t{3600} * 1'000'000);
    options.cache = cache_.get();
    scheduler_ = Scheduler::Create(options, &rig_->engine(), &frozen, &metrics_);
    for (const char* arch : {"qwen3", "gemma3"}) Add(arch);
    const double before = Preemptions();
    auto request = MakeRequest("quick", "gemma3", first, 3);
    request->sla = sla;
    auto quick = Send(std::move(request));
    quick->finished.WaitForNotification();
    EXPECT_TRUE(quick->info.status.ok()) << quick->info.status;
    cache_->Reclaim(64 * kMiB, rig_->clock().NowUs());
    const auto evictions = [this](const std::string& name) {
      for (const tier::ModelState& model : rig_->manager().Snapshot().models) {
        if (model.name == name) return model.evictions;
      }
      ADD_FAILURE() << name;
      return uint64_t{0};
    };
    std::vector<std::shared_ptr<WaitingSink::State>> batch = {
        Begin("b1", first, kTokens, SlaClass::kBatch),
        Begin("b2", second, kTokens, SlaClass::kBatch)};
    for (const auto& each : batch) each->go_on.Notify();
    for (const auto& each : batch) {
      each->finished.WaitForNotification();
      EXPECT_TRUE(each->info.status.ok()) << each->info.status;
      EXPECT_EQ(each->tokens.size(), static_cast<size_t>(kTokens));
    }
    const bool stay = sla == SlaClass::kRealtime;
    EXPECT_EQ(evictions("qwen3"), 0u);
    EXPECT_EQ(evictions("gemma3") == 0, stay);
    EXPECT_EQ(Preemptions() - before, 0) << "it waits from the start";
    Stop();
    options.cache = nullptr;
  }
}

// A tenant pauses when it has computed what its limit allows, also alone, and nobody pauses with
// it. Bounds that hold however slow the machine is: what is slow counts as computing, too.
TEST_F(GivingWayTest, ATenantComputesNoMoreThanItsLimit) {
  constexpr int32_t kTokens = 60;
  constexpr double kLimit = 0.2;
  Start(64 * kMiB);
  Add("qwen3");
  scheduler_->SetTenants({{"narrow", {.compute = kLimit}}});
  auto order = std::make_shared<Order>();
  auto ask = [&](const std::string& name, int32_t tokens, std::function<void()> look) {
    auto request = MakeRequest(name, "qwen3", {1, 2, 3, 4, 5}, tokens);
    request->tenant = name;
    request->sink = std::make_unique<WatchingSink>(name, std::move(look), order);
    const absl::Status status = scheduler_->Submit(std::move(request));
    EXPECT_TRUE(status.ok()) << status;
  };
  const int64_t begin_us = rig_->clock().NowUs();
  absl::Notification half;
  int at = 0;
  ask("narrow", kTokens, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (++at == kTokens / 2) half.Notify();
  });
  half.WaitForNotification();
  ask("wide", 200, [] {});
  const auto both = [&] { return order->ended.size() == 2; };
  absl::MutexLock lock(&order->mutex);
  order->mutex.Await(absl::Condition(&both));
  const double took_us = static_cast<double>(rig_->clock().NowUs() - begin_us);
  EXPECT_EQ(order->ended.front(), "wide") << "it had to wait for the pauses of the other";
  // The last step may begin with all but nothing left.
  constexpr double kComputedUs = (kTokens - 1) * 20e3;
  EXPECT_GE(took_us, (kComputedUs - ComputeShares::kBurstUs) / kLimit);
}

TEST(GiveUpFor, StreamsStopInTheMiddleOfAStepForRealtimeRequestsOnly) {
  LiveRequest one, other;
  StepWork work;
  work.requests = {&one, &other};
  EXPECT_EQ(work.give_up_for(false), GiveUpFor::kAnyone) << "prompts";
  work.decode_rows = 1;
  EXPECT_EQ(work.give_up_for(false), GiveUpFor::kRealtime);
  work.guesses = true;
  EXPECT_EQ(work.give_up_for(false), GiveUpFor::kNobody);
}

TEST(GiveUpFor, NoStepIsGivenUpOverAndOverUnlessItsWeightsComeMeanwhile) {
  LiveRequest one, other;
  StepWork work;
  work.requests = {&one, &other};
  work.decode_rows = 2;
  other.given_up = 2;
  EXPECT_EQ(work.give_up_for(false), GiveUpFor::kRealtime);
  other.given_up = 3;
  EXPECT_EQ(work.give_up_for(false), GiveUpFor::kNobody);
  EXPECT_EQ(work.give_up_for(true), GiveUpFor::kRealtime);
  other.early = 1;
  EXPECT_EQ(work.give_up_for(true), GiveUpFor::kNobody) << "KV on its way is used as it comes";
}

TEST(LiveRequest, AgingCountsFromTheLastStep) {
  LiveRequest live;
  live.submitted_us = 10;
  EXPECT_EQ(live.waiting_since_us(), 10);
  live.stepped_us = 25;
  EXPECT_EQ(live.waiting_since_us(), 25);
}

}  // namespace
}  // namespace terrace::scheduler
