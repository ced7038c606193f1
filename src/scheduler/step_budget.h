// How many prompt rows a step may hold beside the streams that decode in it: as many as keep the
// step within a set factor of the time that the streams alone take, by times measured as steps run.
// With that, the time between two tokens of a stream stays near its usual value while long prompts
// arrive. Knows numbers only; used by one thread.
#ifndef TERRACE_SCHEDULER_STEP_BUDGET_H_
#define TERRACE_SCHEDULER_STEP_BUDGET_H_

#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

namespace terrace::scheduler {

// What one row of a prompt costs by how many tokens come before it: a straight line through the
// last steps, older ones counting less and less.
class RowCost {
 public:
  // A step's prompt rows took `us` each, behind `depth` tokens on average.
  void Add(double depth, double us);
  double Us(double depth) const;  // 0: not known yet

 private:
  // Sums over steps.
  double weight_ = 0, depth_ = 0, us_ = 0, depth_depth_ = 0, depth_us_ = 0;
};

class StepBudget {
 public:
  // `step_rows`: most rows of a step. `stretch`: how much longer than its streams alone a step with
  // prompt rows may take; 0 sets no limit.
  StepBudget(int32_t step_rows, double stretch) : step_rows_(step_rows), stretch_(stretch) {}

  // Prompt rows that may join `decode_rows` rows. 0 asks for a step without prompts, which is then
  // the measure for the next ones; that is asked for once in a while only.
  int32_t PromptRows(int32_t decode_rows);
  // Prompt rows behind `depth` tokens (deep in a long prompt a row costs many times what it does at
  // the start) that take about `us`, in a step of their own or beside streams; `least` at least.
  // `unknown`: before anything was measured.
  int32_t RowsWithin(double us, double depth, bool alone, int32_t least, int32_t unknown) const;
  // What a step of so many decode rows alone takes; 0: not known yet.
  double AloneUs(int32_t decode_rows) const {
    return decode_rows <= 0 ? 0 : alone_[IndexOf(decode_rows)].us;
  }
  // What one prompt row costs; 0: not known yet.
  double RowUs(double depth) const { return cost_.Us(depth); }
  // Tells what a step took; `depth`: tokens before its prompt rows, on
  // average; -1: says nothing of what rows cost.
  void OnStep(int32_t decode_rows, int32_t prompt_rows, int64_t took_us, double depth = 0);

 private:
  // Steps of decode rows alone, for each power of two of rows.
  struct Alone {
    double us = 0;      // moving average; 0: not measured yet
    int32_t mixed = 0;  // mixed steps since the last measure
  };
  static constexpr int32_t kRefresh = 64;
  static size_t IndexOf(int32_t decode_rows) {
    return static_cast<size_t>(std::bit_width(static_cast<uint32_t>(decode_rows)) - 1);
  }
  Alone& For(int32_t decode_rows) { return alone_[IndexOf(decode_rows)]; }

  int32_t step_rows_;
  double stretch_;
  std::array<Alone, 32> alone_;
  double prompt_row_us_ = 0;  // moving average of what one more prompt row costs
  RowCost cost_;              // the same in whatever step
  int32_t last_rows_ = 0;     // prompt rows of the last mixed step
};

// How many of `rows` rows each prompt gets, of which `pending` are to be computed, oldest first:
// half goes to the prompts with the least to do, so that short ones start soon behind a long one,
// and the rest to the oldest, so that nobody starves.
std::vector<int32_t> SharePromptRows(std::span<const int32_t> pending, int32_t rows);

}  // namespace terrace::scheduler

#endif  // TERRACE_SCHEDULER_STEP_BUDGET_H_
