#include "scheduler/plan.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/random.h"

namespace terrace::scheduler {
namespace {

constexpr int64_t kMs = 1000;

ModelView View(int32_t waiting, int32_t running, int64_t since_us) {
  ModelView view;
  view.waiting = waiting;
  view.running = running;
  view.waiting_since_us = since_us;
  view.weight_bytes = 100;
  view.kv_bytes = running > 0 ? 10 : 0;
  return view;
}

PlanInput Input(const std::vector<ModelView>& models, uint64_t budget, int32_t current,
                int64_t now_us) {
  PlanInput input;
  input.models = models;
  input.budget_bytes = budget;
  input.current = current;
  input.now_us = now_us;
  input.last_work_us = now_us;
  return input;
}

TEST(Plan, NothingToDoWithoutWork) {
  std::vector<ModelView> models = {View(0, 0, 0), View(0, 0, 0)};
  PlanDecision decision = Plan({}, Input(models, 1000, 0, 5));
  EXPECT_EQ(decision.model, -1);
  EXPECT_LT(decision.wait_us, 0);
}

TEST(Plan, TheLongestWaitingModelStarts) {
  std::vector<ModelView> models = {View(1, 0, 20), View(1, 0, 10), View(1, 0, 30)};
  EXPECT_EQ(Plan({}, Input(models, 1000, -1, 50)).model, 1);
}

TEST(Plan, ModelsThatFitTogetherTakeTurnsByStep) {
  std::vector<ModelView> models = {View(0, 2, 40), View(0, 1, 30)};
  EXPECT_EQ(Plan({}, Input(models, 1000, 0, 50)).model, 1);
  models[1].waiting_since_us = 50;
  EXPECT_EQ(Plan({}, Input(models, 1000, 1, 51)).model, 0);
}

TEST(Plan, TheCurrentModelKeepsItsTurnWhileNobodyIsOverdue) {
  PlanOptions options;
  std::vector<ModelView> models = {View(3, 1, 0), View(1, 0, 1000 * kMs)};
  PlanDecision decision =
      Plan(options, Input(models, 150, 0, 1000 * kMs + options.max_wait_us - 1));
  EXPECT_EQ(decision.model, 0);
  EXPECT_TRUE(decision.admit);
}

TEST(Plan, AnOverdueModelGetsTheTurnAndRunningSequencesPauseIfTheirKvFits) {
  PlanOptions options;
  std::vector<ModelView> models = {View(3, 1, 0), View(1, 0, 0)};
  EXPECT_EQ(Plan(options, Input(models, 150, 0, options.max_wait_us)).model, 1);
}

TEST(Plan, RunningSequencesEndFirstIfTheirKvDoesNotFitBesideTheOther) {
  PlanOptions options;
  std::vector<ModelView> models = {View(3, 1, 0), View(1, 0, 0)};
  PlanDecision decision = Plan(options, Input(models, 105, 0, options.max_wait_us));
  EXPECT_EQ(decision.model, 0);
  EXPECT_FALSE(decision.admit);
  models[0].running = 0;
  models[0].kv_bytes = 0;
  EXPECT_EQ(Plan(options, Input(models, 105, 0, options.max_wait_us)).model, 1);
}

TEST(Plan, RunningSequencesGiveWayWhenTheirEndIsTooFar) {
  PlanOptions options;
  std::vector<ModelView> models = {View(3, 1, 0), View(1, 0, 0)};
  EXPECT_EQ(Plan(options, Input(models, 105, 0, 2 * options.max_wait_us - 1)).model, 0);
  EXPECT_EQ(Plan(options, Input(models, 105, 0, 2 * options.max_wait_us)).model, 1);
}

TEST(Plan, AModelThatJustRanOutOfWorkLingers) {
  PlanOptions options;
  std::vector<ModelView> models = {View(0, 0, 0), View(1, 0, 100 * kMs)};
  PlanInput input = Input(models, 150, 0, 101 * kMs);
  PlanDecision decision = Plan(options, input);
  EXPECT_EQ(decision.model, -1);
  EXPECT_GT(decision.wait_us, 0);
  EXPECT_LE(decision.wait_us, options.linger_us);
  input.now_us += options.linger_us;
  EXPECT_EQ(Plan(options, input).model, 1);
}

// Whatever arrives, a model with work is served within max_wait plus one turn's drain, and a
// decision never names a model without work.
TEST(Plan, NobodyStarvesUnderRandomArrivals) {
  const uint64_t seed = 20261129;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Random random(seed);
  PlanOptions options;
  constexpr int kModels = 5;
  std::vector<ModelView> models(kModels);
  for (ModelView& model : models) model.weight_bytes = 100;
  int32_t current = -1;
  int64_t now_us = 0, last_work_us = 0, longest_wait_us = 0;
  constexpr int64_t kStepUs = 10 * kMs;
  for (int step = 0; step < 20000; ++step) {
    for (ModelView& model : models) {
      if (random.Below(20) != 0) continue;
      if (model.waiting + model.running == 0) model.waiting_since_us = now_us;
      ++model.waiting;
    }
    PlanInput input = Input(models, 130, current, now_us);
    input.last_work_us = last_work_us;
    PlanDecision decision = Plan(options, input);
    now_us += kStepUs;
    if (decision.model < 0) continue;
    ModelView& model = models[static_cast<size_t>(decision.model)];
    ASSERT_GT(model.waiting + model.running, 0);
    longest_wait_us = std::max(longest_wait_us, now_us - model.waiting_since_us);
    current = decision.model;
    if (decision.admit && model.waiting > 0) {
      --model.waiting;
      ++model.running;
    }
    if (model.running > 0 && random.Below(3) == 0) --model.running;
    model.kv_bytes = static_cast<uint64_t>(model.running) * 10;
    model.waiting_since_us = now_us;
    last_work_us = now_us;
  }
  // Each of the four others may take a turn of max_wait and drain (a third of its sequences ends a
  // step, at most a few dozen steps) before it comes round.
  EXPECT_LT(longest_wait_us, kModels * (options.max_wait_us + 100 * kStepUs));
}

}  // namespace
}  // namespace terrace::scheduler
