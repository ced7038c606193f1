#include "cli/load/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/text.h"

namespace terrace::cli {
namespace {

namespace json = boost::json;

const double kStep = std::log(1.02);
constexpr double kShares[] = {0.5, 0.9, 0.95, 0.99};
constexpr const char* kShareNames[] = {"p50", "p90", "p95", "p99"};

size_t BinOf(int64_t us) {
  return us <= 1 ? 0 : static_cast<size_t>(std::log(static_cast<double>(us)) / kStep);
}
// The middle of a bin.
double ValueOf(size_t bin) { return std::exp((static_cast<double>(bin) + 0.5) * kStep); }

json::object DistributionJson(const TimeDistribution& times) {
  json::object out = {{"count", times.count()}};
  if (times.count() == 0) return out;
  for (size_t i = 0; i < std::size(kShares); ++i) {
    out[kShareNames[i]] = times.Percentile(kShares[i]) * 1e-6;
  }
  out["max"] = static_cast<double>(times.max_us()) * 1e-6;
  return out;
}

json::array CurveJson(const TimeDistribution& times) {
  json::array out;
  for (const auto& [us, share] : times.Curve(120)) {
    out.push_back(json::array{us * 1e-6, share});
  }
  return out;
}

json::object RowJson(const LoadRow& row, double seconds) {
  const double tokens = static_cast<double>(row.output_tokens);
  return {{"asked", row.asked},
          {"answered", row.answered},
          {"refused", row.refused},
          {"failed", row.failed},
          {"in_goal", row.in_goal},
          {"prompt_tokens", row.prompt_tokens},
          {"output_tokens", row.output_tokens},
          {"requests_per_s", static_cast<double>(row.answered) / seconds},
          {"output_tokens_per_s", tokens / seconds},
          {"prompt_tokens_per_s", static_cast<double>(row.prompt_tokens) / seconds},
          {"time_to_first_token_s", DistributionJson(row.first)},
          {"inter_token_s", DistributionJson(row.gap)},
          {"request_s", DistributionJson(row.whole)}};
}

// "12 ms", "1.3 s".
std::string TimeText(const TimeDistribution& times, double share) {
  if (times.count() == 0) return "-";
  const double ms = times.Percentile(share) * 1e-3;
  return ms < 10     ? fmt::format("{:.1f} ms", ms)
         : ms < 1000 ? fmt::format("{:.0f} ms", ms)
                     : fmt::format("{:.2f} s", ms * 1e-3);
}

}  // namespace

void TimeDistribution::Add(int64_t us) {
  const size_t bin = BinOf(us);
  if (bin >= bins_.size()) bins_.resize(bin + 1);
  ++bins_[bin];
  ++count_;
  max_us_ = std::max(max_us_, us);
}

double TimeDistribution::Percentile(double share) const {
  if (count_ == 0) return 0;
  const auto rank = static_cast<uint64_t>(
      std::clamp(std::ceil(share * static_cast<double>(count_)), 1.0, static_cast<double>(count_)));
  uint64_t seen = 0;
  for (size_t bin = 0; bin < bins_.size(); ++bin) {
    seen += bins_[bin];
    if (seen >= rank) return std::min(ValueOf(bin), static_cast<double>(max_us_));
  }
  return static_cast<double>(max_us_);
}

std::vector<std::pair<double, double>> TimeDistribution::Curve(size_t most) const {
  std::vector<std::pair<double, double>> all;
  uint64_t seen = 0;
  for (size_t bin = 0; bin < bins_.size(); ++bin) {
    if (bins_[bin] == 0) continue;
    seen += bins_[bin];
    all.emplace_back(ValueOf(bin), static_cast<double>(seen) / static_cast<double>(count_));
  }
  if (all.size() <= most) return all;
  std::vector<std::pair<double, double>> some;
  for (size_t i = 0; i < most; ++i) some.push_back(all[i * (all.size() - 1) / (most - 1)]);
  return some;
}

void TimeDistribution::Merge(const TimeDistribution& other) {
  if (other.bins_.size() > bins_.size()) bins_.resize(other.bins_.size());
  for (size_t i = 0; i < other.bins_.size(); ++i) bins_[i] += other.bins_[i];
  count_ += other.count_;
  max_us_ = std::max(max_us_, other.max_us_);
}

void LoadRow::Merge(const LoadRow& other) {
  asked += other.asked;
  answered += other.answered;
  refused += other.refused;
  failed += other.failed;
  in_goal += other.in_goal;
  prompt_tokens += other.prompt_tokens;
  output_tokens += other.output_tokens;
  first.Merge(other.first);
  gap.Merge(other.gap);
  whole.Merge(other.whole);
}

LoadFigures::LoadFigures(std::vector<std::string> classes, std::vector<int64_t> goals_us,
                         int64_t duration_us)
    : classes_(std::move(classes)),
      goals_us_(std::move(goals_us)),
      // So that a chart has some 200 points at most, and a second is the least.
      slice_us_(std::max<int64_t>(1'000'000, duration_us / 200)) {}

LoadFigures::Slice& LoadFigures::At(int64_t at_us) {
  const auto slice = static_cast<size_t>(std::max<int64_t>(0, at_us) / slice_us_);
  if (slice >= slices_.size()) slices_.resize(slice + 1);
  return slices_[slice];
}

void LoadFigures::Add(const LoadResult& result) {
  LoadRow& row = rows_[{result.load_class, result.model}];
  Slice& slice = At(result.end_us);
  ++row.asked;
  if (result.status == 429 || result.status == 503) {
    ++row.refused;
    ++slice.refused;
    return;
  }
  if (!result.error.empty()) {
    ++row.failed;
    ++slice.failed;
    if (errors_.size() < 10 || errors_.contains(result.error)) ++errors_[result.error];
    return;
  }
  ++row.answered;
  ++slice.answered;
  row.prompt_tokens += result.prompt_tokens;
  row.output_tokens += result.output_tokens;
  row.whole.Add(result.end_us - result.due_us);
  const int64_t goal = goals_us_[result.load_class];
  if (result.first_us >= 0) {
    const int64_t first = result.first_us - result.due_us;
    row.first.Add(first);
    At(result.due_us).first[result.model].Add(first);
    row.in_goal += goal > 0 && first <= goal;
  }
  for (const int64_t gap : result.gaps_us) row.gap.Add(gap);
}

void LoadFigures::CountTokens(const std::string& model, int64_t at_us, int64_t tokens) {
  At(at_us).tokens[model] += tokens;
}

void LoadFigures::CountRunning(int64_t at_us, int64_t running) {
  Slice& slice = At(at_us);
  slice.running = std::max(slice.running, running);
}

LoadRow LoadFigures::All() const {
  LoadRow all;
  for (const auto& [key, row] : rows_) all.Merge(row);
  return all;
}

json::object LoadFigures::OverTime(int64_t took_us) const {
  std::set<std::string> models;
  for (const auto& [key, row] : rows_) models.insert(key.second);
  const double seconds = static_cast<double>(slice_us_) * 1e-6;
  json::array time, answered, refused, failed, running;
  json::object tokens, first;
  for (const std::string& model : models) {
    tokens[model] = json::array();
    first[model] = json::array();
  }
  // The last one is not over: rates of it would be too low.
  const auto whole = static_cast<size_t>(took_us / slice_us_);
  const size_t count = slices_.size() > 2 ? std::min(slices_.size(), whole) : slices_.size();
  for (size_t i = 0; i < count; ++i) {
    const Slice& slice = slices_[i];
    time.push_back(static_cast<double>(i) * seconds);
    answered.push_back(static_cast<double>(slice.answered) / seconds);
    refused.push_back(static_cast<double>(slice.refused) / seconds);
    failed.push_back(static_cast<double>(slice.failed) / seconds);
    running.push_back(slice.running);
    for (const std::string& model : models) {
      const auto made = slice.tokens.find(model);
      tokens[model].as_array().push_back(
          made == slice.tokens.end() ? 0.0 : static_cast<double>(made->second) / seconds);
      const auto times = slice.first.find(model);
      first[model].as_array().push_back(times == slice.first.end()
                                            ? json::value()
                                            : json::value(times->second.Percentile(0.95) * 1e-6));
    }
  }
  return {{"slice_s", seconds},
          {"time", std::move(time)},
          {"answered", std::move(answered)},
          {"refused", std::move(refused)},
          {"failed", std::move(failed)},
          {"running", std::move(running)},
          {"tokens", std::move(tokens)},
          {"first_p95", std::move(first)}};
}

json::object LoadFigures::Json(int64_t took_us) const {
  const double seconds = std::max(1e-6, static_cast<double>(took_us) * 1e-6);
  json::array rows;
  std::map<std::string, LoadRow> by_model;
  for (const auto& [key, row] : rows_) {
    json::object each = RowJson(row, seconds);
    each["class"] = ToValidUtf8(classes_[key.first]);
    each["model"] = ToValidUtf8(key.second);
    if (goals_us_[key.first] > 0) each["goal_s"] = static_cast<double>(goals_us_[key.first]) * 1e-6;
    rows.push_back(std::move(each));
    by_model[key.second].Merge(row);
  }
  json::object curves;
  for (const auto& [model, row] : by_model) {
    curves[model] = json::object{{"first", CurveJson(row.first)}, {"gap", CurveJson(row.gap)}};
  }
  json::object errors;
  for (const auto& [error, count] : errors_) errors[ToValidUtf8(error)] = count;
  return {{"seconds", seconds},
          {"all", RowJson(All(), seconds)},
          {"rows", std::move(rows)},
          {"curves", std::move(curves)},
          {"over_time", OverTime(took_us)},
          {"errors", std::move(errors)}};
}

std::string LoadFigures::Text(int64_t took_us) const {
  const double seconds = std::max(1e-6, static_cast<double>(took_us) * 1e-6);
  std::string out = fmt::format(
      "{:<12} {:<20} {:>8} {:>7} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}\n", "class",
      "model", "answered", "refused", "failed", "first p50", "p95", "p99", "next p50", "p95", "p99",
      "whole p50", "tokens/s");
  auto line = [&](std::string_view name, std::string_view model, const LoadRow& row) {
    out += fmt::format(
        "{:<12} {:<20} {:>8} {:>7} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9.1f}\n",
        name.substr(0, 12), model.substr(0, 20), row.answered, row.refused, row.failed,
        TimeText(row.first, 0.5), TimeText(row.first, 0.95), TimeText(row.first, 0.99),
        TimeText(row.gap, 0.5), TimeText(row.gap, 0.95), TimeText(row.gap, 0.99),
        TimeText(row.whole, 0.5), static_cast<double>(row.output_tokens) / seconds);
  };
  for (const auto& [key, row] : rows_) line(classes_[key.first], key.second, row);
  const LoadRow all = All();
  if (rows_.size() > 1) line("all", "", all);
  out += fmt::format("{:.1f} s: {:.2f} requests/s answered, {:.1f} tokens/s made, {:.1f} read\n",
                     seconds, static_cast<double>(all.answered) / seconds,
                     static_cast<double>(all.output_tokens) / seconds,
                     static_cast<double>(all.prompt_tokens) / seconds);
  for (const auto& [key, row] : rows_) {
    const int64_t goal = goals_us_[key.first];
    if (goal == 0 || row.answered == 0) continue;
    out += fmt::format("{} {}: {:.1f}% of first tokens within {:.3g} s\n", classes_[key.first],
                       key.second,
                       100 * static_cast<double>(row.in_goal) / static_cast<double>(row.asked),
                       static_cast<double>(goal) * 1e-6);
  }
  for (const auto& [error, count] : errors_) {
    out += fmt::format("{} times: {}\n", count, ToValidUtf8(error));
  }
  return out;
}

}  // namespace terrace::cli
