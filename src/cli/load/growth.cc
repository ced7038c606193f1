#include "cli/load/growth.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/units.h"

namespace terrace::cli {
namespace {

namespace json = boost::json;

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

// What the least-squares line through the points rises over their whole span.
double Rise(const std::vector<double>& times, const std::vector<double>& values) {
  const double mean_time = Mean(times), mean_value = Mean(values);
  double both = 0, spread = 0;
  for (size_t i = 0; i < times.size(); ++i) {
    both += (times[i] - mean_time) * (values[i] - mean_value);
    spread += (times[i] - mean_time) * (times[i] - mean_time);
  }
  return spread > 0 ? both / spread * (times.back() - times.front()) : 0;
}

}  // namespace

std::string Growth::Row::Shown(double value) const {
  if (!is_bytes) return fmt::format("{:.1f}", value);
  return fmt::format("{}{}", value < 0 ? "-" : "",
                     FormatBytes(static_cast<uint64_t>(std::abs(value))));
}

void Growth::Add(int64_t at_us, std::vector<double> values) {
  times_.push_back(static_cast<double>(at_us) * 1e-6);
  values_.push_back(std::move(values));
}

std::vector<Growth::Row> Growth::Rows() const {
  std::vector<Row> rows;
  const size_t first = times_.size() / 4;
  const std::vector<double> times(times_.begin() + static_cast<std::ptrdiff_t>(first),
                                  times_.end());
  for (size_t i = 0; i < figures_.size(); ++i) {
    std::vector<double> values;
    for (size_t look = first; look < values_.size(); ++look) values.push_back(values_[look][i]);
    const Figure& figure = figures_[i];
    Row row{.name = figure.name, .mean = Mean(values), .is_bytes = figure.is_bytes};
    row.bound = std::max(figure.share * std::abs(row.mean), figure.least);
    if (times.size() >= 2) row.rise = Rise(times, values);
    row.holds = row.rise <= row.bound;
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string Growth::Text() const {
  std::string out = fmt::format("{:<26} {:>14} {:>14} {:>14}  ({} looks)\n", "growth", "mean",
                                "rise", "bound", looks());
  for (const Row& row : Rows()) {
    out += fmt::format("{:<26} {:>14} {:>14} {:>14}  {}\n", row.name, row.Shown(row.mean),
                       row.Shown(row.rise), row.Shown(row.bound), row.holds ? "holds" : "GROWS");
  }
  return out;
}

json::array Growth::Json() const {
  json::array out;
  for (const Row& row : Rows()) {
    out.push_back(json::object{{"name", row.name},
                               {"mean", row.mean},
                               {"rise", row.rise},
                               {"bound", row.bound},
                               {"holds", row.holds}});
  }
  return out;
}

}  // namespace terrace::cli
