#include "cli/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <fstream>
#include <iterator>
#include <memory>
#include <ostream>

#include "base/status.h"
#include "base/units.h"
#include "cli/cli.h"
#include "server/config.h"
#include "tier/trace_replay.h"

namespace terrace::cli {
namespace {

namespace json = boost::json;

struct ReplayCommand {
  std::string trace;
  std::vector<std::string> policies;
  tier::TraceShape shape;
  int32_t models = 20, devices = 1, segments = 16;
  int64_t seed = 1;
  std::optional<double> zipf, rate, seconds;
  std::string budget = "5GiB", model_size = "1GiB", link = "2GiB", goal = "2s";
  std::string prefill = "100ms", decode = "200ms";
};

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return ErrnoStatus(errno, fmt::format("opening {}", path));
  return std::string(std::istreambuf_iterator<char>(in), {});
}

absl::StatusOr<tier::Trace> MakeOrRead(const ReplayCommand& command) {
  if (!command.trace.empty()) {
    ASSIGN_OR_RETURN(std::string text, ReadFile(command.trace));
    auto trace = tier::ParseTrace(text);
    if (!trace.ok()) return WithContext(trace.status(), command.trace);
    return trace;
  }
  tier::TraceShape shape = command.shape;
  shape.models = static_cast<uint32_t>(command.models);
  shape.seed = static_cast<uint64_t>(command.seed);
  shape.zipf = command.zipf.value_or(shape.zipf);
  shape.requests_per_s = command.rate.value_or(shape.requests_per_s);
  shape.seconds = command.seconds.value_or(shape.seconds);
  ASSIGN_OR_RETURN(shape.prefill_us, server::ParseDurationUs(command.prefill));
  ASSIGN_OR_RETURN(shape.decode_us, server::ParseDurationUs(command.decode));
  const bool positive = command.models > 0 && shape.requests_per_s > 0 && shape.seconds > 0;
  if (!positive || shape.requests_per_s * shape.seconds > 1e8) {
    return absl::InvalidArgumentError(
        "--models, --rate and --seconds must be positive, and at most 100 million requests");
  }
  return tier::MakeTrace(shape);
}

void WriteText(const std::vector<tier::ReplayResult>& results, std::ostream& out) {
  constexpr int kBar = 30;
  double best = 1e-9;
  for (const tier::ReplayResult& result : results) best = std::max(best, result.goodput);
  out << fmt::format("{:<8} {:>9} {:>9} {:>8} {:>9} {:>9} {:>9} {:>10} {:>7}  goodput\n", "policy",
                     "goodput/s", "in time", "switches", "p50", "p95", "p99", "moved", "useful");
  for (const tier::ReplayResult& r : results) {
    const double all = static_cast<double>(std::max<uint64_t>(1, r.requests));
    auto ms = [](int64_t us) { return fmt::format("{:.0f} ms", static_cast<double>(us) / 1e3); };
    out << fmt::format(
        "{:<8} {:>9.3f} {:>8.1f}% {:>7.1f}% {:>9} {:>9} {:>9} {:>10} {:>6.1f}%  {}\n", r.policy,
        r.goodput, 100 * static_cast<double>(r.good) / all,
        100 * static_cast<double>(r.switches) / all, ms(r.ttft_p50_us), ms(r.ttft_p95_us),
        ms(r.ttft_p99_us), FormatBytes(static_cast<uint64_t>(r.moved_bytes)), 100 * r.useful_share,
        std::string(static_cast<size_t>(kBar * r.goodput / best), '#'));
  }
}

void WriteJson(const std::vector<tier::ReplayResult>& results, std::ostream& out) {
  json::array array;
  for (const tier::ReplayResult& r : results) {
    array.push_back({{"policy", r.policy},
                     {"requests", r.requests},
                     {"good", r.good},
                     {"goodput_per_s", r.goodput},
                     {"switches", r.switches},
                     {"refused", r.refused},
                     {"moved_bytes", r.moved_bytes},
                     {"useful_share", r.useful_share},
                     {"ttft_p50_us", r.ttft_p50_us},
                     {"ttft_p95_us", r.ttft_p95_us},
                     {"ttft_p99_us", r.ttft_p99_us}});
  }
  out << json::serialize(array) << "\n";
}

absl::Status RunReplay(const Invocation& invocation, const ReplayCommand& command) {
  ASSIGN_OR_RETURN(const tier::Trace trace, MakeOrRead(command));
  tier::ReplayOptions options;
  if (command.devices < 1 || command.segments < 1) {
    return absl::InvalidArgumentError("--devices and --segments must be positive");
  }
  options.devices = static_cast<uint32_t>(command.devices);
  options.segments = static_cast<uint32_t>(command.segments);
  ASSIGN_OR_RETURN(options.budget_bytes, ParseBytes(command.budget));
  ASSIGN_OR_RETURN(options.model_bytes, ParseBytes(command.model_size));
  ASSIGN_OR_RETURN(const uint64_t link, ParseBytes(command.link));
  options.link_bytes_per_s = static_cast<double>(link);
  ASSIGN_OR_RETURN(options.ttft_goal_us, server::ParseDurationUs(command.goal));
  std::vector<std::string> policies = command.policies;
  if (policies.empty()) policies = {"cost", "lru", "lru-k", "lfu", "static"};
  std::vector<tier::ReplayResult> results;
  for (const std::string& policy : policies) {
    options.policy = policy;
    ASSIGN_OR_RETURN(tier::ReplayResult result, tier::Replay(trace, options));
    results.push_back(std::move(result));
  }
  (invocation.json ? WriteJson : WriteText)(results, *invocation.io->out);
  return absl::OkStatus();
}

}  // namespace

