// A stand-in for a driver of the shape of CUDA's, for the source file of each maker's library: that
// says how names begin (DRIVER), which lack a suffix that CUDA's have (SUFFIXED), and which
// architecture the chip is of (kMajor, kMinor).
#ifndef TERRACE_TESTS_CONFORMANCE_DRIVER_SHAPE_H_
#define TERRACE_TESTS_CONFORMANCE_DRIVER_SHAPE_H_

#include <cstdio>

#include "fake_call.h"
#include "fake_pages.h"

using namespace terrace::device;

namespace {
constexpr int kBad = 1;       // INVALID_VALUE
constexpr int kNoMemory = 2;  // OUT_OF_MEMORY

void* const kContext = &Fake();

void* Pointer(uint64_t address) { return reinterpret_cast<void*>(address); }
}  // namespace

#pragma GCC visibility push(default)
extern "C" {

VendorFake* terrace_fake_state() { return &Fake(); }

int DRIVER(Init)(unsigned flags) {
  Call call(__func__, kBad, kAnywhere);
  call.Need(flags == 0, "flags");
  if (call.ok()) Fake().initialised = true;
  return call.result();
}
int DRIVER(GetErrorString)(int, const char** text) {
  Release call(__func__);
  *text = "made to fail";
  return 0;
}
int DRIVER(DeviceGetCount)(int* count) {
  Call call(__func__, kBad, kAnywhere);
  call.Need(Fake().initialised, "before Init");
  *count = 1;
  return call.result();
}
int DRIVER(DeviceGet)(int* device, int ordinal) {
  Call call(__func__, kBad, kAnywhere);
  *device = ordinal;
  return call.result();
}
int DRIVER(DeviceGetName)(char* name, int bytes, int) {
  Call call(__func__, kBad, kAnywhere);
  std::snprintf(name, static_cast<size_t>(bytes), "Stand-in");
  return call.result();
}
int DRIVER(DeviceGetAttribute)(int* value, int attribute, int) {
  Call call(__func__, kBad, kAnywhere);
  call.Need(attribute == 1 || attribute == 75 || attribute == 76 || attribute == 102, "attribute");
  *value = attribute == 75    ? kMajor
           : attribute == 76  ? kMinor
           : attribute == 102 ? int{Fake().has_pages}
                              : 1024;
  return call.result();
}
int DRIVER(DevicePrimaryCtxRetain)(void** context, int) {
  Call call(__func__, kBad, kAnywhere);
  if (!call.ok()) return call.result();
  ++Fake().contexts;
  *context = kContext;
  return 0;
}
int DRIVER(DevicePrimaryCtxRelease_v2)(int) {
  Release call(__func__);
  return call.Done(--Fake().contexts >= 0);
}
int DRIVER(CtxSetCurrent)(void* context) {
  Release call(__func__);
  Entered() = context == kContext && Fake().contexts > 0 ? 0 : -1;
  return call.Done(Entered() == 0);
}
int SUFFIXED(MemGetInfo)(size_t* free, size_t* total) {
  Call call(__func__, kBad);
  *total = Fake().memory_bytes;
  *free = Fake().memory_bytes - Fake().Used();
  return call.result();
}
int DRIVER(MemAlloc_v2)(uint64_t* address, size_t bytes) {
  Call call(__func__, kBad);
  void* data = nullptr;
  call.Allocate(&data, bytes, kNoMemory);
  *address = reinterpret_cast<uintptr_t>(data);
  return call.result();
}
int DRIVER(MemFree_v2)(uint64_t address) {
  Release call(__func__);
  return call.Done(Fake().allocations.erase(address) == 1);
}
int DRIVER(MemcpyHtoDAsync_v2)(uint64_t to, void* from, size_t bytes, void* stream) {
  Call call(__func__, kBad);
  call.NeedStream(stream);
  if (call.ok()) call.Copy(FakeDirection::kToDevice, Pointer(to), from, bytes);
  return call.result();
}
int DRIVER(MemcpyDtoHAsync_v2)(void* to, uint64_t from, size_t bytes, void* stream) {
  Call call(__func__, kBad);
  call.NeedStream(stream);
  if (call.ok()) call.Copy(FakeDirection::kToHost, to, Pointer(from), bytes);
  return call.result();
}
int SUFFIXED(MemcpyDtoDAsync)(uint64_t to, uint64_t from, size_t bytes, void* stream) {
  Call call(__func__, kBad);
  call.NeedStream(stream);
  if (call.ok()) call.Copy(FakeDirection::kOnDevice, Pointer(to), Pointer(from), bytes);
  return call.result();
}
int DRIVER(StreamCreate)(void** stream, unsigned) {
  Call call(__func__, kBad);
  call.NewStream(stream);
  return call.result();
}
int SUFFIXED(StreamDestroy)(void* stream) {
  Release call(__func__);
  return call.Done(Fake().streams.erase(stream) == 1);
}
int DRIVER(StreamSynchronize)(void* stream) {
  Call call(__func__, kBad);
  call.NeedStream(stream);
  call.NeedNoCapture(stream);
  return call.result();
}
int DRIVER(StreamWaitEvent)(void* stream, void* event, unsigned) {
  Call call(__func__, kBad);
  call.NeedStream(stream);
  call.NeedRecorded(event);
  return call.result();
}
int DRIVER(EventCreate)(void** event, unsigned) {
  Call call(__func__, kBad);
  call.NewEvent(event);
  return call.result();
}
int DRIVER(EventDestroy_v2)(void* event) {
  Release call(__func__);
  return call.Done(Fake().events.erase(event) == 1);
}
int DRIVER(EventRecord)(void* event, void* stream) {
  Call call(__func__, kBad);
  call.Record(event, stream);
  return call.result();
}
int DRIVER(EventQuery)(void* event) {
  Call call(__func__, kBad);
  call.NeedRecorded(event);
  return call.result();
}
int DRIVER(EventSynchronize)(void* event) {
  Call call(__func__, kBad);
  call.NeedRecorded(event);
  return call.result();
}
int DRIVER(ModuleLoadData)(void** module, const void* image) {
  Call call(__func__, kBad);
  call.Need(image != nullptr, "no image");
  call.NewObject(module);
  return call.result();
}
int DRIVER(ModuleUnload)(void* module) {
  Release call(__func__);
  return call.Done(Fake().objects.erase(module) == 1);
}
int DRIVER(ModuleGetFunction)(void** function, void* module, const char* name) {
  Call call(__func__, kBad);
  call.NewFunction(function, module, name);
  return call.result();
}
int DRIVER(LaunchKernel)(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                         unsigned by, unsigned bz, unsigned shared, void* stream, void** parameters,
                         void**) {
  Call call(__func__, kBad);
  call.Need(shared == 0, "shared memory");
  if (call.ok()) call.Launched(function, stream, {gx, gy, gz, bx, by, bz}, parameters);
  return call.result();
}

// ---- Graphs ----

int DRIVER(StreamBeginCapture_v2)(void* stream, int mode) {
  Call call(__func__, kBad);
  call.BeginCapture(stream, mode);
  return call.result();
}
int DRIVER(StreamEndCapture)(void* stream, void** graph) {
  Call call(__func__, kBad);
  call.EndCapture(stream, graph);
  return call.result();
}
int DRIVER(GraphInstantiateWithFlags)(void** ready, void* graph, unsigned long long flags) {
  Call call(__func__, kBad);
  call.Instantiate(ready, graph, flags);
  return call.result();
}
int DRIVER(GraphLaunch)(void* ready, void* stream) {
  Call call(__func__, kBad);
  call.LaunchGraph(ready, stream);
  return call.result();
}
int DRIVER(GraphExecDestroy)(void* ready) {
  Release call(__func__);
  return call.Done(ForgetGraph(ready));
}
int DRIVER(GraphDestroy)(void* graph) {
  Release call(__func__);
  return call.Done(ForgetGraph(graph));
}

// ---- Pages and pinned memory ----

int DRIVER(MemGetAllocationGranularity)(size_t* bytes, const void* properties, int option) {
  Call call(__func__, kBad);
  call.PageBytes(bytes, properties, option);
  return call.result();
}
int DRIVER(MemAddressReserve)(uint64_t* address, size_t bytes, size_t alignment, uint64_t wanted,
                              unsigned long long flags) {
  Call call(__func__, kBad);
  call.Need(alignment == 0 && wanted == 0 && flags == 0, "arguments");
  call.Reserve(address, bytes);
  return call.result();
}
int DRIVER(MemAddressFree)(uint64_t address, size_t bytes) {
  Release call(__func__);
  return call.Done(FreeAddresses(address, bytes));
}
int DRIVER(MemCreate)(uint64_t* handle, size_t bytes, const void* properties,
                      unsigned long long flags) {
  Call call(__func__, kBad);
  call.Need(flags == 0, "flags");
  call.CreatePage(handle, bytes, properties, kNoMemory);
  return call.result();
}
int DRIVER(MemRelease)(uint64_t handle) {
  Release call(__func__);
  return call.Done(ReleasePage(handle));
}
int DRIVER(MemMap)(uint64_t address, size_t bytes, size_t offset, uint64_t handle,
                   unsigned long long flags) {
  Call call(__func__, kBad);
  call.Need(offset == 0 && flags == 0, "arguments");
  call.MapPage(address, bytes, handle);
  return call.result();
}
int DRIVER(MemUnmap)(uint64_t address, size_t bytes) {
  Release call(__func__);
  return call.Done(UnmapPages(address, bytes));
}
int DRIVER(MemSetAccess)(uint64_t address, size_t bytes, const void* access, size_t count) {
  Call call(__func__, kBad);
  call.Need(count == 1, "count");
  call.AllowAccess(address, bytes, access);
  return call.result();
}
int SUFFIXED(MemHostRegister)(void* data, size_t bytes, unsigned flags) {
  Call call(__func__, kBad);
  call.Need(flags == 1, "flags");
  call.Pin(data, bytes);
  return call.result();
}
int DRIVER(MemHostUnregister)(void* data) {
  Release call(__func__);
  return call.Done(Fake().pinned.erase(data) == 1);
}
int DRIVER(DeviceGetPCIBusId)(char* text, int bytes, int) {
  Call call(__func__, kBad, kAnywhere);
  std::snprintf(text, static_cast<size_t>(bytes), "0000:65:00.0");
  return call.result();
}

}  // extern "C"
#pragma GCC visibility pop

#endif  // TERRACE_TESTS_CONFORMANCE_DRIVER_SHAPE_H_
