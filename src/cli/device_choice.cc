#include "cli/device_choice.h"

#include <fmt/format.h>

#include <utility>

#include "base/status.h"
#include "cli/model_argument.h"
#include "cli/runtime.h"
#include "device/ascend/ascend_device.h"
#include "device/cambricon/cambricon_device.h"
#include "device/cpu/cpu_device.h"
#include "device/cuda/cuda_device.h"
#include "device/hip/hip_device.h"
#include "device/musa/musa_device.h"
#include "device/opencl/opencl_device.h"
#include "device/sim/sim_device.h"
#include "ops/ascend/ascend_backend.h"
#include "ops/cambricon/cambricon_backend.h"
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

// The first maker whose driver is here and has such a GPU.
Made CreateGpu(const server::Config& config) {
  device::CudaOptions options;
  options.ordinal = config.device.number;
  options.memory_bytes = config.device.memory_bytes;
  options.cache_folder = KernelFolder(config);
  std::string why;
  const auto tell = [&](const absl::Status& status) {
    why += fmt::format("{}{}", why.empty() ? "" : "; ", Message(status));
  };
  for (Made (*create)(const device::CudaOptions&) :
       {+[](const device::CudaOptions& o) { return device::CreateCudaDevice(o); },
        +[](const device::CudaOptions& o) { return device::CreateHipDevice(o); },
        +[](const device::CudaOptions& o) { return device::CreateMusaDevice(o); }}) {
    Made made = create(options);
    if (!absl::IsNotFound(made.status())) return made;
    tell(made.status());
  }
  return absl::NotFoundError(why);
}

// An NPU and its operators, which are the maker's.
absl::StatusOr<ChosenDevice> ChooseNpu(const server::Config& config, ThreadTeam* team) {
  ASSIGN_OR_RETURN(std::unique_ptr<ops::Backend> host, CreateBackend(config, team));
  device::AscendOptions ascend;
  ascend.ordinal = config.device.number;
  ascend.memory_bytes = config.device.memory_bytes;
  absl::StatusOr<std::unique_ptr<device::DriverDevice>> device = device::CreateAscendDevice(ascend);
  ChosenDevice chosen;
  if (device.ok()) {
    ASSIGN_OR_RETURN(chosen.backend, ops::CreateAscendBackend(device->get(), std::move(host)));
    chosen.note = ops::kAscendNote;
    chosen.device = *std::move(device);
    return chosen;
  }
  if (!absl::IsNotFound(device.status())) return device.status();
  device::CambriconOptions cambricon;
  cambricon.ordinal = config.device.number;
  cambricon.memory_bytes = config.device.memory_bytes;
  const std::string why(Message(device.status()));
  device = device::CreateCambriconDevice(cambricon);
  if (absl::IsNotFound(device.status())) {
    return absl::NotFoundError(fmt::format("{}; {}", why, Message(device.status())));
  }
  RETURN_IF_ERROR(device.status());
  ASSIGN_OR_RETURN(chosen.backend, ops::CreateCambriconBackend(device->get(), std::move(host)));
  chosen.note = ops::kCambriconNote;
  chosen.device = *std::move(device);
  return chosen;
}

absl::StatusOr<ChosenDevice> Choose(const server::Config& config, const Clock* clock,
                                    ThreadTeam* team) {
  if (config.device.kind == server::DeviceKind::kNpu) return ChooseNpu(config, team);
  Made made = device::CreateCpuDevice();
  if (config.device.kind == server::DeviceKind::kSim) made = CreateSim(config, clock);
  if (config.device.kind == server::DeviceKind::kOpenCl) made = CreateOpenCl(config);
  if (config.device.kind == server::DeviceKind::kGpu) made = CreateGpu(config);
  RETURN_IF_ERROR(made.status());
  ChosenDevice chosen;
  chosen.device = *std::move(made);
  if (chosen.device->info().host_addressable) {
    ASSIGN_OR_RETURN(chosen.backend, CreateBackend(config, team));
    return chosen;
  }
  if (!config.device.variant.empty()) {
    return absl::InvalidArgumentError(
        fmt::format("device.variant {} is of the processor's kernels; this device has its own",
                    config.device.variant));
  }
  ASSIGN_OR_RETURN(chosen.backend, ops::CreateKernelBackend(chosen.device.get()));
  return chosen;
}

}  // namespace

absl::StatusOr<ChosenDevice> ChooseDevice(const server::Config& config, const Clock* clock,
                                          ThreadTeam* team) {
  absl::StatusOr<ChosenDevice> chosen = Choose(config, clock, team);
  if (chosen.ok() || config.device.kind == server::DeviceKind::kCpu) return chosen;
  return WithContext(chosen.status(),
                     fmt::format("device.kind {}", server::DeviceKindName(config.device.kind)));
}

}  // namespace terrace::cli