void AddReplayCommand(Command root, Invocation* invocation) {
  auto options = std::make_shared<ReplayCommand>();  // lives as long as the parser's callbacks
  Command command = root.Add(
      "replay",
      "What each eviction policy, and models bound to devices for good, would make of a trace of "
      "requests, recorded or made up: for choosing a policy and a size",
      [invocation, options] { return RunReplay(*invocation, *options); });
  command.Argument("trace", &options->trace,
                   {"TRACE",
                    "File of lines seconds,model,prefill_ms,decode_ms (times with all weights "
                    "there); without it one is made up"});
  command.Option("--policy", &options->policies,
                 {"NAME", "cost, lru, lru-k, lfu or static; may be given often (default: all)"});
  command.Option("--models", &options->models, {"NUMBER", "Models of a made-up trace (20)"});
  command.Option("--zipf", &options->zipf, {"EXPONENT", "Skew of their popularity (1.0)"});
  command.Option("--rate", &options->rate, {"NUMBER", "Requests a second (1)"});
  command.Option("--seconds", &options->seconds, {"NUMBER", "How long (3600)"});
  command.Option("--prefill", &options->prefill,
                 {"DURATION", "Mean time to the first token (100ms)"});
  command.Option("--decode", &options->decode, {"DURATION", "Mean time from there on (200ms)"});
  command.Option("--seed", &options->seed, {"NUMBER", "Another one makes up another trace (1)"});
  command.Option("--devices", &options->devices, {"NUMBER", "Devices (1)"});
  command.Option("--budget", &options->budget, {"SIZE", "For weights, of each device (5GiB)"});
  command.Option("--model-size", &options->model_size, {"SIZE", "Of each model (1GiB)"});
  command.Option("--segments", &options->segments, {"NUMBER", "Of each model (16)"});
  command.Option("--link", &options->link, {"SIZE", "Bytes a second to each device (2GiB)"});
  command.Option("--goal", &options->goal, {"DURATION", "First tokens count until then (2s)"});
}

}  // namespace terrace::cli
