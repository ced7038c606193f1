// The entry points of NVIDIA's driver that this build uses, declared here; the library is opened
// when it is wanted. Names are those that the library exports (with their version suffixes). Other
// chips whose driver has the same shape fill the same table from their own library.
#ifndef TERRACE_DEVICE_CUDA_CUDA_API_H_
#define TERRACE_DEVICE_CUDA_CUDA_API_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace::device::cuda {

using Result = int;
using Ordinal = int;
using Address = uint64_t;
using ContextHandle = struct ContextObject*;
using StreamHandle = struct StreamObject*;
using EventHandle = struct EventObject*;
using ModuleHandle = struct ModuleObject*;
using FunctionHandle = struct FunctionObject*;
using GraphHandle = struct GraphObject*;
using ReadyGraph = struct ReadyGraphObject*;  // one that can be launched

inline constexpr Result kSuccess = 0;
inline constexpr Result kInvalidValue = 1;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kNoDevice = 100;
inline constexpr Result kInvalidImage = 200;
inline constexpr Result kNotFound = 500;
inline constexpr Result kNotReady = 600;

inline constexpr unsigned kNonBlocking = 1;    // of a stream
inline constexpr unsigned kDisableTiming = 2;  // of an event
// Of a capture: whatever other threads do meanwhile neither fails nor ends it.
inline constexpr int kRelaxedCapture = 2;

// The numbers of a device's attributes.
struct Attributes {
  int max_threads_per_block = 1;
  int major = 75;  // of its compute capability
  int minor = 76;
  int virtual_memory = 102;  // whether pages can be mapped
};

// What memory a page is of, and who may use an address.
struct PageProperties {
  int type = 1;  // pinned: on the device for good
  int handle_types = 0;
  int location_type = 1;  // a device
  int location = 0;
  void* reserved = nullptr;
  uint64_t flags = 0;
};
struct PageAccess {
  int location_type = 1;
  int location = 0;
  int flags = 3;  // read and write
};
static_assert(sizeof(PageProperties) == 32 && sizeof(PageAccess) == 12);

// One function a member, by its name without "cu" and suffix, and what is named or counted
// otherwise by other makers.
struct Driver {
  const char* maker = "CUDA";
  const char* architecture_prefix = "sm_";
  // The major compute capability from which on the dialect has a tile product; 0: never.
  int tile_product_from = 0;
  // Or the architectures that have it, by what their names begin with.
  std::vector<std::string> tile_product_architectures;
  Attributes attributes;
  // Instead of contexts, where a maker has none: both of DevicePrimaryCtx are null then.
  Result (*SetDevice)(Ordinal) = nullptr;
  // A device's architecture by name, where it does not follow from two numbers.
  std::function<Result(char*, size_t, Ordinal)> DeviceArchitecture;

  Result (*Init)(unsigned) = nullptr;
  std::function<Result(Result, const char**)> GetErrorString;
  Result (*DeviceGetCount)(int*) = nullptr;
  Result (*DeviceGet)(Ordinal*, int) = nullptr;
  std::function<Result(char*, int, Ordinal)> DeviceGetName;
  Result (*DeviceGetAttribute)(int*, int, Ordinal) = nullptr;
  Result (*DevicePrimaryCtxRetain)(ContextHandle*, Ordinal) = nullptr;
  Result (*DevicePrimaryCtxRelease)(Ordinal) = nullptr;
  Result (*CtxSetCurrent)(ContextHandle) = nullptr;
  Result (*MemGetInfo)(size_t*, size_t*) = nullptr;
  Result (*MemAlloc)(Address*, size_t) = nullptr;
  Result (*MemFree)(Address) = nullptr;
  Result (*MemcpyHtoDAsync)(Address, const void*, size_t, StreamHandle) = nullptr;
  Result (*MemcpyDtoHAsync)(void*, Address, size_t, StreamHandle) = nullptr;
  Result (*MemcpyDtoDAsync)(Address, Address, size_t, StreamHandle) = nullptr;
  Result (*StreamCreate)(StreamHandle*, unsigned) = nullptr;
  Result (*StreamDestroy)(StreamHandle) = nullptr;
  Result (*StreamSynchronize)(StreamHandle) = nullptr;
  Result (*StreamWaitEvent)(StreamHandle, EventHandle, unsigned) = nullptr;
  Result (*EventCreate)(EventHandle*, unsigned) = nullptr;
  Result (*EventDestroy)(EventHandle) = nullptr;
  Result (*EventRecord)(EventHandle, StreamHandle) = nullptr;
  Result (*EventQuery)(EventHandle) = nullptr;
  Result (*EventSynchronize)(EventHandle) = nullptr;
  Result (*ModuleLoadData)(ModuleHandle*, const void*) = nullptr;
  Result (*ModuleUnload)(ModuleHandle) = nullptr;
  Result (*ModuleGetFunction)(FunctionHandle*, ModuleHandle, const char*) = nullptr;

  // Null where the driver has them not: then memory is not mapped by pages, nothing is pinned, and
  // kernels are launched one by one.
  Result (*MemGetAllocationGranularity)(size_t*, const PageProperties*, int) = nullptr;
  Result (*MemAddressReserve)(Address*, size_t, size_t, Address, unsigned long long) = nullptr;
  Result (*MemAddressFree)(Address, size_t) = nullptr;
  Result (*MemCreate)(uint64_t*, size_t, const PageProperties*, unsigned long long) = nullptr;
  Result (*MemRelease)(uint64_t) = nullptr;
  Result (*MemMap)(Address, size_t, size_t, uint64_t, unsigned long long) = nullptr;
  Result (*MemUnmap)(Address, size_t) = nullptr;
  Result (*MemSetAccess)(Address, size_t, const PageAccess*, size_t) = nullptr;
  Result (*MemHostRegister)(void*, size_t, unsigned) = nullptr;
  Result (*MemHostUnregister)(void*) = nullptr;
  Result (*DeviceGetPCIBusId)(char*, int, Ordinal) = nullptr;
  Result (*StreamBeginCapture)(StreamHandle, int) = nullptr;
  Result (*StreamEndCapture)(StreamHandle, GraphHandle*) = nullptr;
  Result (*GraphInstantiate)(ReadyGraph*, GraphHandle, unsigned long long) = nullptr;
  Result (*GraphLaunch)(ReadyGraph, StreamHandle) = nullptr;
  Result (*GraphExecDestroy)(ReadyGraph) = nullptr;
  Result (*GraphDestroy)(GraphHandle) = nullptr;

  Result (*LaunchKernel)(FunctionHandle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                         unsigned, StreamHandle, void**, void**) = nullptr;
};

// The functions of libcuda.so.1, or of `library` if not empty. NotFound without it,
// FailedPrecondition naming a function that it lacks. The library stays open.
absl::StatusOr<Driver> LoadDriver(const std::string& library = "");

// Where the names of a driver of this shape begin, and how its library is called.
struct DriverNames {
  const char* maker;
  const char* prefix;  // of every function
  std::vector<std::string> libraries;
  bool suffixes_may_lack = false;  // "_v2" where it stands in CUDA's names
};
absl::StatusOr<Driver> LoadDriver(const DriverNames& names);

// Finds what a driver may lack; `name` is without the maker's prefix.
void LoadOptional(const std::function<void*(const char* name)>& find, Driver* driver);

// OK for kSuccess, else a status that names `call` and the error.
absl::Status ToStatus(const Driver& driver, Result code, const char* call);

}  // namespace terrace::device::cuda

#endif  // TERRACE_DEVICE_CUDA_CUDA_API_H_
