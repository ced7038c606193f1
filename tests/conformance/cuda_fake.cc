#include "cuda_fake.h"

#include <cstring>

namespace terrace::device {
namespace {

using cuda::Address;
using cuda::Result;

CudaFake* fake = nullptr;
thread_local bool entered = false;

// A call: counted, perhaps made to fail, and checked for what it needs.
class Call {
 public:
  explicit Call(const char* name, bool needs_context = true) : lock_(&fake->mutex), name_(name) {
    if (++fake->calls == fake->fail_at) {
      fake->failed = true;
      fake->failed_call = name;
      result_ = fake->fail_with;
    } else if (needs_context && (!entered || fake->contexts == 0)) {
      Refuse("no current context", 201);
    }
  }
  void Need(bool holds, const char* what) {
    if (ok() && !holds) Refuse(what, cuda::kInvalidValue);
  }
  bool ok() const { return result_ == cuda::kSuccess; }
  Result result() const { return result_; }

 private:
  void Refuse(const std::string& what, Result code) {
    fake->violations.push_back(std::string(name_) + ": " + what);
    result_ = code;
  }

  absl::MutexLock lock_;
  const char* name_;
  Result result_ = cuda::kSuccess;
};

// Whether [address, address + bytes) lies in an allocation. REQUIRES: the lock.
bool Holds(Address address, size_t bytes) {
  auto after = fake->allocations.upper_bound(address);
  if (after == fake->allocations.begin()) return false;
  const auto& [base, memory] = *std::prev(after);
  return address - base + bytes <= memory.size();
}

void* NewHandle(std::set<void*>* handles) {
  static char next[1 << 20];
  static size_t used = 0;
  void* handle = &next[used++ % sizeof(next)];
  handles->insert(handle);
  return handle;
}

void Make(Call& call, std::set<void*>* handles, void** out) {
  if (call.ok()) *out = NewHandle(handles);
}

void* Pointer(Address address) { return reinterpret_cast<void*>(address); }

Result ErrorString(Result, const char** text) {
  *text = "made to fail";
  return cuda::kSuccess;
}

Result Launch(cuda::FunctionHandle, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
              unsigned bz, unsigned, cuda::StreamHandle stream, void** parameters, void**) {
  Call call("cuLaunchKernel");
  call.Need(fake->streams.contains(stream), "no such stream");
  if (!call.ok()) return call.result();
  CudaFake::Launch launch{{gx, gy, gz, bx, by, bz}, {}};
  for (size_t i = 0; i < fake->parameters; ++i) {
    launch.parameters.push_back(*static_cast<uint64_t*>(parameters[i]));
  }
  fake->launches.push_back(launch);
  return call.result();
}

void SetDeviceCalls(cuda::Driver* d) {
  d->Init = [](unsigned flags) {
    Call call("cuInit", false);
    call.Need(flags == 0, "flags");
    return call.result();
  };
  d->GetErrorString = &ErrorString;
  d->DeviceGetCount = [](int* count) {
    Call call("cuDeviceGetCount", false);
    *count = 1;
    return call.result();
  };
  d->DeviceGet = [](cuda::Ordinal* device, int ordinal) {
    Call call("cuDeviceGet", false);
    *device = ordinal;
    return call.result();
  };
  d->DeviceGetName = [](char* name, int length, cuda::Ordinal) {
    Call call("cuDeviceGetName", false);
    std::strncpy(name, "Stand-in", static_cast<size_t>(length));
    return call.result();
  };
  d->DeviceGetAttribute = [](int* value, int attribute, cuda::Ordinal) {
    Call call("cuDeviceGetAttribute", false);
    *value = attribute == 75 ? 9 : attribute == 76 ? 0 : 1024;
    return call.result();
  };
  d->DevicePrimaryCtxRetain = [](cuda::ContextHandle* context, cuda::Ordinal) {
    Call call("cuDevicePrimaryCtxRetain", false);
    if (!call.ok()) return call.result();
    ++fake->contexts;
    *context = reinterpret_cast<cuda::ContextHandle>(fake);
    return call.result();
  };
  d->DevicePrimaryCtxRelease = [](cuda::Ordinal) {
    absl::MutexLock lock(&fake->mutex);
    --fake->contexts;
    return cuda::kSuccess;
  };
  d->CtxSetCurrent = [](cuda::ContextHandle context) {
    absl::MutexLock lock(&fake->mutex);
    entered = context == reinterpret_cast<cuda::ContextHandle>(fake);
    return cuda::kSuccess;
  };
}

void SetMemoryCalls(cuda::Driver* d) {
  d->MemGetInfo = [](size_t* free, size_t* total) {
    Call call("cuMemGetInfo_v2");
    *free = *total = fake->memory_bytes;
    return call.result();
  };
  d->MemAlloc = [](Address* address, size_t bytes) {
    Call call("cuMemAlloc_v2");
    call.Need(bytes > 0, "no bytes");
    if (!call.ok()) return call.result();
    std::vector<std::byte> memory(bytes);
    *address = reinterpret_cast<uintptr_t>(memory.data());
    fake->allocations.emplace(*address, std::move(memory));
    return call.result();
  };
  d->MemFree = [](Address address) {
    absl::MutexLock lock(&fake->mutex);
    if (fake->allocations.erase(address) != 1) fake->violations.push_back("cuMemFree_v2: unknown");
    return cuda::kSuccess;
  };
  d->MemcpyHtoDAsync = [](Address to, const void* from, size_t bytes, cuda::StreamHandle stream) {
    Call call("cuMemcpyHtoDAsync_v2");
    call.Need(fake->streams.contains(stream), "no such stream");
    call.Need(Holds(to, bytes), "outside an allocation");
    if (call.ok()) std::memcpy(Pointer(to), from, bytes);
    return call.result();
  };
  d->MemcpyDtoHAsync = [](void* to, Address from, size_t bytes, cuda::StreamHandle stream) {
    Call call("cuMemcpyDtoHAsync_v2");
    call.Need(fake->streams.contains(stream), "no such stream");
    call.Need(Holds(from, bytes), "outside an allocation");
    if (call.ok()) std::memcpy(to, Pointer(from), bytes);
    return call.result();
  };
  d->MemcpyDtoDAsync = [](Address to, Address from, size_t bytes, cuda::StreamHandle stream) {
    Call call("cuMemcpyDtoDAsync_v2");
    call.Need(fake->streams.contains(stream), "no such stream");
    call.Need(Holds(from, bytes) && Holds(to, bytes), "outside an allocation");
    if (call.ok()) std::memcpy(Pointer(to), Pointer(from), bytes);
    return call.result();
  };
}

void SetOrderCalls(cuda::Driver* d) {
  d->StreamCreate = [](cuda::StreamHandle* stream, unsigned) {
    Call call("cuStreamCreate");
    void* handle = nullptr;
    Make(call, &fake->streams, &handle);
    *stream = static_cast<cuda::StreamHandle>(handle);
    return call.result();
  };
  d->StreamDestroy = [](cuda::StreamHandle stream) {
    absl::MutexLock lock(&fake->mutex);
    if (fake->streams.erase(stream) != 1) fake->violations.push_back("cuStreamDestroy_v2: unknown");
    return cuda::kSuccess;
  };
  d->StreamSynchronize = [](cuda::StreamHandle stream) {
    Call call("cuStreamSynchronize");
    call.Need(fake->streams.contains(stream), "no such stream");
    return call.result();
  };
  d->StreamWaitEvent = [](cuda::StreamHandle stream, cuda::EventHandle event, unsigned) {
    Call call("cuStreamWaitEvent");
    call.Need(fake->streams.contains(stream) && fake->events.contains(event), "no such handle");
    return call.result();
  };
  d->EventCreate = [](cuda::EventHandle* event, unsigned) {
    Call call("cuEventCreate");
    void* handle = nullptr;
    Make(call, &fake->events, &handle);
    *event = static_cast<cuda::EventHandle>(handle);
    return call.result();
  };
  d->EventDestroy = [](cuda::EventHandle event) {
    absl::MutexLock lock(&fake->mutex);
    if (fake->events.erase(event) != 1) fake->violations.push_back("cuEventDestroy_v2: unknown");
    return cuda::kSuccess;
  };
  d->EventRecord = [](cuda::EventHandle event, cuda::StreamHandle stream) {
    Call call("cuEventRecord");
    call.Need(fake->streams.contains(stream) && fake->events.contains(event), "no such handle");
    return call.result();
  };
  d->EventQuery = [](cuda::EventHandle event) {
    Call call("cuEventQuery");
    call.Need(fake->events.contains(event), "no such event");
    return call.result();
  };
  d->EventSynchronize = [](cuda::EventHandle event) {
    Call call("cuEventSynchronize");
    call.Need(fake->events.contains(event), "no such event");
    return call.result();
  };
}

void SetKernelCalls(cuda::Driver* d) {
  d->ModuleLoadData = [](cuda::ModuleHandle* module, const void* image) {
    Call call("cuModuleLoadData");
    call.Need(image != nullptr, "no image");
    void* handle = nullptr;
    Make(call, &fake->modules, &handle);
    *module = static_cast<cuda::ModuleHandle>(handle);
    return call.result();
  };
  d->ModuleUnload = [](cuda::ModuleHandle module) {
    absl::MutexLock lock(&fake->mutex);
    if (fake->modules.erase(module) != 1) fake->violations.push_back("cuModuleUnload: unknown");
    return cuda::kSuccess;
  };
  d->ModuleGetFunction = [](cuda::FunctionHandle* function, cuda::ModuleHandle module,
                            const char*) {
    Call call("cuModuleGetFunction");
    call.Need(fake->modules.contains(module), "no such module");
    *function = reinterpret_cast<cuda::FunctionHandle>(module);
    return call.result();
  };
  d->LaunchKernel = &Launch;
}

}  // namespace

cuda::Driver FakeDriver(CudaFake* state) {
  fake = state;
  cuda::Driver driver;
  SetDeviceCalls(&driver);
  SetMemoryCalls(&driver);
  SetOrderCalls(&driver);
  SetKernelCalls(&driver);
  return driver;
}

}  // namespace terrace::device
