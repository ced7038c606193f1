// Many models, memory for a quarter of them, requests by Zipf's law: what the eviction policy makes
// of it, in the simulator's trace and in a real run.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "base/random.h"
#include "base/status.h"
#include "base/units.h"
#include "bench.h"
#include "generate_model.h"
#include "support.h"
#include "tier/trace_replay.h"
#include "weights/model_weights.h"

namespace terrace::bench {
namespace {

constexpr uint32_t kModels = 20;
constexpr uint64_t kFit = 5;
constexpr int32_t kPromptTokens = 16;
constexpr int kClients = 3;

// An hour of a device that plain recency just about overloads: a model of 1 GiB takes a second over
// the link, and more than half of the requests find theirs missing.
absl::Status Simulated(std::vector<Row>* rows) {
  tier::TraceShape shape;
  shape.models = kModels;
  shape.requests_per_s = 1.2;
  tier::ReplayOptions options;
  options.budget_bytes = kFit * kGiB;
  options.model_bytes = kGiB;
  options.link_bytes_per_s = static_cast<double>(kGiB);
  options.ttft_goal_us = 2'000'000;
  double lru = 0, cost = 0, useful = 1;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    shape.seed = seed;
    const tier::Trace trace = tier::MakeTrace(shape);
    options.policy = "lru";
    ASSIGN_OR_RETURN(const tier::ReplayResult plain, tier::Replay(trace, options));
    options.policy = "cost";
    ASSIGN_OR_RETURN(const tier::ReplayResult ours, tier::Replay(trace, options));
    lru += plain.goodput / 5;
    cost += ours.goodput / 5;
    useful = std::min(useful, ours.useful_share);
  }
  rows->push_back({.law = "20 models, Zipf(1.0), budget for 5, trace of an hour: goodput of cost",
                   .measured = cost,
                   .unit = "requests/s",
                   .reference = lru,
                   .reference_name = "lru on the same traces",
                   .goal_kind = Goal::kAtLeast,
                   .goal = 1.5});
  rows->push_back({.law = "the same traces: useful bytes in the budget",
                   .measured = useful,
                   .unit = "share",
                   .goal_kind = Goal::kAtLeast,
                   .goal = 0.95});
  return absl::OkStatus();
}

struct RealRun {
  uint64_t requests = 0;
  uint64_t good = 0;
  uint64_t failed = 0;
  double useful = 0;  // share of the budget booked, over time
  double seconds = 0;
  uint64_t missed = 0;       // requests for whose first token weights moved
  double swap_us = 0;        // that they waited for weights
  uint64_t moved_bytes = 0;  // over the links, for whomever
  double goodput() const { return static_cast<double>(good) / seconds; }
  std::string Told() const {
    const double each = std::max<double>(1, static_cast<double>(requests));
    return fmt::format(
        "{} requests, {:.1f} good a second, {:.0f}% missed weights, {:.1f} ms of waiting for them "
        "and {:.1f} MB moved each",
        requests, goodput(), static_cast<double>(missed) / each * 100, swap_us / each * 1e-3,
        static_cast<double>(moved_bytes) / each * 1e-6);
  }
};

// A few clients, each with one request at a time, for `seconds`.
absl::StatusOr<RealRun> Run(const Context& context, const std::vector<std::string>& paths,
                            const std::string& policy, uint64_t budget, int64_t goal_us,
                            double seconds) {
  ASSIGN_OR_RETURN(std::unique_ptr<Bed> bed, Bed::Create(context, budget, policy));
  std::vector<std::shared_ptr<engine::EngineModel>> models;
  std::vector<double> until;
  double sum = 0;
  for (size_t i = 0; i < paths.size(); ++i) {
    ASSIGN_OR_RETURN(auto model, bed->Open(fmt::format("m{}", i + 1), paths[i]));
    models.push_back(std::move(model));
    until.push_back(sum += 1.0 / static_cast<double>(i + 1));
  }
  RealRun run;
  const uint64_t moved_before = bed->LoadedBytes("");
  absl::Mutex mutex;
  std::atomic<bool> stop{false};
  std::vector<std::thread> clients;
  const int64_t start_us = context.clock->NowUs();
  for (int client = 0; client < kClients; ++client) {
    clients.emplace_back([&, client] {
      Random random(static_cast<uint64_t>(client) + 1);
      while (!stop) {
        const double share = random.Uniform() * sum;
        const auto which = static_cast<size_t>(std::lower_bound(until.begin(), until.end(), share) -
                                               until.begin());
        absl::StatusOr<Answered> served = bed->Answer(*models[std::min(which, models.size() - 1)],
                                                      kPromptTokens, 1, random.Next());
        absl::MutexLock lock(&mutex);
        ++run.requests;
        run.failed += !served.ok();
        run.good += served.ok() && served->first_token_us <= goal_us;
        run.missed += served.ok() && served->moved_bytes > 0;
        run.swap_us += served.ok() ? static_cast<double>(served->swap_us) : 0;
      }
    });
  }
  double samples = 0;
  const int64_t end_us = start_us + static_cast<int64_t>(seconds * 1e6);
  while (context.clock->NowUs() < end_us) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (context.clock->NowUs() - start_us < static_cast<int64_t>(seconds * 0.1e6)) continue;
    const tier::TierSnapshot snapshot = bed->runtime().manager().Snapshot();
    run.useful += static_cast<double>(snapshot.device_used_bytes) /
                  static_cast<double>(snapshot.device_budget_bytes);
    ++samples;
  }
  stop = true;
  for (std::thread& client : clients) client.join();
  run.seconds = static_cast<double>(context.clock->NowUs() - start_us) / 1e6;
  if (samples > 0) run.useful /= samples;
  run.moved_bytes = bed->LoadedBytes("") - moved_before;
  RETURN_IF_ERROR(bed->runtime().manager().CheckInvariants());
  return run;
}

