#include "device/driver_device.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/digest.h"
#include "base/status.h"
#include "base/units.h"
#include "device/driver_memory.h"
#include "device/driver_queue.h"
#include "device/driver_stream.h"
#include "device/kernel_cache.h"

namespace terrace::device {

struct DriverDevice::State {
  State(DriverDeviceOptions given, std::unique_ptr<DriverApi> calls,
        std::unique_ptr<DriverCompiler> kernels)
      : options(std::move(given)),
        info(options.info),
        api(std::move(calls)),
        compiler(std::move(kernels)),
        cache(options.cache_folder) {}
  // Whatever is still loaded goes before the memory, and both before the driver.
  ~State() {
    if (!api->Enter().ok()) return;
    absl::MutexLock lock(&mutex);
    for (const auto& [digest, module] : modules) api->UnloadModule(module);
  }

  QueueParts parts() {
    QueueParts parts{api.get(), memory.get(), &counters, info.max_group_items, options.graphs};
    parts.tell = [this](const std::string& what) { Tell(what); };
    if (options.matrices != nullptr) parts.matrices = [this] { return Matrices(); };
    return parts;
  }
  absl::StatusOr<const MatrixCalls*> Matrices() {
    absl::MutexLock lock(&mutex);
    if (!matrices.has_value()) matrices = options.matrices();
    RETURN_IF_ERROR(matrices->status());
    return &**matrices;
  }
  void Tell(const std::string& what) {
    if (options.tell == nullptr) return;
    {
      absl::MutexLock lock(&mutex);
      if (!told.insert(what).second) return;
    }
    options.tell(what);
  }

