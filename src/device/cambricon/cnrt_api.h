// The entry points of Cambricon's CNRT (cnrt.h 6.14) that this build uses, declared here; the
// library is opened when it is wanted.
#ifndef TERRACE_DEVICE_CAMBRICON_CNRT_API_H_
#define TERRACE_DEVICE_CAMBRICON_CNRT_API_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace::device::cambricon {

using CnrtError = int32_t;

inline constexpr CnrtError kSuccess = 0;
inline constexpr CnrtError kNotReady = 1;
inline constexpr CnrtError kBusy = 632014;  // what a notifier that is not reached gives
inline constexpr int kHostToDev = 0;        // cnrtMemTransDir_t
inline constexpr int kDevToDev = 1;
inline constexpr int kDevToHost = 2;
inline constexpr unsigned kDisableTiming = 4;  // of a notifier

// Members by their names without "cnrt".
struct Runtime {
  const char* (*GetErrorStr)(CnrtError) = nullptr;
  CnrtError (*GetDeviceCount)(unsigned*) = nullptr;
  CnrtError (*SetDevice)(int) = nullptr;
  CnrtError (*MemGetInfo)(size_t*, size_t*) = nullptr;
  CnrtError (*Malloc)(void**, size_t) = nullptr;
  CnrtError (*Free)(void*) = nullptr;
  CnrtError (*MemcpyAsync_V3)(void*, void*, size_t, void*, int) = nullptr;
  CnrtError (*QueueCreate)(void**) = nullptr;
  CnrtError (*QueueDestroy)(void*) = nullptr;
  CnrtError (*QueueSync)(void*) = nullptr;
  CnrtError (*QueueWaitNotifier)(void* notifier, void* queue, unsigned) = nullptr;
  CnrtError (*NotifierCreateWithFlags)(void**, unsigned) = nullptr;
  CnrtError (*NotifierDestroy)(void*) = nullptr;
  CnrtError (*PlaceNotifier)(void* notifier, void* queue) = nullptr;
  CnrtError (*QueryNotifier)(void*) = nullptr;
  CnrtError (*WaitNotifier)(void*) = nullptr;
};

// The functions of libcnrt.so, or of `library` if not empty. NotFound without it,
// FailedPrecondition naming a function that it lacks.
absl::StatusOr<Runtime> LoadRuntime(const std::string& library = "");

// OK for kSuccess, else a status that names `call` and the error.
absl::Status ToStatus(const Runtime& runtime, CnrtError code, const char* call);

}  // namespace terrace::device::cambricon

#endif  // TERRACE_DEVICE_CAMBRICON_CNRT_API_H_
