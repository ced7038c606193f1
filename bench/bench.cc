#include "bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>

namespace terrace::bench {
namespace {

std::string Number(double value) {
  if (!std::isfinite(value)) return "?";
  double size = std::abs(value);
  int digits = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 1 ? 2 : 3;
  return fmt::format("{:.{}f}", value, digits);
}

boost::json::value Json(std::optional<double> value) {
  if (!value || !std::isfinite(*value)) return nullptr;
  return *value;
}

}  // namespace

std::optional<double> Row::ratio() const {
  if (!reference || *reference == 0) return std::nullopt;
  return measured / *reference;
}

std::optional<bool> Row::holds() const {
  if (goal_kind == Goal::kNone) return std::nullopt;
  double value = reference ? ratio().value_or(NAN) : measured;
  return goal_kind == Goal::kAtLeast ? value >= goal : value <= goal;
}

std::string Row::goal_text() const {
  if (goal_kind == Goal::kNone) return "";
  return fmt::format("{} {}{}", goal_kind == Goal::kAtLeast ? ">=" : "<=", goal,
                     reference ? "" : " " + unit);
}

std::string RowsJson(std::span<const Row> rows) {
  boost::json::array array;
  for (const Row& row : rows) {
    boost::json::object object;
    object["law"] = row.law;
    object["measured"] = Json(row.measured);
    object["unit"] = row.unit;
    object["reference"] = Json(row.reference);
    object["ratio"] = Json(row.ratio());
    object["goal"] =
        row.goal_kind == Goal::kNone ? boost::json::value() : boost::json::value(row.goal);
    object["holds"] = row.holds() ? boost::json::value(*row.holds()) : boost::json::value(nullptr);
    array.push_back(std::move(object));
  }
  return boost::json::serialize(array);
}

std::string RowsTable(std::span<const Row> rows) {
  std::vector<std::vector<std::string>> cells = {
      {"law", "measured", "unit", "reference", "ratio", "goal", "holds"}};
  for (const Row& row : rows) {
    std::string reference = row.reference ? Number(*row.reference) : "";
    if (!row.reference_name.empty()) reference += fmt::format(" ({})", row.reference_name);
    cells.push_back({row.law, Number(row.measured), row.unit, reference,
                     row.ratio() ? fmt::format("{:.3f}", *row.ratio()) : "", row.goal_text(),
                     !row.holds()   ? ""
                     : *row.holds() ? "yes"
                                    : "NO"});
  }
  std::vector<size_t> widths(cells[0].size());
  for (const auto& line : cells) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string out;
  for (const auto& line : cells) {
    std::string text;
    for (size_t i = 0; i < line.size(); ++i) {
      bool right = i == 1 || i == 4;
      text += right ? fmt::format("{:>{}}  ", line[i], widths[i])
                    : fmt::format("{:<{}}  ", line[i], widths[i]);
    }
    out += text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

double Median(std::vector<double> values) {
  if (values.empty()) return NAN;
  std::sort(values.begin(), values.end());
  size_t middle = values.size() / 2;
  return values.size() % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace terrace::bench
