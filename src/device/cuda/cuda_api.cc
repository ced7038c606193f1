#include "device/cuda/cuda_api.h"

#include <string_view>

#include <fmt/format.h>

#include "base/status.h"
#include "device/shared_library.h"

namespace terrace::device::cuda {

absl::StatusOr<Driver> LoadDriver(const std::string& library) {
  DriverNames names{"CUDA", "cu", {"libcuda.so.1", "libcuda.so"}};
  if (!library.empty()) names.libraries = {library};
  ASSIGN_OR_RETURN(Driver driver, LoadDriver(names));
  driver.tile_product_from = 8;
  return driver;
}

absl::StatusOr<Driver> LoadDriver(const DriverNames& names) {
  ASSIGN_OR_RETURN(const SharedLibrary library, SharedLibrary::Open(names.maker, names.libraries));
  Driver driver;
  driver.maker = names.maker;
  std::string missing;
  const auto get = [&]<typename F>(const char* name, F* function) {
    const std::string full = names.prefix + std::string(name);
    void* found = library.Find(full);
    if (found == nullptr && names.suffixes_may_lack && full.ends_with("_v2")) {
      found = library.Find(full.substr(0, full.size() - 3));
    }
    *function = reinterpret_cast<F>(found);
    if (found == nullptr && missing.empty()) missing = full;
  };
  Result (*error_string)(Result, const char**) = nullptr;
  Result (*device_name)(char*, int, Ordinal) = nullptr;
  get("GetErrorString", &error_string);
  get("DeviceGetName", &device_name);
  get("Init", &driver.Init);
  get("DeviceGetCount", &driver.DeviceGetCount);
  get("DeviceGet", &driver.DeviceGet);
  get("DeviceGetAttribute", &driver.DeviceGetAttribute);
  get("DevicePrimaryCtxRetain", &driver.DevicePrimaryCtxRetain);
  get("DevicePrimaryCtxRelease_v2", &driver.DevicePrimaryCtxRelease);
  get("CtxSetCurrent", &driver.CtxSetCurrent);
  get("MemGetInfo_v2", &driver.MemGetInfo);
  get("MemAlloc_v2", &driver.MemAlloc);
  get("MemFree_v2", &driver.MemFree);
  get("MemcpyHtoDAsync_v2", &driver.MemcpyHtoDAsync);
  get("MemcpyDtoHAsync_v2", &driver.MemcpyDtoHAsync);
  get("MemcpyDtoDAsync_v2", &driver.MemcpyDtoDAsync);
  get("StreamCreate", &driver.StreamCreate);
  get("StreamDestroy_v2", &driver.StreamDestroy);
  get("StreamSynchronize", &driver.StreamSynchronize);
  get("StreamWaitEvent", &driver.StreamWaitEvent);
  get("EventCreate", &driver.EventCreate);
  get("EventDestroy_v2", &driver.EventDestroy);
  get("EventRecord", &driver.EventRecord);
  get("EventQuery", &driver.EventQuery);
  get("EventSynchronize", &driver.EventSynchronize);
  get("ModuleLoadData", &driver.ModuleLoadData);
  get("ModuleUnload", &driver.ModuleUnload);
  get("ModuleGetFunction", &driver.ModuleGetFunction);
  get("LaunchKernel", &driver.LaunchKernel);
  if (!missing.empty()) {
    return absl::FailedPreconditionError(
        fmt::format("the {} driver lacks {}", names.maker, missing));
  }
  driver.GetErrorString = error_string;
  driver.DeviceGetName = device_name;
  LoadOptional(
      [&](const char* name) {
        const std::string full = names.prefix + std::string(name);
        // The one name whose function without a suffix is another one.
        if (std::string_view(name) == "StreamBeginCapture") return library.Find(full + "_v2");
        void* found = library.Find(full);
        return found != nullptr ? found : library.Find(full + "_v2");
      },
      &driver);
  return driver;
}

void LoadOptional(const std::function<void*(const char* name)>& find, Driver* driver) {
  const auto get = [&]<typename F>(const char* name, F* function) {
    *function = reinterpret_cast<F>(find(name));
  };
  get("MemGetAllocationGranularity", &driver->MemGetAllocationGranularity);
  get("MemAddressReserve", &driver->MemAddressReserve);
  get("MemAddressFree", &driver->MemAddressFree);
  get("MemCreate", &driver->MemCreate);
  get("MemRelease", &driver->MemRelease);
  get("MemMap", &driver->MemMap);
  get("MemUnmap", &driver->MemUnmap);
  get("MemSetAccess", &driver->MemSetAccess);
  get("MemHostRegister", &driver->MemHostRegister);
  get("MemHostUnregister", &driver->MemHostUnregister);
  get("DeviceGetPCIBusId", &driver->DeviceGetPCIBusId);
  get("StreamBeginCapture", &driver->StreamBeginCapture);
  get("StreamEndCapture", &driver->StreamEndCapture);
  get("GraphInstantiateWithFlags", &driver->GraphInstantiate);
  get("GraphLaunch", &driver->GraphLaunch);
  get("GraphExecDestroy", &driver->GraphExecDestroy);
  get("GraphDestroy", &driver->GraphDestroy);
}

absl::Status ToStatus(const Driver& driver, Result code, const char* call) {
  if (code == kSuccess) return absl::OkStatus();
  const char* text = nullptr;
  if (driver.GetErrorString(code, &text) != kSuccess || text == nullptr) text = "unknown error";
  const std::string message = fmt::format("{} {}: {} ({})", driver.maker, call, text, code);
  switch (code) {
    case kOutOfMemory:
      return absl::ResourceExhaustedError(message);
    case kNoDevice:
      return absl::NotFoundError(message);
    case kInvalidValue:
      return absl::InvalidArgumentError(message);
    default:
      return absl::InternalError(message);
  }
}

}  // namespace terrace::device::cuda
