#include "device/opencl/opencl_device.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "base/status.h"
#include "base/units.h"
#include "device/driver_stream.h"
#include "device/opencl/opencl_memory.h"
#include "device/opencl/opencl_program.h"
#include "device/opencl/opencl_queue.h"

namespace terrace::device {
namespace {

struct Found {
  cl::DeviceId id = nullptr;
  OpenClDeviceName name;
};

template <typename Get>
std::string Text(Get get) {
  size_t bytes = 0;
  if (get(0, nullptr, &bytes) != cl::kSuccess || bytes == 0) return "";
  std::string text(bytes, '\0');
  if (get(bytes, text.data(), nullptr) != cl::kSuccess) return "";
  text.resize(std::min(text.find('\0'), text.size()));
  return text;
}

std::string DeviceText(const cl::Api& api, cl::DeviceId id, cl::Uint what) {
  return Text([&](size_t bytes, void* to, size_t* need) {
    return api.GetDeviceInfo(id, what, bytes, to, need);
  });
}

template <typename T>
T DeviceNumber(const cl::Api& api, cl::DeviceId id, cl::Uint what) {
  T value = 0;
  if (api.GetDeviceInfo(id, what, sizeof(value), &value, nullptr) != cl::kSuccess) return 0;
  return value;
}

absl::StatusOr<std::vector<Found>> FindDevices(const cl::Api& api) {
  std::vector<Found> all;
  cl::Uint platforms = 0;
  cl::Int code = api.GetPlatformIDs(0, nullptr, &platforms);
  if (code == cl::kPlatformNotFound || (code == cl::kSuccess && platforms == 0)) return all;
  RETURN_IF_ERROR(cl::ToStatus(code, "clGetPlatformIDs"));
  std::vector<cl::Platform> platform_ids(platforms);
  RETURN_IF_ERROR(cl::ToStatus(api.GetPlatformIDs(platforms, platform_ids.data(), nullptr),
                               "clGetPlatformIDs"));
  for (cl::Platform platform : platform_ids) {
    cl::Uint count = 0;
    code = api.GetDeviceIDs(platform, cl::kDeviceTypeAll, 0, nullptr, &count);
    if (code == cl::kDeviceNotFound || (code == cl::kSuccess && count == 0)) continue;
    RETURN_IF_ERROR(cl::ToStatus(code, "clGetDeviceIDs"));
    std::vector<cl::DeviceId> ids(count);
    RETURN_IF_ERROR(
        cl::ToStatus(api.GetDeviceIDs(platform, cl::kDeviceTypeAll, count, ids.data(), nullptr),
                     "clGetDeviceIDs"));
    const std::string platform_name = Text([&](size_t bytes, void* to, size_t* need) {
      return api.GetPlatformInfo(platform, cl::kPlatformName, bytes, to, need);
    });
    for (cl::DeviceId id : ids) {
      Found found;
      found.id = id;
      found.name.platform = platform_name;
      found.name.device = DeviceText(api, id, cl::kDeviceName);
      found.name.version = DeviceText(api, id, cl::kDeviceVersion);
      found.name.memory_bytes = DeviceNumber<uint64_t>(api, id, cl::kDeviceGlobalMemSize);
      found.name.cpu = (DeviceNumber<uint64_t>(api, id, cl::kDeviceType) & cl::kDeviceTypeCpu) != 0;
      all.push_back(std::move(found));
    }
  }
  return all;
}

absl::StatusOr<Found> Choose(const std::vector<Found>& all, const std::string& wanted) {
  if (all.empty()) {
    return absl::NotFoundError(
        "OpenCL knows no device on this machine: its driver is missing (for the CPU, Debian's "
        "package is pocl-opencl-icd)");
  }
  if (wanted.empty()) {
    for (const Found& found : all) {
      if (!found.name.cpu) return found;
    }
    return all.front();
  }
  size_t number = 0;
  const char* end = wanted.data() + wanted.size();
  const auto [at, error] = std::from_chars(wanted.data(), end, number);
  if (error == std::errc() && at == end && number < all.size()) return all[number];
  std::string names;
  for (const Found& found : all) {
    if (found.name.device.find(wanted) != std::string::npos ||
        found.name.platform.find(wanted) != std::string::npos) {
      return found;
    }
    names += fmt::format("{}'{}'", names.empty() ? "" : ", ", found.name.device);
  }
  return absl::NotFoundError(fmt::format("OpenCL has no device '{}'; it knows {}", wanted, names));
}

constexpr const char* kStandard = "-cl-std=CL1.2";

class OpenClDevice final : public Device {
 public:
  OpenClDevice(const cl::Api& api, const OpenClOptions& options) : api_(api), options_(options) {}
  ~OpenClDevice() override {
    programs_.reset();
    memory_.reset();
    if (context_ != nullptr) api_.ReleaseContext(context_);
  }

