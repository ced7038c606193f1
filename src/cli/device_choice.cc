#include "cli/device_choice.h"

#include <fmt/format.h>

#include <utility>

#include "base/status.h"
#include "cli/model_argument.h"
#include "cli/runtime.h"
#include "device/cpu/cpu_device.h"
#include "device/opencl/opencl_device.h"
#include "device/sim/sim_device.h"
#include "ops/chips.h"
#include "ops/opencl/kernel_backend.h"

namespace terrace::cli {
namespace {

using Made = absl::StatusOr<std::unique_ptr<device::Device>>;

Made CreateSim(const server::Config& config, const Clock* clock) {
  const device::SimLink link{static_cast<double>(config.device.sim_link_bytes_per_s),
                             config.device.sim_link_latency_us};
  device::SimDeviceOptions options;
  options.memory_bytes = config.device.sim_memory_bytes;
  options.to_device = link;
  options.to_host = link;
  ASSIGN_OR_RETURN(std::unique_ptr<device::SimDevice> sim, device::CreateSimDevice(options, clock));
  return std::unique_ptr<device::Device>(std::move(sim));
}

Made CreateOpenCl(const server::Config& config) {
  device::OpenClOptions options;
  options.device = config.device.opencl_device;
  options.memory_bytes = config.device.memory_bytes;
  options.cache_folder = KernelFolder(config);
  return device::CreateOpenClDevice(options);
}

// OK if no variant of the processor's kernels is asked for.
absl::Status RefuseVariant(const server::Config& config) {
  if (config.device.variant.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("device.variant {} is of the processor's kernels; this device has its own",
                  config.device.variant));
}

// A maker's chip and its operators.
absl::StatusOr<ChosenDevice> ChooseChip(const server::Config& config, ThreadTeam* team,
                                        DeviceNotice tell) {
  const bool npu = config.device.kind == server::DeviceKind::kNpu;
  if (!npu) RETURN_IF_ERROR(RefuseVariant(config));
  std::unique_ptr<ops::Backend> host;
  if (npu) {
    ASSIGN_OR_RETURN(host, CreateBackend(config, team));
  }
  ops::ChipOptions options;
  options.ordinal = config.device.number;
  options.memory_bytes = config.device.memory_bytes;
  options.cache_folder = KernelFolder(config);
  options.deterministic = config.device.deterministic;
  options.library_rows = config.device.library_rows;
  options.graphs = config.device.graphs;
  options.unproven_operators = config.device.unproven_operators;
  options.tell = std::move(tell);
  ASSIGN_OR_RETURN(ops::Chip chip, ops::OpenChip(npu ? ops::ChipKind::kNpu : ops::ChipKind::kGpu,
                                                 options, std::move(host)));
  return ChosenDevice{std::move(chip.device), std::move(chip.backend), std::move(chip.note)};
}

absl::StatusOr<ChosenDevice> Choose(const server::Config& config, const Clock* clock,
                                    ThreadTeam* team, DeviceNotice tell) {
  const server::DeviceKind kind = config.device.kind;
  if (kind == server::DeviceKind::kNpu || kind == server::DeviceKind::kGpu) {
    return ChooseChip(config, team, std::move(tell));
  }
  Made made = device::CreateCpuDevice();
  if (kind == server::DeviceKind::kSim) made = CreateSim(config, clock);
  if (kind == server::DeviceKind::kOpenCl) made = CreateOpenCl(config);
  RETURN_IF_ERROR(made.status());
  ChosenDevice chosen;
  chosen.device = *std::move(made);
  if (chosen.device->info().host_addressable) {
    ASSIGN_OR_RETURN(chosen.backend, CreateBackend(config, team));
    return chosen;
  }
  RETURN_IF_ERROR(RefuseVariant(config));
  ASSIGN_OR_RETURN(chosen.backend,
                   ops::CreateKernelBackend(chosen.device.get(), config.device.deterministic));
  return chosen;
}

}  // namespace

absl::StatusOr<ChosenDevice> ChooseDevice(const server::Config& config, const Clock* clock,
                                          ThreadTeam* team, DeviceNotice tell) {
  absl::StatusOr<ChosenDevice> chosen = Choose(config, clock, team, std::move(tell));
  if (chosen.ok() || config.device.kind == server::DeviceKind::kCpu) return chosen;
  return WithContext(chosen.status(),
                     fmt::format("device.kind {}", server::DeviceKindName(config.device.kind)));
}

}  // namespace terrace::cli
