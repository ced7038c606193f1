#include "ops/chips.h"

#include <utility>

#include <fmt/format.h>

#include "base/status.h"
#include "device/ascend/ascend_device.h"
#include "device/cambricon/cambricon_device.h"
#include "device/cuda/cuda_device.h"
#include "device/hip/hip_device.h"
#include "device/musa/musa_device.h"
#include "ops/ascend/ascend_backend.h"
#include "ops/cambricon/cambricon_backend.h"
#include "ops/opencl/kernel_backend.h"

namespace terrace::ops {
namespace {

using Made = absl::StatusOr<Chip>;

Made OpenGpu(const ChipOptions& options, absl::StatusOr<std::unique_ptr<device::Device>> device) {
  RETURN_IF_ERROR(device.status());
  Chip chip;
  chip.device = *std::move(device);
  ASSIGN_OR_RETURN(chip.backend,
                   CreateKernelBackend(chip.device.get(), {options.deterministic,
                                                           options.library_rows, options.tell}));
  return chip;
}

device::CudaOptions GpuOptions(const ChipOptions& options) {
  device::CudaOptions gpu;
  gpu.ordinal = options.ordinal;
  gpu.memory_bytes = options.memory_bytes;
  gpu.cache_folder = options.cache_folder;
  gpu.graphs = options.graphs;
  gpu.tell = options.tell;
  return gpu;
}

Made OpenCuda(const ChipOptions& options, std::unique_ptr<Backend>*) {
  return OpenGpu(options, device::CreateCudaDevice(GpuOptions(options)));
}
Made OpenHip(const ChipOptions& options, std::unique_ptr<Backend>*) {
  return OpenGpu(options, device::CreateHipDevice(GpuOptions(options)));
}
Made OpenMusa(const ChipOptions& options, std::unique_ptr<Backend>*) {
  return OpenGpu(options, device::CreateMusaDevice(GpuOptions(options)));
}

Made OpenAscend(const ChipOptions& options, std::unique_ptr<Backend>* host) {
  device::AscendOptions npu;
  npu.ordinal = options.ordinal;
  npu.memory_bytes = options.memory_bytes;
  ASSIGN_OR_RETURN(std::unique_ptr<device::DriverDevice> device, device::CreateAscendDevice(npu));
  Chip chip;
  ASSIGN_OR_RETURN(chip.backend, CreateAscendBackend(device.get(), std::move(*host)));
  chip.device = std::move(device);
  chip.note = kAscendNote;
  return chip;
}

Made OpenCambricon(const ChipOptions& options, std::unique_ptr<Backend>* host) {
  device::CambriconOptions npu;
  npu.ordinal = options.ordinal;
  npu.memory_bytes = options.memory_bytes;
  ASSIGN_OR_RETURN(std::unique_ptr<device::DriverDevice> device,
                   device::CreateCambriconDevice(npu));
  Chip chip;
  ASSIGN_OR_RETURN(CambriconBackend made,
                   CreateCambriconBackend(device.get(), std::move(*host),
                                          {.library = options.unproven_operators}));
  chip.backend = std::move(made.backend);
  chip.note = std::move(made.note);
  chip.device = std::move(device);
  return chip;
}

// Tried in this order. `open` takes `host` over only where it found a chip.
struct Maker {
  ChipKind kind;
  Made (*open)(const ChipOptions& options, std::unique_ptr<Backend>* host);
};
constexpr Maker kMakers[] = {
    {ChipKind::kGpu, OpenCuda},   {ChipKind::kGpu, OpenHip},       {ChipKind::kGpu, OpenMusa},
    {ChipKind::kNpu, OpenAscend}, {ChipKind::kNpu, OpenCambricon},
};

}  // namespace

absl::StatusOr<Chip> OpenChip(ChipKind kind, const ChipOptions& options,
                              std::unique_ptr<Backend> host) {
  std::string why;
  for (const Maker& maker : kMakers) {
    if (maker.kind != kind) continue;
    absl::StatusOr<Chip> chip = maker.open(options, &host);
    if (!absl::IsNotFound(chip.status())) return chip;
    why += fmt::format("{}{}", why.empty() ? "" : "; ", Message(chip.status()));
  }
  return absl::NotFoundError(why);
}

}  // namespace terrace::ops