  absl::Status Open() {
    ASSIGN_OR_RETURN(const std::vector<Found> all, FindDevices(api_));
    ASSIGN_OR_RETURN(const Found found, Choose(all, options_.device));
    id_ = found.id;
    cl::Int code = cl::kSuccess;
    cl::Context context = api_.CreateContext(nullptr, 1, &id_, nullptr, nullptr, &code);
    RETURN_IF_ERROR(cl::ToStatus(code, "clCreateContext"));
    context_ = context;
    info_.name = options_.name;
    info_.kind = "opencl";
    info_.description = fmt::format("{} ({})", found.name.device, found.name.platform);
    info_.alignment = cl::kAlignment;
    info_.granularity = cl::kAlignment;
    info_.vector_items = found.name.cpu && !options_.scalar_items;
    info_.tile_product = !info_.vector_items && options_.tile_product;
    info_.max_group_items = static_cast<uint32_t>(
        std::min<uint64_t>(DeviceNumber<size_t>(api_, id_, cl::kDeviceMaxWorkGroupSize), 1 << 20));
    RETURN_IF_ERROR(TakeMemory(found.name));
    const std::string identity =
        fmt::format("{}\n{}\n{}\n{}", found.name.platform, found.name.device, found.name.version,
                    DeviceText(api_, id_, cl::kDriverVersion));
    std::string options = info_.vector_items ? " -DVECTOR_ITEMS=1" : "";
    if (options_.wide_tiles) options += " -DEMULATE_WIDE_TILES=1";
    const auto make = [&](const std::string& more) {
      programs_ = std::make_unique<cl::Programs>(&api_, context_, id_, identity,
                                                 options_.cache_folder, more + options);
    };
    const std::string subgroups = Subgroups();
    if (!subgroups.empty()) {
      make(subgroups);
      absl::StatusOr<cl::KernelHandle> probe = programs_->CreateKernel(cl::Programs::Probe());
      if (probe.ok()) {
        api_.ReleaseKernel(*probe);
        return absl::OkStatus();
      }
    }
    make(kStandard);
    return absl::OkStatus();
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
    cl::Int code = cl::kSuccess;
    cl::Queue queue = api_.CreateCommandQueue(context_, id_, 0, &code);
    RETURN_IF_ERROR(cl::ToStatus(code, "clCreateCommandQueue"));
    return std::unique_ptr<Stream>(
        std::make_unique<DriverStream>(std::make_unique<cl::OpenClQueue>(shared(), queue)));
  }
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override {
    return std::unique_ptr<Event>(std::make_unique<DriverEvent>());
  }
  absl::StatusOr<std::unique_ptr<Kernel>> CreateKernel(const KernelSource& source) override {
    if (source.source.empty()) {
      return absl::UnimplementedError(
          fmt::format("{}: kernel {} has no source", info_.name, source.name));
    }
    ASSIGN_OR_RETURN(cl::KernelHandle kernel, programs_->CreateKernel(source));
    cl::Uint parameters = 0;
    const cl::Int code =
        api_.GetKernelInfo(kernel, cl::kKernelNumArgs, sizeof(parameters), &parameters, nullptr);
    auto owned = std::make_unique<cl::OpenClKernel>(&api_, kernel, parameters);
    RETURN_IF_ERROR(cl::ToStatus(code, "clGetKernelInfo"));
    return std::unique_ptr<Kernel>(std::move(owned));
  }
  uint64_t KernelAddress(const std::byte* address) const override {
    const cl::Place place = memory_->At(address);
    return uint64_t{place.index} << 48 | place.offset;
  }

  absl::StatusOr<Telemetry> ReadTelemetry() override {
    Telemetry telemetry;
    telemetry.copied_to_device_bytes = counters_.to_device;
    telemetry.copied_to_host_bytes = counters_.to_host;
    telemetry.copied_on_device_bytes = counters_.on_device;
    return telemetry;
  }