struct Alone {
  uint64_t model_bytes = 0;
  int64_t cold_us = 0, hot_us = 0;  // to the first token
};

// Medians of a model with the machine to itself: one of them may have been held up.
absl::StatusOr<Alone> MeasureAlone(const Context& context, const std::string& path) {
  ASSIGN_OR_RETURN(std::unique_ptr<Bed> bed, Bed::Create(context, 0));
  ASSIGN_OR_RETURN(auto model, bed->Open("m", path));
  std::vector<int64_t> cold, hot;
  for (uint64_t i = 0; i < 7; ++i) {
    bed->runtime().manager().EvictModel(model->weights().tier_id());
    ASSIGN_OR_RETURN(const Served first, bed->FirstToken(*model, kPromptTokens, 2 * i));
    ASSIGN_OR_RETURN(const Served second, bed->FirstToken(*model, kPromptTokens, 2 * i + 1));
    cold.push_back(first.first_token_us);
    hot.push_back(second.first_token_us);
  }
  std::sort(cold.begin(), cold.end());
  std::sort(hot.begin(), hot.end());
  return Alone{model->weights().total_bytes(), cold[cold.size() / 2], hot[hot.size() / 2]};
}

absl::Status Real(const Context& context, std::vector<Row>* rows) {
  GenerateOptions options;
  ASSIGN_OR_RETURN(options.shape, FindShape(context.quick ? "tiny" : "small"));
  std::vector<std::string> paths;
  for (uint32_t i = 1; i <= kModels; ++i) {
    options.seed = i;
    ASSIGN_OR_RETURN(std::string path, CachedModel(options, context.cache_folder));
    paths.push_back(std::move(path));
  }
  context.say(fmt::format("{} models of shape {}", kModels, options.shape.name));
  ASSIGN_OR_RETURN(const Alone alone, MeasureAlone(context, paths[0]));
  // Late: as late as a cold request that nobody was before.
  const int64_t goal_us = std::max(alone.cold_us, 2 * alone.hot_us);
  const uint64_t budget = kFit * alone.model_bytes + 8 * kMiB;
  // Ten minutes in all.
  const int rounds = context.quick ? 2 : 10;
  const double seconds = context.quick ? 1.5 : 30;
  RealRun sums[2];
  const char* policies[] = {"lru", "cost"};
  for (int round = 0; round < rounds; ++round) {  // in turn, so that a slow minute falls on both
    for (int i = 0; i < 2; ++i) {
      context.say(fmt::format("{} for {} s", policies[i], seconds));
      ASSIGN_OR_RETURN(const RealRun run,
                       Run(context, paths, policies[i], budget, goal_us, seconds));
      sums[i].requests += run.requests;
      sums[i].good += run.good;
      sums[i].failed += run.failed;
      sums[i].seconds += run.seconds;
      sums[i].useful += run.useful / rounds;
      sums[i].missed += run.missed;
      sums[i].swap_us += run.swap_us;
      sums[i].moved_bytes += run.moved_bytes;
      context.say(fmt::format("  {}", run.Told()));
    }
  }
  for (int i = 0; i < 2; ++i) context.say(fmt::format("{}: {}", policies[i], sums[i].Told()));
  rows->push_back({.law = "20 models, Zipf(1.0), budget for 5, real run: goodput of cost",
                   .measured = sums[1].goodput(),
                   .unit = "requests/s",
                   .reference = sums[0].goodput(),
                   .reference_name = "lru in the same run",
                   .goal_kind = Goal::kAtLeast,
                   .goal = 1.0});
  rows->push_back({.law = "the same run: budget in use, over time",
                   .measured = sums[1].useful,
                   .unit = "share",
                   .goal_kind = Goal::kAtLeast,
                   .goal = 0.95});
  rows->push_back({.law = "the same run: requests that failed",
                   .measured = static_cast<double>(sums[0].failed + sums[1].failed),
                   .unit = fmt::format("of {}", sums[0].requests + sums[1].requests),
                   .goal_kind = Goal::kAtMost,
                   .goal = 0});
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Row>> RunZipf(const Context& context) {
  std::vector<Row> rows;
  RETURN_IF_ERROR(Simulated(&rows));
  RETURN_IF_ERROR(Real(context, &rows));
  return rows;
}

}  // namespace terrace::bench
