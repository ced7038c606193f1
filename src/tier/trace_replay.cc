#include "tier/trace_replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <map>
#include <memory>
#include <utility>

#include "base/random.h"
#include "base/status.h"
#include "base/text.h"
#include "tier/policy.h"
#include "tier/use_history.h"

namespace terrace::tier {
namespace {

constexpr std::string_view kStatic = "static";

struct Device {
  int64_t free_us = 0;
  std::vector<uint32_t> heads;  // of each model: segments that are here, from the first on
  uint64_t segments = 0;        // of all of them
  int64_t counted_us = 0;       // until when `filled` is counted
  double filled = 0;            // segment microseconds
};

class Replayer {
 public:
  Replayer(const Trace& trace, const ReplayOptions& options, std::unique_ptr<EvictionPolicy> policy)
      : trace_(trace),
        options_(options),
        policy_(std::move(policy)),
        segment_bytes_(std::max<uint64_t>(1, options.model_bytes / options.segments)),
        room_(options.budget_bytes / segment_bytes_),
        histories_(trace.models.size()),
        devices_(options.devices) {
    for (Device& device : devices_) device.heads.resize(trace.models.size());
    if (policy_ == nullptr) Bind();
  }

  ReplayResult Run() {
    for (const TraceRequest& request : trace_.requests) Serve(request);
    return Sum();
  }

 private:
  // The most asked for stay, each on one device, as long as there is room.
  void Bind() {
    std::vector<std::pair<uint64_t, uint32_t>> counts(trace_.models.size());
    for (uint32_t i = 0; i < counts.size(); ++i) counts[i].second = i;
    for (const TraceRequest& request : trace_.requests) ++counts[request.model].first;
    std::stable_sort(counts.begin(), counts.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    size_t next = 0;
    for (const auto& [count, model] : counts) {
      size_t tried = 0;
      while (tried < devices_.size() &&
             devices_[next % devices_.size()].segments + options_.segments > room_) {
        ++next, ++tried;
      }
      if (tried == devices_.size()) return;
      Device& device = devices_[next++ % devices_.size()];
      device.heads[model] = options_.segments;
      device.segments += options_.segments;
    }
  }

  // The device on which the first token would come first.
  Device* Choose(const TraceRequest& request) {
    Device* best = nullptr;
    double best_us = 0;
    for (Device& device : devices_) {
      const uint32_t missing = options_.segments - device.heads[request.model];
      if (policy_ == nullptr && missing > 0) continue;
      const double us = static_cast<double>(std::max(device.free_us, request.at_us)) +
                        std::max(LoadUs(missing), static_cast<double>(request.prefill_us));
      if (best != nullptr && us >= best_us) continue;
      best = &device;
      best_us = us;
    }
    return best;
  }

  double LoadUs(uint64_t segments) const {
    return static_cast<double>(segments * segment_bytes_) / options_.link_bytes_per_s * 1e6;
  }

  void Serve(const TraceRequest& request) {
    ++result_.requests;
    Device* device = Choose(request);
    if (device == nullptr) {
      ++result_.refused;
      return;
    }
    const int64_t start_us = std::max(device->free_us, request.at_us);
    histories_[request.model].Ask(start_us, start_us);
    histories_[request.model].Touch(start_us, start_us);
    const uint32_t missing = options_.segments - device->heads[request.model];
    if (missing > 0) {
      ++result_.switches;
      result_.moved_bytes += static_cast<double>(missing * segment_bytes_);
      Count(*device, start_us);
      MakeRoom(*device, request.model, missing, start_us);
      device->heads[request.model] = options_.segments;
      device->segments += missing;
    }
    const auto load_us = static_cast<int64_t>(LoadUs(missing));
    const int64_t first_us = start_us + std::max(load_us, request.prefill_us);
    device->free_us = first_us + request.decode_us;
    histories_[request.model].Touch(device->free_us, device->free_us);
    const int64_t ttft_us = first_us - request.at_us;
    result_.good += ttft_us <= options_.ttft_goal_us;
    ttfts_.push_back(ttft_us);
  }

  void MakeRoom(Device& device, uint32_t model, uint64_t segments, int64_t now_us) {
    if (device.segments + segments <= room_) return;
    std::vector<EvictionCandidate> candidates;
    for (uint32_t other = 0; other < device.heads.size(); ++other) {
      if (other == model) continue;
      const UseHistory& history = histories_[other];
      for (uint32_t i = 0; i < device.heads[other]; ++i) {
        candidates.push_back({.model = other,
                              .segment = i,
                              .bytes = segment_bytes_,
                              .history = history,
                              .reload_us = LoadUs(1),
                              .usual_rate = history.UsualRate(now_us, now_us)});
      }
    }
    policy_->Order({.now_us = now_us}, candidates);
    for (const EvictionCandidate& victim : candidates) {
      if (device.segments + segments <= room_) return;
      --device.heads[victim.model];  // tails go first
      --device.segments;
    }
  }

  void Count(Device& device, int64_t now_us) {
    device.filled +=
        static_cast<double>(device.segments) * static_cast<double>(now_us - device.counted_us);
    device.counted_us = now_us;
  }

  ReplayResult Sum() {
    if (trace_.requests.empty()) return result_;
    double filled = 0, whole = 0;
    int64_t end_us = trace_.requests.back().at_us;
    for (Device& device : devices_) end_us = std::max(end_us, device.free_us);
    for (Device& device : devices_) {
      Count(device, end_us);
      filled += device.filled;
      whole += static_cast<double>(room_) * static_cast<double>(end_us);
    }
    result_.useful_share = whole > 0 ? filled / whole : 0;
    result_.goodput = static_cast<double>(result_.good) * 1e6 /
                      static_cast<double>(std::max<int64_t>(1, trace_.requests.back().at_us));
    std::sort(ttfts_.begin(), ttfts_.end());
    auto percentile = [&](double share) -> int64_t {
      if (ttfts_.empty()) return 0;
      return ttfts_[static_cast<size_t>(share * static_cast<double>(ttfts_.size() - 1))];
    };
    result_.ttft_p50_us = percentile(0.50);
    result_.ttft_p95_us = percentile(0.95);
    result_.ttft_p99_us = percentile(0.99);
    return result_;
  }

  const Trace& trace_;
  const ReplayOptions& options_;
  const std::unique_ptr<EvictionPolicy> policy_;  // null: static
  const uint64_t segment_bytes_;
  const uint64_t room_;  // segments of a device
  std::vector<UseHistory> histories_;
  std::vector<Device> devices_;
  std::vector<int64_t> ttfts_;
  ReplayResult result_;
};

absl::StatusOr<double> Number(std::string_view text, size_t line) {
  double value = 0;
  text = StripSpace(text);
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= 0 && value < 1e12)) {
    return absl::InvalidArgumentError(fmt::format("line {}: '{}' is no number", line, text));
  }
  return value;
}

}  // namespace