  const DriverDeviceOptions options;
  DeviceInfo info;
  const std::unique_ptr<DriverApi> api;
  const std::unique_ptr<DriverCompiler> compiler;
  const KernelCache cache;
  CopyCounters counters;
  std::unique_ptr<DriverMemory> memory;
  absl::Mutex mutex;
  std::map<std::string, void*> modules ABSL_GUARDED_BY(mutex);  // by digest
  std::set<std::string> told ABSL_GUARDED_BY(mutex);
  std::optional<absl::StatusOr<MatrixCalls>> matrices ABSL_GUARDED_BY(mutex);  // once opened
};

DriverDevice::DriverDevice(std::unique_ptr<State> state) : state_(std::move(state)) {}
DriverDevice::~DriverDevice() = default;

absl::StatusOr<std::unique_ptr<DriverDevice>> DriverDevice::Create(
    DriverDeviceOptions options, std::unique_ptr<DriverApi> api,
    std::unique_ptr<DriverCompiler> compiler) {
  std::unique_ptr<DriverDevice> device(new DriverDevice(
      std::make_unique<State>(std::move(options), std::move(api), std::move(compiler))));
  device->state_->info.alignment = DriverMemory::kAlignment;
  device->state_->info.granularity = DriverMemory::kAlignment;
  RETURN_IF_ERROR(device->TakeMemory());
  State& s = *device->state_;
  if (s.options.graphs && s.compiler != nullptr && !s.api->HasGraphs()) {
    s.Tell("kernels are launched one by one: the driver has no graphs of launches");
  }
  return device;
}

absl::Status DriverDevice::TakeMemory() {
  State& s = *state_;
  RETURN_IF_ERROR(s.api->Enter());
  ASSIGN_OR_RETURN(const DriverApi::Room room, s.api->GetRoom());
  uint64_t bytes = s.options.memory_bytes;
  if (bytes == 0) bytes = room.free_bytes - std::min(room.free_bytes, s.options.driver_bytes);
  bytes &= ~(DriverMemory::kAlignment - 1);
  if (bytes == 0 || bytes > room.free_bytes || room.free_bytes - bytes < DriverMemory::kAlignment) {
    return absl::ResourceExhaustedError(fmt::format("{} of device memory asked for; {} has {} free",
                                                    FormatBytes(bytes), s.info.description,
                                                    FormatBytes(room.free_bytes)));
  }
  ASSIGN_OR_RETURN(s.memory,
                   DriverMemory::Create(s.api.get(), s.info.name, bytes, s.options.arena));
  s.info.memory_bytes = s.memory->bytes();
  return absl::OkStatus();
}

const DeviceInfo& DriverDevice::info() const { return state_->info; }
const DriverApi& DriverDevice::api() const { return *state_->api; }

absl::StatusOr<std::byte*> DriverDevice::Allocate(uint64_t bytes) {
  return state_->memory->Allocate(bytes);
}

void DriverDevice::Free(std::byte* data, uint64_t) { state_->memory->Free(data); }

MemoryInfo DriverDevice::GetMemoryInfo() const {
  const uint64_t allocated = state_->memory->allocated();
  return {state_->info.memory_bytes, state_->info.memory_bytes - allocated, allocated};
}

absl::StatusOr<std::unique_ptr<CollectiveLibrary>> DriverDevice::OpenCollectives() const {
  if (state_->options.collectives == nullptr) {
    return absl::NotFoundError(
        fmt::format("there is no library for sums over chips like {}", state_->info.description));
  }
  ASSIGN_OR_RETURN(CollectiveCalls calls, state_->options.collectives());
  return MakeCollectiveLibrary(state_->api.get(), std::move(calls));
}

absl::StatusOr<void*> DriverDevice::CreateDriverStream() const {
  RETURN_IF_ERROR(state_->api->Enter());
  return state_->api->CreateStream();
}

absl::StatusOr<std::unique_ptr<Stream>> DriverDevice::CreateStream() {
  ASSIGN_OR_RETURN(void* stream, CreateDriverStream());
  return std::unique_ptr<Stream>(
      std::make_unique<DriverStream>(std::make_unique<ApiQueue>(state_->parts(), stream)));
}

absl::StatusOr<std::unique_ptr<Event>> DriverDevice::CreateEvent() {
  return std::unique_ptr<Event>(std::make_unique<DriverEvent>());
}

bool DriverDevice::Pin(std::span<std::byte> memory) {
  return state_->api->Enter().ok() && state_->api->Pin(memory);
}

void DriverDevice::Unpin(std::span<std::byte> memory) {
  if (state_->api->Enter().ok()) state_->api->Unpin(memory);
}

absl::StatusOr<Telemetry> DriverDevice::ReadTelemetry() {
  Telemetry telemetry;
  if (state_->options.sensors != nullptr) telemetry = state_->options.sensors->Read();
  telemetry.copied_to_device_bytes = state_->counters.to_device;
  telemetry.copied_to_host_bytes = state_->counters.to_host;
  telemetry.copied_on_device_bytes = state_->counters.on_device;
  return telemetry;
}

absl::StatusOr<void*> DriverDevice::ModuleOf(const KernelSource& source) {
  State& s = *state_;
  const std::string identity = s.compiler->Identity();
  const std::string_view parts[] = {identity, source.defines, source.source};
  const std::string digest = DigestParts(parts).Hex();
  absl::MutexLock lock(&s.mutex);
  if (auto found = s.modules.find(digest); found != s.modules.end()) return found->second;
  absl::StatusOr<void*> module = absl::NotFoundError("not kept");
  if (std::optional<std::string> kept = s.cache.Load(digest); kept.has_value()) {
    module = s.api->LoadModule(*kept);  // one that the driver no longer takes is made anew
  }
  if (!module.ok()) {
    absl::StatusOr<std::string> image = s.compiler->Compile(source.source, source.defines);
    if (!image.ok()) return WithContext(image.status(), fmt::format("kernel {}", source.name));
    module = s.api->LoadModule(*image);
    RETURN_IF_ERROR(module.status());
    s.cache.Store(digest, *image);
  }
  s.modules.emplace(digest, *module);
  return module;
}

absl::StatusOr<std::unique_ptr<Kernel>> DriverDevice::CreateKernel(const KernelSource& source) {
  if (source.source.empty() || state_->compiler == nullptr) {
    return absl::UnimplementedError(
        fmt::format("{}: kernel {} has no source, or there is no compiler for it",
                    state_->info.name, source.name));
  }
  RETURN_IF_ERROR(state_->api->Enter());
  ASSIGN_OR_RETURN(void* module, ModuleOf(source));
  ASSIGN_OR_RETURN(void* function, state_->api->GetFunction(module, source.name));
  return std::unique_ptr<Kernel>(std::make_unique<DriverKernel>(function));
}

}  // namespace terrace::device