 private:
  // The compiler's options for kernels with sub-groups; empty: without.
  std::string Subgroups() const {
    using Wanted = OpenClOptions::Subgroups;
    if (options_.subgroups == Wanted::kOff || info_.vector_items) return "";
    if (options_.subgroups == Wanted::kEmulated) {
      return std::string(kStandard) + " -DSUBGROUPS=1 -DSUBGROUP_BLOCKS=1 -DEMULATE_SUBGROUPS=1";
    }
    size_t sizes[16] = {};
    size_t bytes = 0;
    const bool known = api_.GetDeviceInfo(id_, cl::kDeviceSubGroupSizes, sizeof(sizes), sizes,
                                          &bytes) == cl::kSuccess;
    return SubgroupOptions(DeviceText(api_, id_, cl::kDeviceExtensions),
                           {sizes, known ? std::min(bytes, sizeof(sizes)) / sizeof(size_t) : 0},
                           DeviceText(api_, id_, cl::kDeviceOpenClCVersion));
  }
  absl::Status TakeMemory(const OpenClDeviceName& name) {
    const uint64_t reported = name.memory_bytes & ~(cl::kAlignment - 1);
    uint64_t bytes = options_.memory_bytes;
    if (bytes == 0) bytes = name.cpu ? reported / 2 : reported;
    bytes &= ~(cl::kAlignment - 1);
    uint64_t most = DeviceNumber<uint64_t>(api_, id_, cl::kDeviceMaxMemAllocSize);
    if (options_.buffer_bytes > 0) most = std::min(most, options_.buffer_bytes);
    most &= ~(cl::kAlignment - 1);
    if (bytes == 0 || bytes > reported || bytes > most * cl::kMaxBuffers) {
      return absl::ResourceExhaustedError(
          fmt::format("{} of device memory asked for; {} has {}, in at most {} buffers of {}",
                      FormatBytes(bytes), name.device, FormatBytes(reported), cl::kMaxBuffers,
                      FormatBytes(most)));
    }
    ASSIGN_OR_RETURN(memory_, cl::Memory::Create(&api_, context_, bytes, most));
    info_.memory_bytes = bytes;
    return absl::OkStatus();
  }

  cl::Shared shared() { return {&api_, memory_.get(), &counters_, info_.max_group_items}; }

  const cl::Api api_;
  const OpenClOptions options_;
  DeviceInfo info_;
  cl::DeviceId id_ = nullptr;
  cl::Context context_ = nullptr;
  cl::Counters counters_;
  std::unique_ptr<cl::Memory> memory_;
  std::unique_ptr<cl::Programs> programs_;
};

}  // namespace

std::string SubgroupOptions(std::string_view extensions, std::span<const size_t> sizes,
                            std::string_view c_version) {
  const auto has = [&](std::string_view name) {
    for (size_t at = extensions.find(name); at != std::string_view::npos;
         at = extensions.find(name, at + 1)) {
      const size_t end = at + name.size();
      if ((at == 0 || extensions[at - 1] == ' ') &&
          (end == extensions.size() || extensions[end] == ' ')) {
        return true;
      }
    }
    return false;
  };
  if (has("cl_intel_subgroups")) {
    std::string options =
        std::string(kStandard) + " -DSUBGROUPS=1 -DSUBGROUP_EXTENSION=cl_intel_subgroups";
    const bool of_16 = std::find(sizes.begin(), sizes.end(), 16) != sizes.end();
    if (of_16 && has("cl_intel_required_subgroup_size")) options += " -DSUBGROUP_BLOCKS=1";
    return options;
  }
  // Not in OpenCL C 1.2.
  if (!has("cl_khr_subgroups")) return "";
  for (const char* version : {"3.0", "2.0"}) {
    if (c_version.find(std::string("OpenCL C ") + version) != std::string_view::npos) {
      return std::string("-cl-std=CL") + version +
             " -DSUBGROUPS=1 -DSUBGROUP_EXTENSION=cl_khr_subgroups";
    }
  }
  return "";
}

absl::StatusOr<std::vector<OpenClDeviceName>> ListOpenClDevices() {
  ASSIGN_OR_RETURN(const cl::Api api, cl::LoadApi());
  ASSIGN_OR_RETURN(const std::vector<Found> all, FindDevices(api));
  std::vector<OpenClDeviceName> names;
  for (const Found& found : all) names.push_back(found.name);
  return names;
}

absl::StatusOr<std::unique_ptr<Device>> CreateOpenClDevice(const OpenClOptions& options) {
  ASSIGN_OR_RETURN(const cl::Api api, cl::LoadApi());
  return CreateOpenClDevice(options, api);
}

absl::StatusOr<std::unique_ptr<Device>> CreateOpenClDevice(const OpenClOptions& options,
                                                           const cl::Api& api) {
  auto device = std::make_unique<OpenClDevice>(api, options);
  RETURN_IF_ERROR(device->Open());
  return std::unique_ptr<Device>(std::move(device));
}

}  // namespace terrace::device