absl::StatusOr<Trace> ParseTrace(std::string_view text) {
  Trace trace;
  std::map<std::string, uint32_t, std::less<>> models;
  size_t number = 0;
  for (std::string_view line : Split(text, '\n')) {
    ++number;
    line = StripSpace(line);
    const bool heading = number == 1 && !line.empty() && std::isalpha(line[0]) != 0;
    if (line.empty() || line[0] == '#' || heading) continue;
    const std::vector<std::string_view> fields = Split(line, ',');
    if (fields.size() != 4 || StripSpace(fields[1]).empty()) {
      return absl::InvalidArgumentError(fmt::format(
          "line {}: expected seconds,model,prefill_ms,decode_ms, not '{}'", number, line));
    }
    TraceRequest request;
    ASSIGN_OR_RETURN(const double seconds, Number(fields[0], number));
    ASSIGN_OR_RETURN(const double prefill_ms, Number(fields[2], number));
    ASSIGN_OR_RETURN(const double decode_ms, Number(fields[3], number));
    request.at_us = static_cast<int64_t>(seconds * 1e6);
    request.prefill_us = static_cast<int64_t>(prefill_ms * 1e3);
    request.decode_us = static_cast<int64_t>(decode_ms * 1e3);
    const std::string name(StripSpace(fields[1]));
    const auto [entry, added] = models.try_emplace(name, trace.models.size());
    if (added) trace.models.push_back(name);
    request.model = entry->second;
    trace.requests.push_back(request);
  }
  std::stable_sort(trace.requests.begin(), trace.requests.end(),
                   [](const auto& a, const auto& b) { return a.at_us < b.at_us; });
  return trace;
}

Trace MakeTrace(const TraceShape& shape) {
  Random random(shape.seed);
  Trace trace;
  std::vector<double> until;  // cumulative shares
  double sum = 0;
  for (uint32_t i = 0; i < shape.models; ++i) {
    trace.models.push_back(fmt::format("model-{}", i + 1));
    sum += std::pow(i + 1, -shape.zipf);
    until.push_back(sum);
  }
  auto exponential = [&](double mean) { return -mean * std::log(1 - random.Uniform()); };
  for (double at = exponential(1 / shape.requests_per_s); at < shape.seconds && sum > 0;
       at += exponential(1 / shape.requests_per_s)) {
    const double share = random.Uniform() * sum;
    const auto model = std::lower_bound(until.begin(), until.end(), share) - until.begin();
    trace.requests.push_back(
        {.at_us = static_cast<int64_t>(at * 1e6),
         .model = std::min(static_cast<uint32_t>(model), shape.models - 1),
         .prefill_us = static_cast<int64_t>(exponential(static_cast<double>(shape.prefill_us))),
         .decode_us = static_cast<int64_t>(exponential(static_cast<double>(shape.decode_us)))});
  }
  return trace;
}

absl::StatusOr<ReplayResult> Replay(const Trace& trace, const ReplayOptions& options) {
  if (options.segments == 0 || options.devices == 0 || options.link_bytes_per_s <= 0 ||
      options.model_bytes < options.segments) {
    return absl::InvalidArgumentError("devices, segments, link and model size must be positive");
  }
  if (options.model_bytes > options.budget_bytes) {
    return absl::InvalidArgumentError(fmt::format("a model of {} bytes does not fit a device of {}",
                                                  options.model_bytes, options.budget_bytes));
  }
  std::unique_ptr<EvictionPolicy> policy;
  if (options.policy != kStatic) {
    ASSIGN_OR_RETURN(policy, CreateEvictionPolicy(options.policy));
  }
  ReplayResult result = Replayer(trace, options, std::move(policy)).Run();
  result.policy = options.policy;
  return result;
}

}  // namespace terrace::tier
