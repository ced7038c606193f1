#include "cli/serve_config.h"

#include <sys/resource.h>
#include <unistd.h>

#include <fmt/format.h>

#include <utility>

#include "base/status.h"
#include "base/text.h"
#include "cli/model_argument.h"
#include "obs/log.h"
#include "os/cgroup.h"
#include "weights/model_store.h"

namespace terrace::cli {

absl::Status AddModelsOfStore(server::Config* config) {
  if (!config->models.empty()) return absl::OkStatus();
  const weights::ModelStore store(StoreFolder(*config));
  ASSIGN_OR_RETURN(std::vector<weights::StoredModel> stored, store.List());
  for (const weights::StoredModel& entry : stored) {
    server::ModelConfig model;
    model.name = entry.name;
    model.source = entry.name;
    if (server::CheckModelName(model.name).ok()) config->models.push_back(std::move(model));
  }
  if (!config->models.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "there is no model to serve: give --model NAME=FILE, list models in terrace.yaml, or "
      "`terrace pull` some into {}",
      store.folder()));
}

scheduler::TenantTable Tenants(const server::Config& config) {
  scheduler::TenantTable out;
  for (const server::TenantConfig& tenant : config.tenants) {
    // Requests without a key have no tenant's name.
    out[tenant.name == "default" ? "" : tenant.name] = {.share = tenant.share,
                                                        .memory_bytes = tenant.memory_bytes,
                                                        .running = tenant.running,
                                                        .compute = tenant.compute};
  }
  return out;
}

std::vector<std::string> SplitList(std::string_view text) {
  std::vector<std::string> out;
  for (const std::string_view part : Split(text, ',')) {
    if (!StripSpace(part).empty()) out.emplace_back(StripSpace(part));
  }
  return out;
}

scheduler::SchedulerOptions Scheduling(const server::Config& config) {
  scheduler::SchedulerOptions scheduling;
  scheduling.max_queue = config.scheduler.max_queue;
  scheduling.max_batch = config.scheduler.max_batch;
  scheduling.step_tokens = config.scheduler.step_tokens;
  scheduling.max_wait_us = config.scheduler.max_wait_us;
  scheduling.stretch = config.scheduler.stretch;
  scheduling.aging_us = config.scheduler.aging_us;
  scheduling.min_residency_us = config.scheduler.min_residency_us;
  scheduling.qps_weight = config.scheduler.qps_weight;
  scheduling.latency_weight = config.scheduler.latency_weight;
  scheduling.tenant_running = config.scheduler.tenant_running;
  scheduling.tenants = Tenants(config);
  return scheduling;
}

namespace {

void RaiseFileLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

void PrepareProcess(const server::Config& config, bool supervised, Logger* log) {
  RaiseFileLimit();
  const os::CgroupLimits limits = {.cpu_weight = config.server.cgroup_cpu_weight,
                                   .cpus = config.server.cgroup_cpus,
                                   .memory_high_bytes = config.server.cgroup_memory_high};
  if (!limits.any()) return;
  std::vector<int64_t> processes = {getpid()};
  if (supervised) processes.push_back(getppid());
  const absl::StatusOr<std::string> group = os::LimitCgroup(limits, processes);
  if (group.ok()) {
    log->Info("The server is in a control group of its own", {{"group", *group}});
  } else {
    log->Warning("The limits of server.cgroup are not in force",
                 {{"why", Message(group.status())}});
  }
}

}  // namespace terrace::cli
