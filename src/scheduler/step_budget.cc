#include "scheduler/step_budget.h"

#include <algorithm>
#include <numeric>

namespace terrace::scheduler {
namespace {

constexpr double kWeight = 0.25;
// What earlier steps still count for after one more, in the cost of rows by depth.
constexpr double kKept = 0.85;
// One more measure is believed to be this many times what was expected.
constexpr double kBelieved = 4.0;
// One slow step (the machine was busy with something else) counts as this much slower at most.
constexpr double kOutlier = 2.0;
// Fewer rows than this a step would hardly ever end a prompt.
constexpr int32_t kLeastRows = 8;
// Before anything is known, and after which rows may double from step to step.
constexpr int32_t kFirstRows = 16;

void Average(double sample, double* average) {
  if (*average == 0) {
    *average = sample;
    return;
  }
  sample = std::min(sample, *average * kOutlier);
  *average += (sample - *average) * kWeight;
}

}  // namespace

void RowCost::Add(double depth, double us) {
  const double expected = Us(depth);
  if (expected > 0) us = std::min(us, expected * kBelieved);
  for (double* sum : {&weight_, &depth_, &us_, &depth_depth_, &depth_us_}) *sum *= kKept;
  weight_ += 1;
  depth_ += depth;
  us_ += us;
  depth_depth_ += depth * depth;
  depth_us_ += depth * us;
}

double RowCost::Us(double depth) const {
  if (weight_ == 0) return 0;
  const double mean_depth = depth_ / weight_, mean_us = us_ / weight_;
  const double spread = depth_depth_ / weight_ - mean_depth * mean_depth;
  // Depths that hardly differ say nothing of others.
  const double least = 16 + mean_depth / 20;
  if (spread < least * least) return mean_us;
  const double slope = std::max(0.0, (depth_us_ / weight_ - mean_depth * mean_us) / spread);
  return std::max(mean_us + slope * (depth - mean_depth), mean_us * 0.05);
}

int32_t StepBudget::PromptRows(int32_t decode_rows) {
  const int32_t most = std::max(step_rows_ - decode_rows, 0);
  if (decode_rows <= 0 || stretch_ <= 0) return most;
  const Alone& alone = For(decode_rows);
  if (alone.us == 0 || alone.mixed >= kRefresh) return 0;
  const int32_t grown = last_rows_ > 0 ? 2 * last_rows_ : kFirstRows;
  if (prompt_row_us_ == 0) return std::min(most, kFirstRows);
  const double room_us = alone.us * (stretch_ - 1);
  const auto fits = static_cast<int32_t>(std::min(room_us / prompt_row_us_, 1e6));
  return std::min(most, std::max(std::min(fits, grown), kLeastRows));
}

int32_t StepBudget::RowsWithin(double us, double depth, bool alone, int32_t least,
                               int32_t unknown) const {
  const double row_us = cost_.Us(depth);
  if (row_us == 0) return unknown;
  if (alone) us = std::max(us - AloneUs(1), 0.0);
  const auto fits = static_cast<int32_t>(std::min(us / row_us, 1e6));
  return std::min(step_rows_, std::max(fits, least));
}

void StepBudget::OnStep(int32_t decode_rows, int32_t prompt_rows, int64_t took_us, double depth) {
  const auto us = static_cast<double>(std::max<int64_t>(took_us, 1));
  if (prompt_rows > 0 && depth >= 0) {
    // A step without streams, too, reads the weights once.
    const double alone_us = AloneUs(std::max(decode_rows, 1));
    const double least_us = us * (decode_rows > 0 ? 0.01 : 0.2);
    cost_.Add(depth, std::max(us - alone_us, least_us) / prompt_rows);
  }
  if (decode_rows <= 0) {
    // Large pieces are cheaper a row than the small ones that fit beside streams: this only says
    // where to begin.
    if (prompt_rows > 0 && last_rows_ == 0) Average(us / prompt_rows, &prompt_row_us_);
    return;
  }
  Alone& alone = For(decode_rows);
  if (prompt_rows <= 0) {
    Average(us, &alone.us);
    alone.mixed = 0;
    return;
  }
  ++alone.mixed;
  last_rows_ = prompt_rows;
  if (alone.us == 0) return;
  // A step faster than its streams alone tells that those were measured in a bad moment; a little
  // is then charged all the same, so that rows never look free.
  Average(std::max(us - alone.us, us * 0.01) / prompt_rows, &prompt_row_us_);
}

std::vector<int32_t> SharePromptRows(std::span<const int32_t> pending, int32_t rows) {
  std::vector<int32_t> shares(pending.size());
  auto give = [&](size_t i, int32_t* left) {
    const int32_t count = std::min(pending[i] - shares[i], *left);
    shares[i] += count;
    *left -= count;
  };
  std::vector<size_t> order(pending.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return pending[a] < pending[b]; });
  int32_t half = rows / 2;
  int32_t rest = rows - half;
  for (size_t i : order) give(i, &half);
  rest += half;  // what nobody wanted
  for (size_t i = 0; i < pending.size(); ++i) give(i, &rest);
  return shares;
}

}  // namespace terrace::scheduler
