// What a load measured: for each class and model counts and distributions, and how they went over
// time. Times in microseconds from the load's start.
#ifndef TERRACE_CLI_LOAD_FIGURES_H_
#define TERRACE_CLI_LOAD_FIGURES_H_

#include <boost/json.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace terrace::cli {

// A distribution of times in bins that are 2% apart, from 1 us to beyond an hour: a percentile is
// within 1% of what the sorted values would say, whatever their number.
class TimeDistribution {
 public:
  void Add(int64_t us);
  uint64_t count() const { return count_; }
  int64_t max_us() const { return max_us_; }
  // The value that `share` of all are not above; 0 of none.
  double Percentile(double share) const;
  // Points (us, share of all that are not above it) of at most `most` bins that hold something.
  std::vector<std::pair<double, double>> Curve(size_t most) const;
  void Merge(const TimeDistribution& other);

 private:
  std::vector<uint32_t> bins_;
  uint64_t count_ = 0;
  int64_t max_us_ = 0;
};

// One request, once it is over.
struct LoadResult {
  size_t load_class = 0;
  std::string model;
  int64_t due_us = 0;     // when it was to be asked; times count from here
  int64_t first_us = -1;  // when its first text came; -1: none did
  int64_t end_us = 0;
  int64_t prompt_tokens = 0, output_tokens = 0;
  int status = 0;                // of HTTP; 0: no answer
  std::string error;             // empty: it was answered to its end
  std::vector<int64_t> gaps_us;  // between pieces of its text
};

struct LoadRow {
  uint64_t asked = 0, answered = 0, refused = 0, failed = 0, in_goal = 0;
  int64_t prompt_tokens = 0, output_tokens = 0;
  TimeDistribution first, gap, whole;
  void Merge(const LoadRow& other);
};

class LoadFigures {
 public:
  // `goals_us` by class; 0: none.
  LoadFigures(std::vector<std::string> classes, std::vector<int64_t> goals_us, int64_t duration_us);

  // Tokens are counted over time by CountTokens, when they come.
  void Add(const LoadResult& result);
  void CountTokens(const std::string& model, int64_t at_us, int64_t tokens);
  void CountRunning(int64_t at_us, int64_t running);

  uint64_t answered() const { return All().answered; }
  uint64_t failed() const { return All().failed; }
  LoadRow All() const;
  const std::map<std::pair<size_t, std::string>, LoadRow>& rows() const { return rows_; }
  // For the report and for --json. `took_us`: how long the load was.
  boost::json::object Json(int64_t took_us) const;
  // The table of the terminal.
  std::string Text(int64_t took_us) const;
  // Up to ten kinds of errors, with how often each came.
  const std::map<std::string, uint64_t>& errors() const { return errors_; }

 private:
  struct Slice {
    std::map<std::string, int64_t> tokens;          // by model
    std::map<std::string, TimeDistribution> first;  // by model, of requests that began here
    uint64_t answered = 0, refused = 0, failed = 0;
    int64_t running = 0;  // most
  };
  Slice& At(int64_t at_us);
  boost::json::object OverTime(int64_t took_us) const;

  const std::vector<std::string> classes_;
  const std::vector<int64_t> goals_us_;
  const int64_t slice_us_;
  std::vector<Slice> slices_;
  std::map<std::pair<size_t, std::string>, LoadRow> rows_;
  std::map<std::string, uint64_t> errors_;
};

}  // namespace terrace::cli

#endif  // TERRACE_CLI_LOAD_FIGURES_H_
