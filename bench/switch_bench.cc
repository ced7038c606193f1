// What it costs to switch to another model: with both in the budget, and from disk.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/status.h"
#include "base/units.h"
#include "bench.h"
#include "generate_model.h"
#include "support.h"
#include "switch_bench.h"
#include "weights/model_weights.h"

namespace terrace::bench {
namespace {

constexpr int32_t kPromptTokens = 16;

struct Pair {
  std::unique_ptr<Bed> bed;
  std::shared_ptr<engine::EngineModel> a, b;
};

absl::StatusOr<Pair> OpenPair(const Context& context, uint64_t budget_bytes) {
  Pair pair;
  GenerateOptions options;
  if (context.quick) {
    ASSIGN_OR_RETURN(options.shape, FindShape("small"));
  }
  ASSIGN_OR_RETURN(pair.bed, Bed::Create(context, budget_bytes));
  for (uint64_t seed : {1, 2}) {
    options.seed = seed;
    context.say(fmt::format("model {} of shape {}", seed, options.shape.name));
    ASSIGN_OR_RETURN(std::string path, CachedModel(options, context.cache_folder));
    auto& model = seed == 1 ? pair.a : pair.b;
    ASSIGN_OR_RETURN(model, pair.bed->Open(fmt::format("m{}", seed), path));
  }
  return pair;
}

double Ms(double us) { return us / 1e3; }

absl::StatusOr<double> MedianFirstTokenUs(Bed& bed, const engine::EngineModel& model, int rounds) {
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    ASSIGN_OR_RETURN(Served served, bed.FirstToken(model, kPromptTokens, static_cast<uint64_t>(i)));
    times.push_back(static_cast<double>(served.first_token_us));
  }
  return Median(std::move(times));
}

// Both models stay: hot and switched requests alternate in groups, so that a slow minute of the
// machine falls on both.
absl::Status BothFit(const Context& context, double* hot_us, std::vector<Row>* rows) {
  ASSIGN_OR_RETURN(Pair pair, OpenPair(context, 0));
  const int rounds = context.quick ? 3 : 8;
  RETURN_IF_ERROR(MedianFirstTokenUs(*pair.bed, *pair.a, 2).status());
  RETURN_IF_ERROR(MedianFirstTokenUs(*pair.bed, *pair.b, 2).status());
  std::vector<double> hot, switched;
  for (int i = 0; i < rounds; ++i) {
    const auto salt = static_cast<uint64_t>(100 + i);
    ASSIGN_OR_RETURN(Served after_b, pair.bed->FirstToken(*pair.a, kPromptTokens, salt));
    ASSIGN_OR_RETURN(Served again, pair.bed->FirstToken(*pair.a, kPromptTokens, salt + 1000));
    ASSIGN_OR_RETURN(Served once_more, pair.bed->FirstToken(*pair.a, kPromptTokens, salt + 2000));
    RETURN_IF_ERROR(pair.bed->FirstToken(*pair.b, kPromptTokens, salt).status());
    switched.push_back(static_cast<double>(after_b.first_token_us));
    hot.push_back(static_cast<double>(again.first_token_us));
    hot.push_back(static_cast<double>(once_more.first_token_us));
    if (after_b.loaded_bytes > 0) {
      return absl::FailedPreconditionError(
          "both models were meant to stay in the budget, but weights were loaded");
    }
  }
  *hot_us = Median(hot);
  const double switched_us = Median(switched);
  rows->push_back({.law = "switch, both models in the budget: first token",
                   .measured = Ms(switched_us),
                   .unit = "ms",
                   .reference = Ms(*hot_us),
                   .reference_name = "hot",
                   .goal_kind = Goal::kAtMost,
                   .goal = 1.05});
  rows->push_back({.law = "switch, both models in the budget: added to the hot first token",
                   .measured = Ms(switched_us - *hot_us),
                   .unit = "ms",
                   .goal_kind = Goal::kAtMost,
                   .goal = 5});
  return absl::OkStatus();
}

absl::Status FromDisk(const Context& context, double hot_us, std::vector<Row>* rows) {
  uint64_t model_bytes = 0;
  {
    ASSIGN_OR_RETURN(Pair pair, OpenPair(context, 0));
    model_bytes = pair.a->weights().total_bytes();
  }
  // One model, KV and workspace.
  const uint64_t budget = model_bytes + std::max(model_bytes / 8, 12 * kMiB);
  ASSIGN_OR_RETURN(Pair pair, OpenPair(context, budget));
  const int rounds = context.quick ? 3 : 8;
  std::vector<double> times, loaded, rates, ring, all;
  RETURN_IF_ERROR(pair.bed->FirstToken(*pair.a, kPromptTokens, 1).status());
  for (int i = 0; i < rounds; ++i) {
    // Both end up evicted and read again once a round; the bare reads are of the same files.
    for (engine::EngineModel* model : {pair.b.get(), pair.a.get()}) {
      const std::string image = pair.bed->ImagePath(*model);
      ASSIGN_OR_RETURN(double rate, BareReadRate(image, *context.clock));
      ring.push_back(rate);
      ASSIGN_OR_RETURN(rate, BareReadRate(image, *context.clock, ReadInto::kAll));
      all.push_back(rate);
      // The kernel is still freeing what was read into.
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      ASSIGN_OR_RETURN(Served served,
                       pair.bed->FirstToken(*model, kPromptTokens, static_cast<uint64_t>(i)));
      times.push_back(static_cast<double>(served.first_token_us));
      loaded.push_back(static_cast<double>(served.loaded_bytes));
      rates.push_back(static_cast<double>(served.loaded_bytes) /
                      static_cast<double>(served.first_token_us) * 1e6);
    }
  }
  RETURN_IF_ERROR(pair.bed->runtime().manager().CheckInvariants());
  const double ring_rate = Median(ring);
  const double all_rate = Median(all);
  const double floor_us = std::max(Median(loaded) / all_rate * 1e6, hot_us);
  rows->push_back({.law = "bare direct reads into memory for the whole model",
                   .measured = all_rate / 1e9,
                   .unit = "GB/s",
                   .reference = ring_rate / 1e9,
                   .reference_name = "bare direct reads into 32 MiB"});
  rows->push_back({.law = "switch from disk: bytes loaded over time to the first token",
                   .measured = Median(rates) / 1e9,
                   .unit = "GB/s",
                   .reference = ring_rate / 1e9,
                   .reference_name = "bare direct reads into 32 MiB",
                   .goal_kind = Goal::kAtLeast,
                   .goal = 0.8});
  rows->push_back({.law = "switch from disk: first token",
                   .measured = Ms(Median(times)),
                   .unit = "ms",
                   .reference = Ms(floor_us),
                   .reference_name = "max(bytes / bare rate into their memory, hot)",
                   .goal_kind = Goal::kAtMost,
                   .goal = 1.10});
  rows->push_back({.law = "switch from disk: bytes loaded a switch",
                   .measured = Median(loaded) / 1e6,
                   .unit = "MB",
                   .reference = static_cast<double>(model_bytes) / 1e6,
                   .reference_name = "the model"});
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Row>> RunSwitch(const Context& context) {
  std::vector<Row> rows;
  double hot_us = 0;
  const bool disk = context.WantsLaw("switch from disk");
  const bool object = context.WantsLaw("switch from an object store");
  if (disk || object || context.WantsLaw("switch, both models in the budget")) {
    RETURN_IF_ERROR(BothFit(context, &hot_us, &rows));
  }
  if (disk) RETURN_IF_ERROR(FromDisk(context, hot_us, &rows));
  if (object) RETURN_IF_ERROR(SwitchFromObject(context, hot_us, &rows));
  if (context.WantsLaw("sim device")) RETURN_IF_ERROR(SwitchOverLink(context, &rows));
  if (context.WantsLaw("decode while")) RETURN_IF_ERROR(DecodeBesideLoad(context, &rows));
  return rows;
}

}  // namespace terrace::bench
