// The entry points of Huawei's AscendCL (acl/acl_rt.h of CANN 8.1 and later) that this build uses,
// declared here; the library is opened when it is wanted.
#ifndef TERRACE_DEVICE_ASCEND_ACL_API_H_
#define TERRACE_DEVICE_ASCEND_ACL_API_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace::device::ascend {

using AclError = int32_t;

inline constexpr AclError kSuccess = 0;
inline constexpr AclError kRepeatInitialize = 100002;
inline constexpr int kHugeFirst = 0;     // aclrtMemMallocPolicy: pages of 2 MiB where it can
inline constexpr int kHostToDevice = 1;  // aclrtMemcpyKind
inline constexpr int kDeviceToHost = 2;
inline constexpr int kDeviceToDevice = 3;
inline constexpr int kHbmMemory = 1;        // aclrtMemAttr; answered with DDR where that is all
inline constexpr int kMappedHost = 0;       // aclrtHostRegisterType
inline constexpr uint32_t kEventFlags = 3;  // can be waited for by streams, and asked about
inline constexpr int kEventRecorded = 1;    // aclrtEventRecordedStatus: complete

// Members by their names without "acl".
struct Runtime {
  AclError (*Init)(const char*) = nullptr;
  const char* (*GetRecentErrMsg)() = nullptr;
  const char* (*rtGetSocName)() = nullptr;
  AclError (*rtGetDeviceCount)(uint32_t*) = nullptr;
  AclError (*rtSetDevice)(int32_t) = nullptr;
  AclError (*rtResetDevice)(int32_t) = nullptr;
  AclError (*rtGetMemInfo)(int, size_t*, size_t*) = nullptr;
  AclError (*rtMalloc)(void**, size_t, int) = nullptr;
  AclError (*rtFree)(void*) = nullptr;
  AclError (*rtMemcpyAsync)(void*, size_t, const void*, size_t, int, void*) = nullptr;
  AclError (*rtCreateStream)(void**) = nullptr;
  AclError (*rtDestroyStream)(void*) = nullptr;
  AclError (*rtSynchronizeStream)(void*) = nullptr;
  AclError (*rtSynchronizeDevice)() = nullptr;
  AclError (*rtStreamWaitEvent)(void*, void*) = nullptr;
  AclError (*rtCreateEventExWithFlag)(void**, uint32_t) = nullptr;
  AclError (*rtDestroyEvent)(void*) = nullptr;
  AclError (*rtRecordEvent)(void*, void*) = nullptr;
  AclError (*rtQueryEventStatus)(void*, int*) = nullptr;
  AclError (*rtSynchronizeEvent)(void*) = nullptr;
  // Null where the runtime has them not: then nothing is pinned.
  AclError (*rtHostRegister)(void*, uint64_t, int, void**) = nullptr;
  AclError (*rtHostUnregister)(void*) = nullptr;
};

// The functions of libacl_rt.so or libascendcl.so, or of `library` if not empty. NotFound without
// them, FailedPrecondition naming a function that is lacking.
absl::StatusOr<Runtime> LoadRuntime(const std::string& library = "");

// OK for kSuccess, else a status that names `call`, the number and what the runtime says.
absl::Status ToStatus(const Runtime& runtime, AclError code, const char* call);

}  // namespace terrace::device::ascend

#endif  // TERRACE_DEVICE_ASCEND_ACL_API_H_
