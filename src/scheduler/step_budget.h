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

class StepBudget {
 public:
  // `step_rows`: most rows of a step. `stretch`: how much longer than its streams alone a step with
  // prompt rows may take; 0 sets no limit.
  StepBudget(int32_t step_rows, double stretch) : step_rows_(step_rows), stretch_(stretch) {}

  // Prompt rows that may join `decode_rows` rows. 0 asks for a step without prompts, which is then
  // the measure for the next ones; that is asked for once in a while only.
  int32_t PromptRows(int32_t decode_rows);
  // Prompt rows that take about `us` by what they cost last (deep in a long prompt a row costs many
  // times what it does at the start); a few at least. `unknown`: before anything was measured.
  int32_t RowsWithin(double us, int32_t unknown) const;
  // What a step of so many decode rows alone takes; 0: not known yet.
  double AloneUs(int32_t decode_rows) const {
    return decode_rows <= 0 ? 0 : alone_[IndexOf(decode_rows)].us;
  }
  // What one prompt row cost last; 0: not known yet.
  double row_us() const { return row_us_; }
  // Tells what a step took.
  void OnStep(int32_t decode_rows, int32_t prompt_rows, int64_t took_us);

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
  double row_us_ = 0;         // the same in whatever step, by the last few
  int32_t last_rows_ = 0;     // prompt rows of the last mixed step
};

// How many of `rows` rows each prompt gets, of which `pending` are to be computed, oldest first:
// half goes to the prompts with the least to do, so that short ones start soon behind a long one,
// and the rest to the oldest, so that nobody starves.
std::vector<int32_t> SharePromptRows(std::span<const int32_t> pending, int32_t rows);

}  // namespace terrace::scheduler

#endif  // TERRACE_SCHEDULER_STEP_BUDGET_H_
