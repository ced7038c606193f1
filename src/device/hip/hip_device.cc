#include "device/hip/hip_device.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/status.h"
#include "device/cuda/nccl.h"
#include "device/hip/hip_prelude.h"
#include "device/hip/hipblas.h"
#include "device/hip/rocm_smi.h"
#include "device/shared_library.h"

namespace terrace::device {
namespace hip {
namespace {

using cuda::Ordinal;
using cuda::Result;

// hipDeviceProp_t as the symbol with the suffix R0600 fills it.
constexpr size_t kPropertiesBytes = 1472;
constexpr size_t kNameAt = 0;
constexpr size_t kArchitectureAt = 1160;
constexpr size_t kTextBytes = 256;

using GetProperties = Result (*)(void*, int);

// A text of a device's properties.
std::function<Result(char*, size_t, Ordinal)> Text(GetProperties get, size_t at) {
  return [get, at](char* to, size_t bytes, Ordinal device) -> Result {
    std::vector<char> properties(2 * kPropertiesBytes);  // later releases may fill more
    if (const Result code = get(properties.data(), device); code != cuda::kSuccess) return code;
    const size_t length = ::strnlen(properties.data() + at, std::min(kTextBytes, bytes) - 1);
    std::memcpy(to, properties.data() + at, length);
    to[length] = '\0';
    return cuda::kSuccess;
  };
}

}  // namespace

absl::StatusOr<cuda::Driver> LoadDriver(const std::string& library) {
  std::vector<std::string> names = {"libamdhip64.so.7",  "libamdhip64.so.6", "libamdhip64.so.5",
                                    "libgalaxyhip.so.5", "libamdhip64.so",   "libgalaxyhip.so"};
  if (!library.empty()) names = {library};
  ASSIGN_OR_RETURN(const SharedLibrary opened, SharedLibrary::Open("HIP", names));
  cuda::Driver d;
  d.maker = "HIP";
  d.attributes.max_threads_per_block = 56;
  d.attributes.virtual_memory = 89;
  d.tile_product_architectures = {"gfx90a", "gfx940", "gfx941", "gfx942", "gfx950"};
  const char* missing = nullptr;
  const auto get = [&]<typename F>(const char* name, F* function) {
    *function = reinterpret_cast<F>(opened.Find(name));
    if (*function == nullptr && missing == nullptr) missing = name;
  };
  const char* (*error_string)(Result) = nullptr;
  GetProperties properties = nullptr;
  get("hipInit", &d.Init);
  get("hipGetErrorString", &error_string);
  get("hipGetDeviceCount", &d.DeviceGetCount);
  get("hipDeviceGet", &d.DeviceGet);
  get("hipGetDevicePropertiesR0600", &properties);
  get("hipDeviceGetAttribute", &d.DeviceGetAttribute);
  get("hipSetDevice", &d.SetDevice);
  get("hipMemGetInfo", &d.MemGetInfo);
  get("hipMalloc", &d.MemAlloc);
  get("hipFree", &d.MemFree);
  get("hipMemcpyHtoDAsync", &d.MemcpyHtoDAsync);
  get("hipMemcpyDtoHAsync", &d.MemcpyDtoHAsync);
  get("hipMemcpyDtoDAsync", &d.MemcpyDtoDAsync);
  get("hipStreamCreateWithFlags", &d.StreamCreate);
  get("hipStreamDestroy", &d.StreamDestroy);
  get("hipStreamSynchronize", &d.StreamSynchronize);
  get("hipStreamWaitEvent", &d.StreamWaitEvent);
  get("hipEventCreateWithFlags", &d.EventCreate);
  get("hipEventDestroy", &d.EventDestroy);
  get("hipEventRecord", &d.EventRecord);
  get("hipEventQuery", &d.EventQuery);
  get("hipEventSynchronize", &d.EventSynchronize);
  get("hipModuleLoadData", &d.ModuleLoadData);
  get("hipModuleUnload", &d.ModuleUnload);
  get("hipModuleGetFunction", &d.ModuleGetFunction);
  get("hipModuleLaunchKernel", &d.LaunchKernel);
  if (missing != nullptr) {
    return absl::FailedPreconditionError(fmt::format("the HIP runtime lacks {}", missing));
  }
  cuda::LoadOptional(
      [&](const char* name) {
        // The runtime's names for what concerns host memory.
        const std::string_view given(name);
        if (given == "MemHostRegister") return opened.Find("hipHostRegister");
        if (given == "MemHostUnregister") return opened.Find("hipHostUnregister");
        return opened.Find("hip" + std::string(name));
      },
      &d);
  d.GetErrorString = [error_string](Result code, const char** text) -> Result {
    *text = error_string(code);
    return cuda::kSuccess;
  };
  d.DeviceGetName = [name = Text(properties, kNameAt)](char* to, int bytes, Ordinal device) {
    return name(to, static_cast<size_t>(bytes), device);
  };
  d.DeviceArchitecture = Text(properties, kArchitectureAt);
  return d;
}

absl::StatusOr<CollectiveCalls> LoadRccl(const std::string& library) {
  cuda::NcclNames names{"RCCL", "nccl", {"librccl.so.1", "librccl.so"}};
  if (!library.empty()) names.libraries = {library};
  return cuda::LoadNccl(names);
}

cuda::CompilerMaker Hiprtc() {
  return {"hiprtc",
          "hiprtc",
          {"libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5", "libhiprtc.so"},
          "GetCode",
          kPrelude,
          "--offload-arch=",
          {"-std=c++17", "-O3", "-ffp-contract=off"}};
}

}  // namespace hip

absl::StatusOr<std::unique_ptr<Device>> CreateHipDevice(CudaOptions options) {
  options.kind = "hip";
  options.sensors = [](const std::string& pci_bus_id) { return hip::OpenRocmSmi(pci_bus_id); };
  options.collectives = [] { return hip::LoadRccl(); };
  options.matrices = [] { return hip::LoadHipblas(); };
  ASSIGN_OR_RETURN(const cuda::Driver driver, hip::LoadDriver());
  ASSIGN_OR_RETURN(std::unique_ptr<cuda::Compiler> compiler, cuda::Compiler::Open(hip::Hiprtc()));
  return CreateCudaDevice(options, driver, std::move(compiler));
}

}  // namespace terrace::device
