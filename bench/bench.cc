#include "bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cctype>
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

std::string Line(std::string_view law, std::string_view measured, std::string_view unit,
                 std::string_view reference, std::string_view ratio, std::string_view goal,
                 std::string_view holds) {
  std::string line = fmt::format("{:<50} {:>9} {:<9} {:<26} {:>7} {:<9} {}", law, measured, unit,
                                 reference, ratio, goal, holds);
  line.resize(line.find_last_not_of(' ') + 1);
  return line;
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

bool Context::WantsFormat(std::string_view format) const {
  const auto same = [&](const std::string& wanted) {
    return std::equal(wanted.begin(), wanted.end(), format.begin(), format.end(),
                      [](char a, char b) { return std::toupper(a) == std::toupper(b); });
  };
  return formats.empty() || std::any_of(formats.begin(), formats.end(), same);
}

std::string RowJson(const Row& row) {
  boost::json::object object;
  object["law"] = row.law;
  object["measured"] = Json(row.measured);
  object["unit"] = row.unit;
  object["reference"] = Json(row.reference);
  object["ratio"] = Json(row.ratio());
  object["goal"] =
      row.goal_kind == Goal::kNone ? boost::json::value() : boost::json::value(row.goal);
  object["holds"] = row.holds() ? boost::json::value(*row.holds()) : boost::json::value(nullptr);
  return boost::json::serialize(object);
}

std::string RowLine(const Row& row) {
  std::string reference = row.reference ? Number(*row.reference) : "";
  if (!row.reference_name.empty()) reference += fmt::format(" ({})", row.reference_name);
  return Line(row.law, Number(row.measured), row.unit, reference,
              row.ratio() ? fmt::format("{:.3f}", *row.ratio()) : "", row.goal_text(),
              !row.holds()   ? ""
              : *row.holds() ? "yes"
                             : "NO");
}

std::string HeaderLine() {
  return Line("law", "measured", "unit", "reference", "ratio", "goal", "holds");
}

double Median(std::vector<double> values) {
  if (values.empty()) return NAN;
  std::sort(values.begin(), values.end());
  size_t middle = values.size() / 2;
  return values.size() % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace terrace::bench
