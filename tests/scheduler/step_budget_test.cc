#include "scheduler/step_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/random.h"

namespace terrace::scheduler {
namespace {

// A machine on which a step takes `fixed` plus a time for each row.
struct Machine {
  double fixed_us = 30'000;
  double decode_row_us = 500;
  double prompt_row_us = 2'000;
  double noise = 0;
  Random random{11};

  int64_t Step(int32_t decode, int32_t prompt) {
    const double us = fixed_us + decode * decode_row_us + prompt * prompt_row_us;
    return static_cast<int64_t>(us * (1 + noise * random.Uniform()));
  }
};

TEST(StepBudget, APromptAloneFillsTheStep) {
  StepBudget budget(512, 1.7);
  EXPECT_EQ(budget.PromptRows(0), 512);
  StepBudget unlimited(512, 0);
  EXPECT_EQ(unlimited.PromptRows(8), 504);
}

TEST(StepBudget, TheStreamsAreMeasuredAloneFirst) {
  StepBudget budget(512, 1.7);
  EXPECT_EQ(budget.PromptRows(8), 0);
  budget.OnStep(8, 0, 30'000);
  EXPECT_GT(budget.PromptRows(8), 0);
}

// The law that this is for: 8 streams, a prompt of 4096 tokens arrives; the 99th percentile of the
// streams' gaps is within twice the median, and the prompt does get done.
TEST(StepBudget, GapsStayWithinTwiceTheMedianWhileALongPromptArrives) {
  for (const double prompt_row_us : {100.0, 2'000.0, 4'000.0}) {
    for (const double noise : {0.0, 0.15}) {
      Machine machine;
      machine.prompt_row_us = prompt_row_us;
      machine.noise = noise;
      StepBudget budget(512, 1.7);
      std::vector<int64_t> gaps;
      auto step = [&](int32_t prompt) {
        const int64_t us = machine.Step(8, prompt);
        budget.OnStep(8, prompt, us);
        gaps.push_back(us);
      };
      for (int i = 0; i < 200; ++i) step(0);
      int32_t left = 4096;
      int steps = 0;
      while (left > 0 && ++steps < 5000) {
        const int32_t rows = std::min(left, budget.PromptRows(8));
        step(rows);
        left -= rows;
      }
      for (int i = 0; i < 200; ++i) step(0);
      EXPECT_EQ(left, 0);
      std::sort(gaps.begin(), gaps.end());
      const auto p50 = static_cast<double>(gaps[gaps.size() / 2]);
      const auto p99 = static_cast<double>(gaps[gaps.size() * 99 / 100]);
      EXPECT_LE(p99, 2 * p50) << prompt_row_us << " us a row, noise " << noise;
    }
  }
}

// Where prompt rows cost almost nothing beside streams, long prompts are not held up.
TEST(StepBudget, CheapRowsFillTheStep) {
  Machine machine;
  machine.prompt_row_us = 5;
  StepBudget budget(512, 1.7);
  int32_t rows = 0;
  for (int i = 0; i < 40; ++i) {
    rows = budget.PromptRows(8);
    budget.OnStep(8, rows, machine.Step(8, rows));
  }
  EXPECT_EQ(rows, 504);
}

TEST(StepBudget, OneSlowStepDoesNotStallPromptsForLong) {
  Machine machine;
  StepBudget budget(512, 1.7);
  auto run = [&](int times) {
    int32_t rows = 0;
    for (int i = 0; i < times; ++i) {
      const int32_t next = budget.PromptRows(8);
      budget.OnStep(8, next, machine.Step(8, next));
      if (next > 0) rows = next;
    }
    return rows;
  };
  const int32_t usual = run(30);
  budget.OnStep(8, usual, 10'000'000);
  EXPECT_GE(run(20), usual / 2);
}

TEST(SharePromptRows, AllIsGivenWhileSomebodyWantsIt) {
  EXPECT_EQ(SharePromptRows(std::vector<int32_t>{}, 8), std::vector<int32_t>());
  EXPECT_EQ(SharePromptRows(std::vector<int32_t>{100}, 8), std::vector<int32_t>{8});
  EXPECT_EQ(SharePromptRows(std::vector<int32_t>{3, 2}, 8), (std::vector<int32_t>{3, 2}));
  EXPECT_EQ(SharePromptRows(std::vector<int32_t>{3, 2}, 0), (std::vector<int32_t>{0, 0}));
  EXPECT_EQ(SharePromptRows(std::vector<int32_t>{100}, 1), std::vector<int32_t>{1});
}

TEST(SharePromptRows, ShortOnesPassALongOneThatGoesOnToo) {
  EXPECT_EQ(SharePromptRows(std::vector<int32_t>{4000, 24, 6}, 20),
            (std::vector<int32_t>{10, 4, 6}));
  // Sixteen of 24 tokens behind a long one: all are done while it has half of what they took.
  std::vector<int32_t> pending(17, 24);
  pending[0] = 4096;
  int steps = 0;
  while (*std::max_element(pending.begin() + 1, pending.end()) > 0 && ++steps < 1000) {
    const std::vector<int32_t> rows = SharePromptRows(pending, 8);
    int32_t sum = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_LE(rows[i], pending[i]);
      pending[i] -= rows[i];
      sum += rows[i];
    }
    EXPECT_EQ(sum, 8);
  }
  EXPECT_EQ(steps, 16 * 24 / 4);
  EXPECT_EQ(pending[0], 4096 - 16 * 24);
}

TEST(StepBudget, RowsWithinATimeFollowWhatTheyCostAtTheirDepth) {
  StepBudget budget(512, 1.7);
  EXPECT_EQ(budget.RowsWithin(10'000, 0, false, 8, 16), 16) << "nothing is known yet";
  budget.OnStep(0, 512, 51'200);  // 100 us a row
  EXPECT_EQ(budget.RowsWithin(10'000, 0, false, 8, 16), 100);
  EXPECT_EQ(budget.RowsWithin(1e9, 0, false, 8, 16), 512);
  // Short prompts come in turn with one that is long: a row costs ten times as much deep in it.
  auto cost_us = [](double depth) { return 100 + 900 * depth / 20'000; };
  for (int i = 0; i < 60; ++i) {
    const double depth = i % 4 == 0 ? 0 : 300.0 * i;
    budget.OnStep(0, 20, static_cast<int64_t>(20 * cost_us(depth)), depth);
  }
  EXPECT_NEAR(budget.RowsWithin(100'000, 20'000, false, 8, 16), 100, 5);
  EXPECT_NEAR(budget.RowsWithin(20'000, 0, false, 8, 16), 200, 10);
  EXPECT_EQ(budget.RowsWithin(1, 20'000, false, 8, 16), 8) << "a few are always read";
  EXPECT_EQ(budget.RowsWithin(1, 20'000, false, 1, 16), 1);
}

TEST(StepBudget, AStepWithoutStreamsPaysForTheWeightsToo) {
  StepBudget budget(512, 1.7);
  budget.OnStep(1, 0, 2'000);
  budget.OnStep(0, 80, 10'000);  // 100 us a row
  EXPECT_EQ(budget.RowsWithin(10'000, 0, true, 1, 16), 80);
  EXPECT_EQ(budget.RowsWithin(10'000, 0, false, 1, 16), 100);
  EXPECT_EQ(budget.RowsWithin(1'000, 0, true, 1, 16), 1);
}

}  // namespace
}  // namespace terrace::scheduler
