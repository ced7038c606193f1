// Whether figures of a server grow over time: a least-squares line through the looks at each, its
// rise from start to end, and the bound that it must stay below.
#ifndef TERRACE_CLI_LOAD_GROWTH_H_
#define TERRACE_CLI_LOAD_GROWTH_H_

#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace terrace::cli {

class Growth {
 public:
  struct Figure {
    std::string name;
    double share = 0;  // of the mean that the line may rise,
    double least = 0;  // or this, whichever is more
    bool is_bytes = false;
  };
  struct Row {
    std::string name;
    double mean = 0, rise = 0, bound = 0;
    bool is_bytes = false;
    bool holds = true;
    std::string Shown(double value) const;
  };

  // Fewer looks than this say nothing.
  static constexpr size_t kLeast = 12;

  explicit Growth(std::vector<Figure> figures) : figures_(std::move(figures)) {}

  // REQUIRES: as many values as figures.
  void Add(int64_t at_us, std::vector<double> values);
  size_t looks() const { return times_.size(); }
  // The first quarter is left out: caches fill, memory pools find their size.
  std::vector<Row> Rows() const;
  std::string Text() const;
  boost::json::array Json() const;

 private:
  const std::vector<Figure> figures_;
  std::vector<double> times_;  // seconds
  std::vector<std::vector<double>> values_;
};

}  // namespace terrace::cli

#endif  // TERRACE_CLI_LOAD_GROWTH_H_
