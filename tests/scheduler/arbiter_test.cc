#include "scheduler/arbiter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/random.h"

namespace terrace::scheduler {
namespace {

constexpr int64_t kMs = 1000;

// A snapshot that a test fills.
struct World {
  ArbiterOptions options;
  std::vector<ArbiterModel> models;
  std::vector<QueuedView> queued;
  std::vector<ArbiterTenant> tenants = std::vector<ArbiterTenant>(1);
  uint64_t budget = 1000;
  int32_t current = -1;
  int64_t now_us = 0;
  int64_t last_work_us = -1;
  int64_t turn_since_us = 0;
  int64_t turn_first_us = 1;  // at once

  void Model(int32_t waiting, int32_t running, int64_t since_us,
             SlaClass sla = SlaClass::kStandard) {
    const auto index = static_cast<int32_t>(models.size());
    models.push_back({.running = running,
                      .running_sla = sla,
                      .waiting_since_us = since_us,
                      .weight_bytes = 100,
                      .kv_bytes = running > 0 ? 10u : 0u});
    for (int i = 0; i < waiting; ++i) Ask(index, since_us, sla);
  }
  void Ask(int32_t model, int64_t arrived_us, SlaClass sla = SlaClass::kStandard,
           int32_t tenant = 0) {
    queued.push_back({.model = model, .tenant = tenant, .sla = sla, .arrived_us = arrived_us});
  }
  ArbiterDecision Decide() const {
    return Arbitrate(options, {.now_us = now_us,
                               .budget_bytes = budget,
                               .current = current,
                               .turn_since_us = turn_since_us,
                               .turn_first_us = turn_first_us,
                               .last_work_us = last_work_us >= 0 ? last_work_us : now_us,
                               .models = models,
                               .queued = queued,
                               .tenants = tenants});
  }
};

TEST(Arbiter, AModelWhoseStoreIsSilentHoldsNobodyUp) {
  for (const uint64_t budget : {1000, 150}) {  // that fit together, and that take turns
    for (const int32_t current : {-1, 0, 1}) {
      World world{.budget = budget, .current = current, .now_us = 10'000 * kMs};
      world.Model(3, 1, 0, SlaClass::kRealtime);
      world.models[0].silent = true;
      world.Model(1, 0, 9'999 * kMs, SlaClass::kBatch);
      EXPECT_EQ(world.Decide().model, 1) << budget << " " << current;
      // With nobody else there it is looked at again soon.
      world.queued.pop_back();
      const ArbiterDecision alone = world.Decide();
      EXPECT_EQ(alone.model, -1) << budget << " " << current;
      EXPECT_GT(alone.wait_us, 0);
      EXPECT_LE(alone.wait_us, 100 * kMs);
      EXPECT_TRUE(alone.load.empty());
    }
  }
}

TEST(Arbiter, NothingToDoWithoutWork) {
  World world{.current = 0, .now_us = 5};
  world.Model(0, 0, 0);
  world.Model(0, 0, 0);
  EXPECT_EQ(world.Decide().model, -1);
  EXPECT_LT(world.Decide().wait_us, 0);
}

TEST(Arbiter, TheLongestWaitingOfEqualModelsStarts) {
  World world{.now_us = 50};
  world.Model(1, 0, 20);
  world.Model(1, 0, 10);
  world.Model(1, 0, 30);
  EXPECT_EQ(world.Decide().model, 1);
}

TEST(Arbiter, ModelsThatFitTogetherTakeTurnsByStep) {
  World world{.current = 0, .now_us = 50};
  world.Model(0, 2, 40);
  world.Model(0, 1, 30);
  EXPECT_EQ(world.Decide().model, 1);
  world.models[1].waiting_since_us = 50;
  world.current = 1;
  EXPECT_EQ(world.Decide().model, 0);
}

TEST(Arbiter, NobodyWaitsForTheLoadOfAModelThatFitsBeside) {
  World world{.current = 0, .now_us = 50};
  world.Model(0, 2, 40);
  world.Model(1, 0, 30);
  world.models[1].load_us = world.options.load_beside_us + 1;
  ArbiterDecision decision = world.Decide();
  EXPECT_EQ(decision.model, 0);
  EXPECT_EQ(decision.load, std::vector<int32_t>{1});
  // Near enough, it has its turn like any other.
  world.models[1].load_us = world.options.load_beside_us;
  decision = world.Decide();
  EXPECT_EQ(decision.model, 1);
  EXPECT_TRUE(decision.load.empty());
  // What does not come by itself has to be asked for in earnest.
  world.models[1].load_us = 60 * 1000 * kMs;
  world.models[1].stuck = true;
  EXPECT_EQ(world.Decide().model, 1);
}

TEST(Arbiter, AModelAloneStepsWhileTheLastOfItsWeightsCome) {
  World world{.current = 0, .now_us = 50};
  world.Model(0, 0, 40);  // whose next request may come at any time
  world.Model(1, 0, 30);
  world.models[1].load_us = world.options.load_alone_us;
  EXPECT_EQ(world.Decide().model, 1);
  world.models[1].load_us = world.options.load_alone_us + 5'000;
  const ArbiterDecision decision = world.Decide();
  EXPECT_EQ(decision.model, -1);
  EXPECT_EQ(decision.wait_us, 5'000);
  EXPECT_EQ(decision.load, std::vector<int32_t>{1});
  // Also the one that has the turn: its weights may have gone while it was idle.
  world.current = 1;
  EXPECT_EQ(world.Decide().model, -1);
}

TEST(Arbiter, TheCurrentModelKeepsItsTurnWhileNobodyIsOverdue) {
  World world{.budget = 150, .current = 0};
  world.Model(3, 1, 0);
  world.Model(1, 0, 1000 * kMs);
  world.now_us = 1000 * kMs + world.options.max_wait_us - 1;
  EXPECT_EQ(world.Decide().model, 0);
  EXPECT_TRUE(world.Decide().admit);
}

TEST(Arbiter, AnOverdueModelGetsTheTurnAndRunningRequestsPauseIfTheirKvFits) {
  World world{.budget = 150, .current = 0};
  world.Model(3, 1, 0);
  world.Model(1, 0, 0);
  world.now_us = world.options.max_wait_us;
  EXPECT_EQ(world.Decide().model, 1);
}

TEST(Arbiter, A34RunningRequestsEndFirstIfTheirKvDoesNotFitBesideTheOther) {
  World world{.budget = 105, .current = 0};
  world.Model(3, 1, 0);
  world.Model(1, 0, 0);
  world.now_us = world.options.max_wait_us;
  EXPECT_EQ(world.Decide().model, 0);
  EXPECT_FALSE(world.Decide().admit);
  world.models[0].running = 0;
  world.models[0].kv_bytes = 0;
  EXPECT_EQ(world.Decide().model, 1);
}

TEST(Arbiter, RunningRequestsGiveWayWhenTheirEndIsTooFar) {
  World world{.budget = 105, .current = 0};
  world.Model(3, 1, 0);
  world.Model(1, 0, 0);
  world.now_us = 2 * world.options.max_wait_us - 1;
  EXPECT_EQ(world.Decide().model, 0);
  world.now_us = 2 * world.options.max_wait_us;
  EXPECT_EQ(world.Decide().model, 1);
}

TEST(Arbiter, ATurnForWhichOthersGaveWayPaysForWhatItTookToBegin) {
  World world{.budget = 105, .current = 0};
  world.Model(3, 1, 0);
  world.Model(1, 0, 0);
  // Its first token came after 3 s of loading: others have the next turn after 9 s.
  world.turn_first_us = 3'000 * kMs;
  world.now_us = 9'000 * kMs - 1;
  EXPECT_EQ(world.Decide().model, 0);
  ++world.now_us;
  EXPECT_EQ(world.Decide().model, 1);
  // It has given nothing yet: so is it for ten times what the other should wait at most.
  world.turn_first_us = 0;
  EXPECT_EQ(world.Decide().model, 0);
  world.now_us = 10 * world.options.max_wait_us;
  EXPECT_EQ(world.Decide().model, 1);
  // Where its KV fits beside the other's weights it gives way as soon as that is due.
  world.budget = 150;
  world.now_us = world.options.max_wait_us;
  EXPECT_EQ(world.Decide().model, 1);
}

// Two generations that take longer than aging, of models in turn: whoever gave way would be in a
// better band than the other at once, and the turn would change with each step.
TEST(Arbiter, WhoGaveWayAgesFromItsLastStep) {
  World world{.budget = 150, .current = 0};
  world.now_us = 10 * world.options.aging_us;
  world.turn_since_us = world.turn_first_us = world.now_us - 1;
  world.Model(0, 1, world.now_us);
  world.Model(0, 0, world.now_us - 1);
  world.Ask(1, 0);
  world.queued.back().stepped_us = world.now_us - 1;
  EXPECT_EQ(world.Decide().model, 0);
  world.models[1].waiting_since_us = world.now_us - world.options.aging_us;
  world.queued.back().stepped_us = world.models[1].waiting_since_us;
  EXPECT_EQ(world.Decide().model, 1);
  // Among those of its model it is as old as it is.
  world.Ask(1, 1);
  EXPECT_EQ(world.Decide().order, std::vector<int32_t>({0, 1}));
}

TEST(Arbiter, AModelThatJustRanOutOfWorkLingers) {
  World world{.budget = 150, .current = 0, .now_us = 101 * kMs};
  world.Model(0, 0, 0);
  world.Model(1, 0, 100 * kMs);
  world.last_work_us = world.now_us;
  const ArbiterDecision decision = world.Decide();
  EXPECT_EQ(decision.model, -1);
  EXPECT_GT(decision.wait_us, 0);
  EXPECT_LE(decision.wait_us, world.options.linger_us);
  world.now_us += world.options.linger_us;
  EXPECT_EQ(world.Decide().model, 1);
}

TEST(Arbiter, OnlyAModelWhoseRequestsComeBackSoonLingers) {
  World world{.budget = 150, .current = 0, .now_us = 101 * kMs};
  world.Model(0, 0, 0);
  world.Model(1, 0, 100 * kMs);
  world.last_work_us = world.now_us;
  world.models[0].return_us = 5'000;
  EXPECT_EQ(world.Decide().model, -1);
  world.models[0].return_us = static_cast<double>(world.options.linger_us) + 1;
  EXPECT_EQ(world.Decide().model, 1);
}

TEST(Arbiter, ABetterClassTakesTheTurnAtOnceUnlessTheModelIsStillNew) {
  World world{.budget = 150, .current = 0, .now_us = 500 * kMs};
  world.Model(3, 1, 0, SlaClass::kBatch);
  world.Model(1, 0, 499 * kMs, SlaClass::kRealtime);
  EXPECT_EQ(world.Decide().model, 1);
  world.options.min_residency_us = 600 * kMs;
  EXPECT_EQ(world.Decide().model, 0);
  world.now_us = 600 * kMs;
  EXPECT_EQ(world.Decide().model, 1);
}

// Three models of which two fit.
World ThreeForTwo() {
  World world{.budget = 250, .current = 0, .now_us = 100 * kMs};
  world.Model(2, 1, 90 * kMs, SlaClass::kStandard);
  world.Model(1, 0, 10 * kMs, SlaClass::kBatch);
  world.Model(1, 0, 99 * kMs, SlaClass::kRealtime);
  return world;
}

TEST(Arbiter, ARealtimeModelThatIsThereStepsBesideTheTurn) {
  World world = ThreeForTwo();
  // Also if the turn is new and another model has waited too long.
  world.options.min_residency_us = 1000 * kMs;
  world.options.max_wait_us = 50 * kMs;
  ArbiterDecision decision = world.Decide();
  EXPECT_EQ(decision.model, 2);
  EXPECT_TRUE(decision.aside);
  EXPECT_EQ(decision.order, (std::vector<int32_t>{3}));
  // Nor does whoever has the turn linger for its next request while one waits.
  world.models[0].running = 0;
  std::erase_if(world.queued, [](const QueuedView& each) { return each.model == 0; });
  EXPECT_EQ(world.Decide().model, 2);
  EXPECT_TRUE(world.Decide().aside);
}

TEST(Arbiter, WhoStepsBesideTheTurnMustBeThereAndFit) {
  World world = ThreeForTwo();
  world.models[2].load_us = world.options.load_beside_us + 1;
  EXPECT_FALSE(world.Decide().aside) << "it would bring a load";
  world.models[2].load_us = 0;
  world.models[2].stuck = true;
  EXPECT_FALSE(world.Decide().aside);
  world.models[2].stuck = false;
  EXPECT_TRUE(world.Decide().aside);
  world.budget = 205;
  EXPECT_TRUE(world.Decide().aside) << "for KV somebody of a worse class can give way";
  world.budget = 195;
  EXPECT_FALSE(world.Decide().aside);
}

TEST(Arbiter, WhoHasTheTurnStepsNowAndThenWhateverStepsBeside) {
  World world = ThreeForTwo();
  world.now_us = world.models[0].waiting_since_us + world.options.aside_most_us - 1;
  EXPECT_EQ(world.Decide().model, 2);
  ++world.now_us;
  EXPECT_EQ(world.Decide().model, 0);
}

TEST(Arbiter, NobodyIsKeptFromTheTurnForEverByWhoStepsBesideIt) {
  World world = ThreeForTwo();
  for (const bool busy : {true, false}) {
    SCOPED_TRACE(busy);
    if (!busy) {
      world.models[0].running = 0;
      std::erase_if(world.queued, [](const QueuedView& each) { return each.model == 0; });
    }
    world.now_us = world.models[1].waiting_since_us + 2 * world.options.max_wait_us - 1;
    world.models[0].waiting_since_us = world.models[2].waiting_since_us = world.now_us;
    EXPECT_EQ(world.Decide().model, 2);
    EXPECT_TRUE(world.Decide().aside);
    ++world.now_us;
    EXPECT_EQ(world.Decide().model, 1);
    EXPECT_FALSE(world.Decide().aside) << "it takes the turn";
    world.options.min_residency_us = world.now_us + 1;
    EXPECT_EQ(world.Decide().model, 2) << "the turn is still new";
    world.options.min_residency_us = 0;
  }
}

TEST(Arbiter, EqualsByAgingTakeTurnsByStepBesideEachOther) {
  World world = ThreeForTwo();
  world.options.aging_us = 50 * kMs;
  world.queued.clear();
  world.models[2].running = 1;
  world.models[2].running_sla = SlaClass::kRealtime;
  world.Ask(0, 0, SlaClass::kStandard);  // lifted by now
  world.Ask(1, 99 * kMs, SlaClass::kBatch);
  world.models[0].held = true;
  EXPECT_EQ(world.Decide().model, 2);
  world.models[0].held = false;
  EXPECT_EQ(world.Decide().model, 0) << "it has waited longer for its step";
  EXPECT_FALSE(world.Decide().aside);
  world.models[0].waiting_since_us = 99 * kMs + 1;
  EXPECT_TRUE(world.Decide().aside);
}

TEST(Arbiter, AmongModelsThatFitARealtimeRequestIsTakenInFirst) {
  World world{.current = 0, .now_us = 100 * kMs};
  world.Model(0, 2, 20 * kMs, SlaClass::kStandard);
  world.Model(0, 2, 10 * kMs, SlaClass::kBatch);
  world.Model(1, 0, 99 * kMs, SlaClass::kRealtime);
  EXPECT_EQ(world.Decide().model, 2);
  world.queued.back().sla = SlaClass::kStandard;
  EXPECT_EQ(world.Decide().model, 1) << "whoever has waited longest";
  world.queued.back().sla = SlaClass::kRealtime;
  world.now_us = 10 * kMs + world.options.aside_most_us;
  EXPECT_EQ(world.Decide().model, 1) << "nobody starves";
  world.models[1].held = true;
  EXPECT_EQ(world.Decide().model, 2);
}

TEST(Arbiter, BandsAreStrictAndAgingLiftsThem) {
  World world{.now_us = 100 * kMs};
  world.Model(9, 0, 0, SlaClass::kBatch);
  world.Model(1, 0, 90 * kMs, SlaClass::kStandard);
  EXPECT_EQ(world.Decide().model, 1);
  world.options.aging_us = 50 * kMs;  // both are as good as realtime now, or nearly
  world.options.latency_weight = 1;
  EXPECT_EQ(world.Decide().model, 0);
  EXPECT_EQ(Band(world.options, SlaClass::kBatch, 49 * kMs), 2);
  EXPECT_EQ(Band(world.options, SlaClass::kBatch, 50 * kMs), 1);
  EXPECT_EQ(Band(world.options, SlaClass::kBatch, 5000 * kMs), 0);
}

TEST(Arbiter, TheWeightsSetTheTradeBetweenThroughputAndWaiting) {
  World world{.now_us = 100 * kMs};
  world.Model(20, 0, 90 * kMs);
  world.Model(1, 0, 10 * kMs);
  world.options.qps_weight = 1;
  world.options.latency_weight = 0;
  EXPECT_EQ(world.Decide().model, 0);
  world.options.qps_weight = 0;
  world.options.latency_weight = 1;
  EXPECT_EQ(world.Decide().model, 1);
  // Loading counts against a model.
  world.options.qps_weight = 1;
  world.options.latency_weight = 0;
  world.models[0].load_us = 60'000 * kMs;
  EXPECT_EQ(world.Decide().model, 1);
}

TEST(Arbiter, RequestsComeInByClassThenLeastServedTenantThenArrival) {
  World world{.now_us = 100};
  world.tenants = {{.served = 5000}, {.served = 0}, {.served = 100}};
  world.Model(0, 0, 0);
  world.Ask(0, 1, SlaClass::kStandard, 0);  // 0
  world.Ask(0, 2, SlaClass::kStandard, 1);  // 1
  world.Ask(0, 3, SlaClass::kStandard, 1);  // 2
  world.Ask(0, 4, SlaClass::kBatch, 2);     // 3
  world.Ask(0, 5, SlaClass::kRealtime, 0);  // 4
  EXPECT_EQ(world.Decide().order, (std::vector<int32_t>{4, 1, 2, 0, 3}));
  world.tenants[1].weight = 0.01;
  world.tenants[1].served = 60;  // is 6000 by its weight
  EXPECT_EQ(world.Decide().order, (std::vector<int32_t>{4, 0, 1, 2, 3}));
}

TEST(Arbiter, TenantsShareABatchByWhatTheyWereServed) {
  World world{.options = {.max_batch = 6}};
  world.tenants.resize(2);
  world.Model(0, 0, 0);
  for (int i = 0; i < 100; ++i) world.Ask(0, 0, SlaClass::kStandard, 0);
  for (int i = 0; i < 3; ++i) world.Ask(0, 50, SlaClass::kStandard, 1);
  const std::vector<int32_t> order = world.Decide().order;
  ASSERT_EQ(order.size(), 6u);
  EXPECT_EQ(std::count_if(order.begin(), order.end(), [](int32_t i) { return i >= 100; }), 3);
}

TEST(Arbiter, ATenantAtItsLimitWaitsWhileOthersComeIn) {
  World world{.options = {.tenant_running = 2}};
  world.tenants = {{.running = 1}, {.running = 2}};
  world.Model(0, 0, 0);
  for (int i = 0; i < 3; ++i) world.Ask(0, i, SlaClass::kRealtime, 1);
  for (int i = 0; i < 3; ++i) world.Ask(0, i, SlaClass::kBatch, 0);
  EXPECT_EQ(world.Decide().order, (std::vector<int32_t>{3}));
}

TEST(Arbiter, NoMoreComeInThanTheBatchHasRoomFor) {
  World world{.options = {.max_batch = 4}};
  world.Model(9, 3, 0);
  EXPECT_EQ(world.Decide().order, (std::vector<int32_t>{0}));
  world.models[0].running = 4;
  EXPECT_TRUE(world.Decide().order.empty());
}

// Whatever arrives, a model with work is served within max_wait plus one turn's drain, and a
// decision never names a model without work.
TEST(Arbiter, NobodyStarvesUnderRandomArrivals) {
  const uint64_t seed = 20261129;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Random random(seed);
  constexpr int kModels = 5;
  World world{.budget = 130};
  world.options.aging_us = 1000 * kMs;
  world.tenants.resize(3);
  world.models.assign(kModels, {.weight_bytes = 100});
  int64_t longest_wait_us = 0, longest_request_us = 0;
  constexpr int64_t kStepUs = 10 * kMs;
  for (int step = 0; step < 20000; ++step) {
    for (int32_t m = 0; m < kModels; ++m) {
      if (random.Below(20) != 0) continue;
      ArbiterModel& model = world.models[static_cast<size_t>(m)];
      const bool idle = model.running == 0 &&
                        std::none_of(world.queued.begin(), world.queued.end(),
                                     [&](const QueuedView& each) { return each.model == m; });
      if (idle) model.waiting_since_us = world.now_us;
      world.Ask(m, world.now_us, static_cast<SlaClass>(random.Below(3)),
                static_cast<int32_t>(random.Below(3)));
    }
    const ArbiterDecision decision = world.Decide();
    world.now_us += kStepUs;
    if (decision.model < 0) continue;
    ArbiterModel& model = world.models[static_cast<size_t>(decision.model)];
    ASSERT_GT(model.running + static_cast<int32_t>(decision.order.size()), 0);
    longest_wait_us = std::max(longest_wait_us, world.now_us - model.waiting_since_us);
    if (!decision.aside) {
      if (decision.model != world.current) world.turn_since_us = world.now_us;
      world.current = decision.model;
    }
    if (!decision.order.empty()) {
      const auto taken = world.queued.begin() + decision.order.front();
      longest_request_us = std::max(longest_request_us, world.now_us - taken->arrived_us);
      world.queued.erase(taken);
      ++model.running;
    }
    if (model.running > 0 && random.Below(3) == 0) --model.running;
    model.kv_bytes = static_cast<uint64_t>(model.running) * 10;
    model.waiting_since_us = world.now_us;
    world.last_work_us = world.now_us;
  }
  // Each of the four others may take a turn of max_wait and drain (a third of its requests ends a
  // step, at most a few dozen steps) before it comes round.
  EXPECT_LT(longest_wait_us, kModels * (world.options.max_wait_us + 100 * kStepUs));
  // Aging bounds what bands may cost a request: two lifts, and then those who came before it.
  EXPECT_LT(longest_request_us, 20 * world.options.max_wait_us);
}

}  // namespace
}  // namespace terrace::scheduler
