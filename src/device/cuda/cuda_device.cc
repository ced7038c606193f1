#include "device/cuda/cuda_device.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/digest.h"
#include "base/status.h"
#include "base/units.h"
#include "device/cuda/cuda_prelude.h"
#include "device/cuda/cuda_queue.h"
#include "device/kernel_cache.h"

namespace terrace::device {
namespace {

constexpr uint64_t kAlignment = 4096;
// Left to the driver, for its own needs and for kernels' code.
constexpr uint64_t kDriverBytes = uint64_t{512} << 20;

class CudaDevice final : public Device {
 public:
  CudaDevice(const CudaOptions& options, const cuda::Driver& driver,
             std::unique_ptr<cuda::Compiler> compiler)
      : options_(options),
        driver_(driver),
        compiler_(std::move(compiler)),
        cache_(options.cache_folder) {}
  ~CudaDevice() override {
    if (context_ == nullptr) return;
    driver_.CtxSetCurrent(context_);
    {
      absl::MutexLock lock(&mutex_);
      for (const auto& [digest, module] : modules_) driver_.ModuleUnload(module);
    }
    if (base_ != 0) driver_.MemFree(base_);
    driver_.DevicePrimaryCtxRelease(ordinal_);
  }

  absl::Status Open() {
    RETURN_IF_ERROR(Check(driver_.Init(0), "cuInit"));
    int count = 0;
    RETURN_IF_ERROR(Check(driver_.DeviceGetCount(&count), "cuDeviceGetCount"));
    if (options_.ordinal < 0 || options_.ordinal >= count) {
      return absl::NotFoundError(
          fmt::format("there is no CUDA device {}: the driver has {}", options_.ordinal, count));
    }
    RETURN_IF_ERROR(Check(driver_.DeviceGet(&ordinal_, options_.ordinal), "cuDeviceGet"));
    char name[256] = {};
    RETURN_IF_ERROR(
        Check(driver_.DeviceGetName(name, sizeof(name) - 1, ordinal_), "cuDeviceGetName"));
    int major = 0, minor = 0, items = 0;
    RETURN_IF_ERROR(Attribute(cuda::kMajorCapability, &major));
    RETURN_IF_ERROR(Attribute(cuda::kMinorCapability, &minor));
    RETURN_IF_ERROR(Attribute(cuda::kMaxThreadsPerBlock, &items));
    architecture_ = fmt::format("sm_{}{}", major, minor);
    cuda::ContextHandle context = nullptr;
    RETURN_IF_ERROR(
        Check(driver_.DevicePrimaryCtxRetain(&context, ordinal_), "cuDevicePrimaryCtxRetain"));
    context_ = context;
    info_.name = options_.name;
    info_.kind = "cuda";
    info_.description = fmt::format("{} ({})", name, architecture_);
    info_.alignment = kAlignment;
    info_.granularity = kAlignment;
    info_.max_group_items = static_cast<uint32_t>(items);
    return TakeMemory();
  }

  const DeviceInfo& info() const override { return info_; }
  absl::StatusOr<std::byte*> Allocate(uint64_t bytes) override {
    return memory_->Allocate(bytes, info_.name);
  }
  void Free(std::byte* data, uint64_t) override { memory_->Free(data); }
  MemoryInfo GetMemoryInfo() const override {
    const uint64_t allocated = memory_->allocated();
    return {info_.memory_bytes, info_.memory_bytes - allocated, allocated};
  }

  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override {
    RETURN_IF_ERROR(shared().Enter());
    cuda::StreamHandle stream = nullptr;
    RETURN_IF_ERROR(Check(driver_.StreamCreate(&stream, cuda::kNonBlocking), "cuStreamCreate"));
    return std::unique_ptr<Stream>(
        std::make_unique<DriverStream>(std::make_unique<cuda::CudaQueue>(shared(), stream)));
  }
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override {
    return std::unique_ptr<Event>(std::make_unique<DriverEvent>());
  }
  absl::StatusOr<std::unique_ptr<Kernel>> CreateKernel(const KernelSource& source) override;

  absl::StatusOr<Telemetry> ReadTelemetry() override {
    Telemetry telemetry;
    telemetry.copied_to_device_bytes = counters_.to_device;
    telemetry.copied_to_host_bytes = counters_.to_host;
    telemetry.copied_on_device_bytes = counters_.on_device;
    return telemetry;
  }

 private:
  absl::Status Check(cuda::Result code, const char* call) const {
    return cuda::ToStatus(driver_, code, call);
  }
  absl::Status Attribute(int attribute, int* value) const {
    return Check(driver_.DeviceGetAttribute(value, attribute, ordinal_), "cuDeviceGetAttribute");
  }
  cuda::Shared shared() {
    return {&driver_, context_, memory_.get(), &counters_, info_.max_group_items};
  }

