#include "device/ascend/acl_api.h"

#include <cstdlib>
#include <vector>

#include <fmt/format.h>

#include "base/status.h"
#include "device/shared_library.h"

namespace terrace::device::ascend {

absl::StatusOr<Runtime> LoadRuntime(const std::string& library) {
  std::vector<std::string> names = {"libacl_rt.so", "libascendcl.so"};
  for (const char* variable : {"ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"}) {
    const char* home = std::getenv(variable);
    if (home == nullptr) continue;
    for (const char* name : {"/lib64/libacl_rt.so", "/lib64/libascendcl.so"}) {
      names.push_back(std::string(home) + name);
    }
  }
  if (!library.empty()) names = {library};
  ASSIGN_OR_RETURN(const SharedLibrary opened, SharedLibrary::Open("AscendCL", names));
  Runtime runtime;
  const char* missing = nullptr;
  const auto get = [&]<typename F>(const char* name, F* function) {
    *function = reinterpret_cast<F>(opened.Find(name));
    if (*function == nullptr && missing == nullptr) missing = name;
  };
  get("aclInit", &runtime.Init);
  get("aclGetRecentErrMsg", &runtime.GetRecentErrMsg);
  get("aclrtGetSocName", &runtime.rtGetSocName);
  get("aclrtGetDeviceCount", &runtime.rtGetDeviceCount);
  get("aclrtSetDevice", &runtime.rtSetDevice);
  get("aclrtResetDevice", &runtime.rtResetDevice);
  get("aclrtGetMemInfo", &runtime.rtGetMemInfo);
  get("aclrtMalloc", &runtime.rtMalloc);
  get("aclrtFree", &runtime.rtFree);
  get("aclrtMemcpyAsync", &runtime.rtMemcpyAsync);
  get("aclrtCreateStream", &runtime.rtCreateStream);
  get("aclrtDestroyStream", &runtime.rtDestroyStream);
  get("aclrtSynchronizeStream", &runtime.rtSynchronizeStream);
  get("aclrtSynchronizeDevice", &runtime.rtSynchronizeDevice);
  get("aclrtStreamWaitEvent", &runtime.rtStreamWaitEvent);
  get("aclrtCreateEventExWithFlag", &runtime.rtCreateEventExWithFlag);
  get("aclrtDestroyEvent", &runtime.rtDestroyEvent);
  get("aclrtRecordEvent", &runtime.rtRecordEvent);
  get("aclrtQueryEventStatus", &runtime.rtQueryEventStatus);
  get("aclrtSynchronizeEvent", &runtime.rtSynchronizeEvent);
  runtime.rtHostRegister =
      reinterpret_cast<decltype(runtime.rtHostRegister)>(opened.Find("aclrtHostRegister"));
  runtime.rtHostUnregister =
      reinterpret_cast<decltype(runtime.rtHostUnregister)>(opened.Find("aclrtHostUnregister"));
  if (missing != nullptr) {
    return absl::FailedPreconditionError(fmt::format("AscendCL lacks {}", missing));
  }
  return runtime;
}

absl::Status ToStatus(const Runtime& runtime, AclError code, const char* call) {
  if (code == kSuccess) return absl::OkStatus();
  const char* text = runtime.GetRecentErrMsg();
  const std::string message =
      fmt::format("{}: error {}{}{}", call, code, text != nullptr ? ": " : "", text ? text : "");
  switch (code) {
    case 200000:  // BAD_ALLOC
    case 207001:  // MEMORY_ALLOCATION
    case 207018:  // DEVICE_OOM
      return absl::ResourceExhaustedError(message);
    case 207004:  // NO_DEVICE
    case 107001:  // INVALID_DEVICEID
      return absl::NotFoundError(message);
    case 100000:  // INVALID_PARAM
    case 107000:  // PARAM_INVALID
      return absl::InvalidArgumentError(message);
    default:
      return absl::InternalError(message);
  }
}

}  // namespace terrace::device::ascend
