#include "device/cuda/cuda_api.h"

#include <dlfcn.h>

#include <fmt/format.h>

namespace terrace::device::cuda {

absl::StatusOr<Driver> LoadDriver(const std::string& library) {
  void* handle = nullptr;
  for (const char* name : {"libcuda.so.1", "libcuda.so"}) {
    handle = ::dlopen(library.empty() ? name : library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) break;
  }
  if (handle == nullptr) {
    const char* why = ::dlerror();
    return absl::NotFoundError(fmt::format("the CUDA driver could not be opened: {}",
                                           why != nullptr ? why : "unknown reason"));
  }
  Driver driver;
  const char* missing = nullptr;
  const auto get = [&]<typename F>(const char* name, F* function) {
    *function = reinterpret_cast<F>(::dlsym(handle, name));
    if (*function == nullptr && missing == nullptr) missing = name;
  };
  get("cuInit", &driver.Init);
  get("cuGetErrorString", &driver.GetErrorString);
  get("cuDeviceGetCount", &driver.DeviceGetCount);
  get("cuDeviceGet", &driver.DeviceGet);
  get("cuDeviceGetName", &driver.DeviceGetName);
  get("cuDeviceGetAttribute", &driver.DeviceGetAttribute);
  get("cuDevicePrimaryCtxRetain", &driver.DevicePrimaryCtxRetain);
  get("cuDevicePrimaryCtxRelease_v2", &driver.DevicePrimaryCtxRelease);
  get("cuCtxSetCurrent", &driver.CtxSetCurrent);
  get("cuMemGetInfo_v2", &driver.MemGetInfo);
  get("cuMemAlloc_v2", &driver.MemAlloc);
  get("cuMemFree_v2", &driver.MemFree);
  get("cuMemcpyHtoDAsync_v2", &driver.MemcpyHtoDAsync);
  get("cuMemcpyDtoHAsync_v2", &driver.MemcpyDtoHAsync);
  get("cuMemcpyDtoDAsync_v2", &driver.MemcpyDtoDAsync);
  get("cuStreamCreate", &driver.StreamCreate);
  get("cuStreamDestroy_v2", &driver.StreamDestroy);
  get("cuStreamSynchronize", &driver.StreamSynchronize);
  get("cuStreamWaitEvent", &driver.StreamWaitEvent);
  get("cuEventCreate", &driver.EventCreate);
  get("cuEventDestroy_v2", &driver.EventDestroy);
  get("cuEventRecord", &driver.EventRecord);
  get("cuEventQuery", &driver.EventQuery);
  get("cuEventSynchronize", &driver.EventSynchronize);
  get("cuModuleLoadData", &driver.ModuleLoadData);
  get("cuModuleUnload", &driver.ModuleUnload);
  get("cuModuleGetFunction", &driver.ModuleGetFunction);
  get("cuLaunchKernel", &driver.LaunchKernel);
  if (missing != nullptr) {
    return absl::FailedPreconditionError(fmt::format("the CUDA driver lacks {}", missing));
  }
  return driver;
}

absl::Status ToStatus(const Driver& driver, Result code, const char* call) {
  if (code == kSuccess) return absl::OkStatus();
  const char* text = nullptr;
  if (driver.GetErrorString(code, &text) != kSuccess || text == nullptr) text = "unknown error";
  const std::string message = fmt::format("{}: {} ({})", call, text, code);
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
