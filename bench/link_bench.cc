// A cold model behind a link of set speed: on the simulated device, whose memory is its own,
// weights come from the host's while the layers before them compute.
#include <fmt/format.h>

#include <algorithm>

#include "base/status.h"
#include "base/units.h"
#include "bench.h"
#include "generate_model.h"
#include "support.h"
#include "weights/model_weights.h"

namespace terrace::bench {
namespace {

constexpr int32_t kPromptTokens = 16;
constexpr uint64_t kLinkBytesPerS = 2'000'000'000;

absl::StatusOr<std::string> ModelPath(const Context& context, uint64_t seed) {
  GenerateOptions options;
  options.seed = seed;
  if (context.quick) {
    ASSIGN_OR_RETURN(options.shape, FindShape("small"));
  }
  return CachedModel(options, context.cache_folder);
}

// Memory on the device for one model of `model_bytes`, and on the host for two.
server::Config LinkConfig(uint64_t model_bytes) {
  server::Config config;
  config.device.kind = server::DeviceKind::kSim;
  config.device.sim_link_bytes_per_s = kLinkBytesPerS;
  config.device.sim_link_latency_us = 10;
  const uint64_t budget = AlignUp(model_bytes + std::max(model_bytes / 8, 32 * kMiB), kMiB);
  config.memory.device_budget_bytes = budget;
  config.device.sim_memory_bytes = budget + 64 * kMiB;
  config.memory.host_budget_bytes = 2 * budget + config.memory.staging_bytes;
  return config;
}

}  // namespace

absl::StatusOr<std::vector<Row>> RunLink(const Context& context) {
  ASSIGN_OR_RETURN(const std::string first_path, ModelPath(context, 1));
  ASSIGN_OR_RETURN(const std::string second_path, ModelPath(context, 2));
  uint64_t model_bytes = 0;
  {
    ASSIGN_OR_RETURN(std::unique_ptr<Bed> bed, Bed::Create(context, 0));
    ASSIGN_OR_RETURN(auto model, bed->Open("m1", first_path));
    model_bytes = model->weights().total_bytes();
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Bed> bed, Bed::Create(context, LinkConfig(model_bytes)));
  ASSIGN_OR_RETURN(auto first, bed->Open("m1", first_path));
  ASSIGN_OR_RETURN(auto second, bed->Open("m2", second_path));
  // Both come from the disk once, and leave copies on the host.
  RETURN_IF_ERROR(bed->FirstToken(*first, kPromptTokens, 1).status());
  RETURN_IF_ERROR(bed->FirstToken(*second, kPromptTokens, 1).status());
  std::vector<double> cold, hot, moved;
  uint64_t from_disk = 0;
  const int rounds = context.quick ? 3 : 8;
  for (int i = 0; i < rounds; ++i) {
    for (engine::EngineModel* model : {first.get(), second.get()}) {
      const auto salt = static_cast<uint64_t>(10 + 2 * i);
      const uint64_t disk_before = bed->LoadedBytes();
      const uint64_t before = bed->LoadedBytes("host-to-device");
      ASSIGN_OR_RETURN(const Served loaded, bed->FirstToken(*model, kPromptTokens, salt));
      moved.push_back(static_cast<double>(bed->LoadedBytes("host-to-device") - before));
      from_disk += bed->LoadedBytes() - disk_before;
      ASSIGN_OR_RETURN(const Served again, bed->FirstToken(*model, kPromptTokens, salt + 1));
      cold.push_back(static_cast<double>(loaded.first_token_us));
      hot.push_back(static_cast<double>(again.first_token_us));
    }
  }
  RETURN_IF_ERROR(bed->runtime().manager().CheckInvariants());
  const double link_us = Median(moved) / static_cast<double>(kLinkBytesPerS) * 1e6;
  const double compute_us = Median(hot);
  std::vector<Row> rows;
  rows.push_back({.law = "cold model behind 2 GB/s, weights on the host: first token",
                  .measured = Median(cold) / 1e3,
                  .unit = "ms",
                  .reference = std::max(link_us, compute_us) / 1e3,
                  .reference_name = "max(bytes / link, the same hot)",
                  .goal_kind = Goal::kAtMost,
                  .goal = 1.10});
  rows.push_back({.law = "the same: bytes over the link a switch",
                  .measured = Median(moved) / 1e6,
                  .unit = "MB",
                  .reference = static_cast<double>(model_bytes) / 1e6,
                  .reference_name = "the model"});
  rows.push_back({.law = "the same: bytes from the disk meanwhile",
                  .measured = static_cast<double>(from_disk) / 1e6,
                  .unit = "MB",
                  .goal_kind = Goal::kAtMost,
                  .goal = 0});
  rows.push_back({.law = "the same model hot: first token",
                  .measured = compute_us / 1e3,
                  .unit = "ms",
                  .reference = link_us / 1e3,
                  .reference_name = "bytes / link"});
  return rows;
}

}  // namespace terrace::bench
