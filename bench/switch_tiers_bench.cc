// Switching from tiers that are not this machine's memory or disk: an object store, and host memory
// behind a link of a device with memory of its own; and what a load costs whoever decodes
// meanwhile.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <thread>

#include "base/status.h"
#include "base/units.h"
#include "bench.h"
#include "generate_model.h"
#include "object_server.h"
#include "support.h"
#include "switch_bench.h"
#include "weights/model_weights.h"

namespace terrace::bench {
namespace {

constexpr int32_t kPromptTokens = 16;
// A store behind a network of 2.5 Gbit/s.
constexpr double kStoreBytesPerS = 300e6;
constexpr int kStoreParallel = 16;  // as weights/object_source.h
constexpr double kLinkBytesPerS = 2e9;

absl::StatusOr<std::string> ModelPath(const Context& context, uint64_t seed) {
  GenerateOptions options;
  if (context.quick) {
    ASSIGN_OR_RETURN(options.shape, FindShape("small"));
  }
  options.seed = seed;
  return CachedModel(options, context.cache_folder);
}

// Loads the second and the third in turn while `loading`, as the scheduler does for requests that
// wait for them while the first is at work.
void LoadInTurn(const std::vector<std::shared_ptr<engine::EngineModel>>& models,
                tier::TierManager& manager, const Clock& clock, const std::atomic<bool>& loading,
                const std::atomic<bool>& stop) {
  constexpr int64_t kLeaseUs = 200'000;
  for (size_t turn = 0; !stop; ++turn) {
    const weights::ModelWeights& next = models[1 + turn % 2]->weights();
    while (!stop && (!loading || manager.MissingOf(next.tier_id()).bytes > 0)) {
      if (loading) {
        manager.Lease(models[0]->weights().tier_id(), clock.NowUs() + kLeaseUs);
        manager.Prefetch(next.tier_id(), 0, static_cast<uint32_t>(next.segments().size()),
                         tier::Priority::kNextLayer);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

double Ms(double us) { return us / 1e3; }

}  // namespace

absl::Status SwitchFromObject(const Context& context, double hot_us, std::vector<Row>* rows) {
  ASSIGN_OR_RETURN(const std::string path, ModelPath(context, 1));
  ASSIGN_OR_RETURN(const auto server, ObjectServer::Serve(path, kStoreBytesPerS, context.clock));
  const int rounds = context.quick ? 1 : 3;
  std::vector<double> times, rates;
  for (int i = 0; i < rounds; ++i) {
    ASSIGN_OR_RETURN(double rate, BareObjectRate(*server, kStoreParallel, *context.clock));
    rates.push_back(rate);
    server::Config config = Bed::DefaultConfig(context);
    config.storage.disk_path = context.cache_folder + "/object-store";
    std::error_code ignored;  // nothing of it is on the disk
    std::filesystem::remove_all(config.storage.disk_path, ignored);
    ASSIGN_OR_RETURN(const auto bed, Bed::CreateFrom(context, config));
    const int64_t start_us = context.clock->NowUs();
    ASSIGN_OR_RETURN(const auto model, bed->Open("m", server->url(), /*wait_for_image=*/false));
    const int64_t opened_us = context.clock->NowUs();
    ASSIGN_OR_RETURN(const Served served, bed->FirstToken(*model, kPromptTokens, 1));
    times.push_back(static_cast<double>(opened_us - start_us + served.first_token_us));
    context.say(
        fmt::format("from the object store: opened after {:.1f} ms, first token after "
                    "{:.1f} ms",
                    Ms(static_cast<double>(opened_us - start_us)), Ms(times.back())));
    RETURN_IF_ERROR(model->weights().WaitForImage());
    RETURN_IF_ERROR(bed->runtime().manager().CheckInvariants());
    std::filesystem::remove_all(config.storage.disk_path, ignored);
  }
  const double rate = Median(rates);
  const double floor_us = std::max(static_cast<double>(server->size()) / rate * 1e6, hot_us);
  rows->push_back({.law = "switch from an object store of 300 MB/s: first token",
                   .measured = Ms(Median(times)),
                   .unit = "ms",
                   .reference = Ms(floor_us),
                   .reference_name = "max(bytes / bare ranges, hot)",
                   .goal_kind = Goal::kAtMost,
                   .goal = 1.10});
  return absl::OkStatus();
}

absl::Status SwitchOverLink(const Context& context, std::vector<Row>* rows) {
  server::Config config = Bed::DefaultConfig(context);
  config.device.kind = server::DeviceKind::kSim;
  config.device.sim_link_bytes_per_s = static_cast<uint64_t>(kLinkBytesPerS);
  config.memory.host_budget_bytes = 2 * kGiB;
  std::vector<std::string> paths;
  for (uint64_t seed : {1, 2}) {
    ASSIGN_OR_RETURN(std::string path, ModelPath(context, seed));
    paths.push_back(std::move(path));
  }
  uint64_t model_bytes = 0;
  double hot_us = 0;
  {
    ASSIGN_OR_RETURN(const auto bed, Bed::CreateFrom(context, config));
    ASSIGN_OR_RETURN(const auto model, bed->Open("m1", paths[0]));
    model_bytes = model->weights().total_bytes();
    std::vector<double> hot;
    for (uint64_t i = 0; i < 6; ++i) {
      ASSIGN_OR_RETURN(const Served served, bed->FirstToken(*model, kPromptTokens, i));
      if (i > 0) hot.push_back(static_cast<double>(served.first_token_us));
    }
    hot_us = Median(std::move(hot));
  }
  config.memory.device_budget_bytes = model_bytes + std::max(model_bytes / 8, 12 * kMiB);
  ASSIGN_OR_RETURN(const auto bed, Bed::CreateFrom(context, config));
  std::vector<std::shared_ptr<engine::EngineModel>> models;
  for (size_t i = 0; i < paths.size(); ++i) {
    ASSIGN_OR_RETURN(auto model, bed->Open(fmt::format("m{}", i + 1), paths[i]));
    models.push_back(std::move(model));
    RETURN_IF_ERROR(bed->FirstToken(*models.back(), kPromptTokens, i).status());
  }
  std::vector<double> times;
  for (int round = 0; round < (context.quick ? 2 : 6); ++round) {
    for (const auto& model : models) {
      ASSIGN_OR_RETURN(const Served served,
                       bed->FirstToken(*model, kPromptTokens, static_cast<uint64_t>(100 + round)));
      times.push_back(static_cast<double>(served.first_token_us));
      if (served.loaded_bytes > 0) return absl::InternalError("a host copy was not used");
    }
  }
  RETURN_IF_ERROR(bed->runtime().manager().CheckInvariants());
  rows->push_back(
      {.law = "sim device, link of 2 GB/s, switch from host memory: first token",
       .measured = Ms(Median(times)),
       .unit = "ms",
       .reference = Ms(std::max(static_cast<double>(model_bytes) / kLinkBytesPerS * 1e6, hot_us)),
       .reference_name = "max(bytes / link, hot)",
       .goal_kind = Goal::kAtMost,
       .goal = 1.10});
  return absl::OkStatus();
}

absl::Status DecodeBesideLoad(const Context& context, std::vector<Row>* rows) {
  uint64_t model_bytes = 0;
  std::vector<std::string> paths;
  for (uint64_t seed : {1, 2, 3}) {
    ASSIGN_OR_RETURN(std::string path, ModelPath(context, seed));
    paths.push_back(std::move(path));
  }
  {
    ASSIGN_OR_RETURN(const auto bed, Bed::Create(context, 0));
    ASSIGN_OR_RETURN(const auto model, bed->Open("m1", paths[0]));
    model_bytes = model->weights().total_bytes();
  }
  // The budget holds two: each load is into the memory of the third model.
  ASSIGN_OR_RETURN(const auto bed,
                   Bed::Create(context, 2 * model_bytes + std::max(model_bytes / 8, 12 * kMiB)));
  std::vector<std::shared_ptr<engine::EngineModel>> models;
  for (size_t i = 0; i < paths.size(); ++i) {
    ASSIGN_OR_RETURN(auto model, bed->Open(fmt::format("m{}", i + 1), paths[i]));
    models.push_back(std::move(model));
    RETURN_IF_ERROR(bed->FirstToken(*models.back(), kPromptTokens, i).status());
  }
  tier::TierManager& manager = bed->runtime().manager();
  const int32_t tokens = context.quick ? 16 : 48;
  std::vector<double> alone, beside;
  std::atomic<bool> loading{false}, stop{false};
  std::thread loader([&] { LoadInTurn(models, manager, *context.clock, loading, stop); });
  auto loaded = [&] {
    return manager.LoadedBytes(models[1]->weights().tier_id()) +
           manager.LoadedBytes(models[2]->weights().tier_id());
  };
  absl::Status status;
  const uint64_t before = loaded();
  double beside_us = 0;
  for (uint64_t round = 0; status.ok() && round < (context.quick ? 2u : 5u); ++round) {
    for (const bool load : {false, true}) {
      loading = load;
      std::this_thread::sleep_for(std::chrono::milliseconds(load ? 20 : 400));
      absl::StatusOr<Answered> answered =
          bed->Answer(*models[0], kPromptTokens, tokens, 10 + 2 * round + (load ? 1 : 0));
      status.Update(answered.status());
      if (!answered.ok()) break;
      const auto us = static_cast<double>(answered->total_us - answered->first_token_us);
      (load ? beside : alone).push_back((tokens - 1) * 1e6 / us);
      if (load) beside_us += static_cast<double>(answered->total_us);
    }
  }
  stop = true;
  loader.join();
  RETURN_IF_ERROR(status);
  int64_t held_us = 0;
  for (const tier::HeldLoads& held : manager.Snapshot().held_loads) held_us += held.us;
  context.say(fmt::format("meanwhile loaded: {:.2f} GB/s, held back in {:.2f} s of {:.2f} s",
                          static_cast<double>(loaded() - before) / beside_us / 1e3,
                          static_cast<double>(held_us) * 1e-6, beside_us * 1e-6));
  for (const auto& [name, rates] : {std::pair("alone", &alone), std::pair("beside", &beside)}) {
    context.say(fmt::format("{}: {:.1f} tokens/s", name, fmt::join(*rates, ", ")));
  }
  rows->push_back({.law = "decode while another model loads from disk",
                   .measured = Median(beside),
                   .unit = "tokens/s",
                   .reference = Median(alone),
                   .reference_name = "alone",
                   .goal_kind = Goal::kAtLeast,
                   .goal = 0.9});
  return absl::OkStatus();
}

}  // namespace terrace::bench