  absl::Status TakeMemory() {
    RETURN_IF_ERROR(shared().Enter());
    size_t free = 0, total = 0;
    RETURN_IF_ERROR(Check(driver_.MemGetInfo(&free, &total), "cuMemGetInfo"));
    uint64_t bytes = options_.memory_bytes;
    if (bytes == 0) bytes = free - std::min<uint64_t>(free, kDriverBytes);
    bytes &= ~(kAlignment - 1);
    // The driver aligns to less than we do.
    if (bytes == 0 || bytes > free || free - bytes < kAlignment) {
      return absl::ResourceExhaustedError(
          fmt::format("{} of device memory asked for; {} has {} free", FormatBytes(bytes),
                      info_.description, FormatBytes(free)));
    }
    RETURN_IF_ERROR(Check(driver_.MemAlloc(&base_, bytes + kAlignment), "cuMemAlloc"));
    memory_ = std::make_unique<cuda::Memory>(AlignUp(base_, kAlignment), bytes);
    info_.memory_bytes = bytes;
    return absl::OkStatus();
  }

  absl::StatusOr<cuda::ModuleHandle> ModuleLocked(const KernelSource& source)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const CudaOptions options_;
  const cuda::Driver driver_;
  const std::unique_ptr<cuda::Compiler> compiler_;
  const KernelCache cache_;
  DeviceInfo info_;
  std::string architecture_;
  cuda::Ordinal ordinal_ = 0;
  cuda::ContextHandle context_ = nullptr;
  cuda::Address base_ = 0;
  cuda::Counters counters_;
  std::unique_ptr<cuda::Memory> memory_;
  absl::Mutex mutex_;
  std::map<std::string, cuda::ModuleHandle> modules_ ABSL_GUARDED_BY(mutex_);  // by digest
};

absl::StatusOr<cuda::ModuleHandle> CudaDevice::ModuleLocked(const KernelSource& source) {
  const std::string compiler = fmt::format("nvrtc {}", compiler_->major_version());
  const std::string_view parts[] = {architecture_, compiler, source.defines, cuda::kPrelude,
                                    source.source};
  const std::string digest = DigestParts(parts).Hex();
  if (auto found = modules_.find(digest); found != modules_.end()) return found->second;
  cuda::ModuleHandle module = nullptr;
  if (std::optional<std::string> kept = cache_.Load(digest); kept.has_value()) {
    // One that the driver no longer takes is made anew.
    if (driver_.ModuleLoadData(&module, kept->data()) != cuda::kSuccess) module = nullptr;
  }
  if (module == nullptr) {
    absl::StatusOr<cuda::MachineCode> code =
        compiler_->Compile(source.source, source.defines, architecture_);
    if (!code.ok()) return WithContext(code.status(), fmt::format("kernel {}", source.name));
    RETURN_IF_ERROR(Check(driver_.ModuleLoadData(&module, code->image.data()), "cuModuleLoadData"));
    cache_.Store(digest, code->image);
  }
  modules_.emplace(digest, module);
  return module;
}

absl::StatusOr<std::unique_ptr<Kernel>> CudaDevice::CreateKernel(const KernelSource& source) {
  if (source.source.empty() || compiler_ == nullptr) {
    return absl::UnimplementedError(fmt::format(
        "{}: kernel {} has no source, or there is no compiler for it", info_.name, source.name));
  }
  RETURN_IF_ERROR(shared().Enter());
  absl::MutexLock lock(&mutex_);
  ASSIGN_OR_RETURN(cuda::ModuleHandle module, ModuleLocked(source));
  cuda::FunctionHandle function = nullptr;
  const cuda::Result code = driver_.ModuleGetFunction(&function, module, source.name.c_str());
  if (code == cuda::kNotFound) {
    return absl::InvalidArgumentError(fmt::format("the source has no kernel {}", source.name));
  }
  RETURN_IF_ERROR(Check(code, "cuModuleGetFunction"));
  return std::unique_ptr<Kernel>(std::make_unique<cuda::CudaKernel>(function));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(const CudaOptions& options) {
  ASSIGN_OR_RETURN(const cuda::Driver driver, cuda::LoadDriver());
  ASSIGN_OR_RETURN(std::unique_ptr<cuda::Compiler> compiler, cuda::Compiler::Open());
  return CreateCudaDevice(options, driver, std::move(compiler));
}

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(const CudaOptions& options,
                                                         const cuda::Driver& driver,
                                                         std::unique_ptr<cuda::Compiler> compiler) {
  auto device = std::make_unique<CudaDevice>(options, driver, std::move(compiler));
  RETURN_IF_ERROR(device->Open());
  return std::unique_ptr<Device>(std::move(device));
}

}  // namespace terrace::device
