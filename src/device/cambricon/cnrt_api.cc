#include "device/cambricon/cnrt_api.h"

#include <cstdlib>
#include <vector>

#include <fmt/format.h>

#include "base/status.h"
#include "device/shared_library.h"

namespace terrace::device::cambricon {

absl::StatusOr<Runtime> LoadRuntime(const std::string& library) {
  const char* home = std::getenv("NEUWARE_HOME");
  std::vector<std::string> names = {
      "libcnrt.so",
      std::string(home != nullptr ? home : "/usr/local/neuware") + "/lib64/libcnrt.so"};
  if (!library.empty()) names = {library};
  ASSIGN_OR_RETURN(const SharedLibrary opened, SharedLibrary::Open("CNRT", names));
  Runtime runtime;
  const char* missing = nullptr;
  const auto get = [&]<typename F>(const char* name, F* function) {
    *function = reinterpret_cast<F>(opened.Find(name));
    if (*function == nullptr && missing == nullptr) missing = name;
  };
  get("cnrtGetErrorStr", &runtime.GetErrorStr);
  get("cnrtGetDeviceCount", &runtime.GetDeviceCount);
  get("cnrtSetDevice", &runtime.SetDevice);
  get("cnrtMemGetInfo", &runtime.MemGetInfo);
  get("cnrtMalloc", &runtime.Malloc);
  get("cnrtFree", &runtime.Free);
  get("cnrtMemcpyAsync_V3", &runtime.MemcpyAsync_V3);
  get("cnrtQueueCreate", &runtime.QueueCreate);
  get("cnrtQueueDestroy", &runtime.QueueDestroy);
  get("cnrtQueueSync", &runtime.QueueSync);
  get("cnrtQueueWaitNotifier", &runtime.QueueWaitNotifier);
  get("cnrtNotifierCreateWithFlags", &runtime.NotifierCreateWithFlags);
  get("cnrtNotifierDestroy", &runtime.NotifierDestroy);
  get("cnrtPlaceNotifier", &runtime.PlaceNotifier);
  get("cnrtQueryNotifier", &runtime.QueryNotifier);
  get("cnrtWaitNotifier", &runtime.WaitNotifier);
  if (missing != nullptr) {
    return absl::FailedPreconditionError(fmt::format("CNRT lacks {}", missing));
  }
  return runtime;
}

absl::Status ToStatus(const Runtime& runtime, CnrtError code, const char* call) {
  if (code == kSuccess) return absl::OkStatus();
  const char* text = runtime.GetErrorStr(code);
  const std::string message =
      fmt::format("{}: {} ({})", call, text != nullptr ? text : "unknown error", code);
  switch (code) {
    case 100010:  // SysNoMem
    case 100100:  // NoMem
      return absl::ResourceExhaustedError(message);
    case 100004:  // NoDevice
    case 100005:  // DeviceInvalid
      return absl::NotFoundError(message);
    case 100006:  // ArgsInvalid
      return absl::InvalidArgumentError(message);
    default:
      return absl::InternalError(message);
  }
}

}  // namespace terrace::device::cambricon
