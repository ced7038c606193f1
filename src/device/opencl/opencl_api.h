// The entry points of OpenCL that this build uses, declared here so that nothing of OpenCL is
// needed to build: the library is opened when it is wanted. Names, parameters and values follow the
// Khronos OpenCL 3.0 specification; only what exists since version 1.2 is required.
#ifndef TERRACE_DEVICE_OPENCL_OPENCL_API_H_
#define TERRACE_DEVICE_OPENCL_OPENCL_API_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace::device::cl {

using Int = int32_t;
using Uint = uint32_t;
using Bitfield = uint64_t;
using Platform = struct PlatformObject*;
using DeviceId = struct DeviceObject*;
using Context = struct ContextObject*;
using Queue = struct QueueObject*;
using Mem = struct MemObject*;
using Program = struct ProgramObject*;
using KernelHandle = struct KernelObject*;
using EventHandle = struct EventObject*;

inline constexpr Int kSuccess = 0;
inline constexpr Int kDeviceNotFound = -1;
inline constexpr Int kDeviceNotAvailable = -2;
inline constexpr Int kMemObjectAllocationFailure = -4;
inline constexpr Int kOutOfResources = -5;
inline constexpr Int kOutOfHostMemory = -6;
inline constexpr Int kInvalidValue = -30;
inline constexpr Int kInvalidKernelArgs = -52;
inline constexpr Int kPlatformNotFound = -1001;

inline constexpr Bitfield kDeviceTypeCpu = 2;
inline constexpr Bitfield kDeviceTypeAll = 0xFFFFFFFF;
inline constexpr Bitfield kMemReadWrite = 1;
inline constexpr Uint kFalse = 0;

enum InfoName : Uint {
  kPlatformName = 0x0902,
  kDeviceType = 0x1000,
  kDeviceMaxWorkGroupSize = 0x1004,
  kDeviceMaxMemAllocSize = 0x1010,
  kDeviceGlobalMemSize = 0x101F,
  kDeviceName = 0x102B,
  kDriverVersion = 0x102D,
  kDeviceVersion = 0x102F,
  kDeviceExtensions = 0x1030,
  kDeviceOpenClCVersion = 0x103D,
  kDeviceSubGroupSizes = 0x4108,
  kProgramBinarySizes = 0x1165,
  kProgramBinaries = 0x1166,
  kProgramBuildLog = 0x1183,
  kKernelNumArgs = 0x1191,
  kEventStatus = 0x11D3,
};

// One function a member, by its name without "cl".
struct Api {
  Int (*GetPlatformIDs)(Uint, Platform*, Uint*) = nullptr;
  Int (*GetPlatformInfo)(Platform, Uint, size_t, void*, size_t*) = nullptr;
  Int (*GetDeviceIDs)(Platform, Bitfield, Uint, DeviceId*, Uint*) = nullptr;
  Int (*GetDeviceInfo)(DeviceId, Uint, size_t, void*, size_t*) = nullptr;
  Context (*CreateContext)(const intptr_t*, Uint, const DeviceId*,
                           void (*)(const char*, const void*, size_t, void*), void*,
                           Int*) = nullptr;
  Int (*ReleaseContext)(Context) = nullptr;
  Queue (*CreateCommandQueue)(Context, DeviceId, Bitfield, Int*) = nullptr;
  Int (*ReleaseCommandQueue)(Queue) = nullptr;
  Mem (*CreateBuffer)(Context, Bitfield, size_t, void*, Int*) = nullptr;
  Int (*ReleaseMemObject)(Mem) = nullptr;
  Int (*EnqueueWriteBuffer)(Queue, Mem, Uint, size_t, size_t, const void*, Uint, const EventHandle*,
                            EventHandle*) = nullptr;
  Int (*EnqueueReadBuffer)(Queue, Mem, Uint, size_t, size_t, void*, Uint, const EventHandle*,
                           EventHandle*) = nullptr;
  Int (*EnqueueCopyBuffer)(Queue, Mem, Mem, size_t, size_t, size_t, Uint, const EventHandle*,
                           EventHandle*) = nullptr;
  Program (*CreateProgramWithSource)(Context, Uint, const char**, const size_t*, Int*) = nullptr;
  Program (*CreateProgramWithBinary)(Context, Uint, const DeviceId*, const size_t*,
                                     const unsigned char**, Int*, Int*) = nullptr;
  Int (*BuildProgram)(Program, Uint, const DeviceId*, const char*, void (*)(Program, void*),
                      void*) = nullptr;
  Int (*GetProgramInfo)(Program, Uint, size_t, void*, size_t*) = nullptr;
  Int (*GetProgramBuildInfo)(Program, DeviceId, Uint, size_t, void*, size_t*) = nullptr;
  Int (*ReleaseProgram)(Program) = nullptr;
  KernelHandle (*CreateKernel)(Program, const char*, Int*) = nullptr;
  Int (*SetKernelArg)(KernelHandle, Uint, size_t, const void*) = nullptr;
  Int (*GetKernelInfo)(KernelHandle, Uint, size_t, void*, size_t*) = nullptr;
  Int (*ReleaseKernel)(KernelHandle) = nullptr;
  Int (*EnqueueNDRangeKernel)(Queue, KernelHandle, Uint, const size_t*, const size_t*,
                              const size_t*, Uint, const EventHandle*, EventHandle*) = nullptr;
  Int (*EnqueueMarkerWithWaitList)(Queue, Uint, const EventHandle*, EventHandle*) = nullptr;
  Int (*EnqueueBarrierWithWaitList)(Queue, Uint, const EventHandle*, EventHandle*) = nullptr;
  Int (*WaitForEvents)(Uint, const EventHandle*) = nullptr;
  Int (*GetEventInfo)(EventHandle, Uint, size_t, void*, size_t*) = nullptr;
  Int (*ReleaseEvent)(EventHandle) = nullptr;
  Int (*Flush)(Queue) = nullptr;
  Int (*Finish)(Queue) = nullptr;
};

// The functions of the machine's OpenCL loader (libOpenCL.so.1), or of `library` if not empty.
// NotFound without it, FailedPrecondition naming a function that it lacks. The library stays open
// for the life of the process: drivers do not survive being closed.
absl::StatusOr<Api> LoadApi(const std::string& library = "");

// OK for kSuccess, else a status that names `call` and the error.
absl::Status ToStatus(Int code, const char* call);

}  // namespace terrace::device::cl

#endif  // TERRACE_DEVICE_OPENCL_OPENCL_API_H_
