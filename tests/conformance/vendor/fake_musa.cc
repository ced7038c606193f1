// A stand-in for the MUSA driver, whose entry points are CUDA's under other names. Some carry the
// suffix "_v2" and some do not, as in the maker's own table.
#include <cstdio>

#include "fake_call.h"

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

int muInit(unsigned flags) {
  Call call("muInit", kBad, kAnywhere);
  call.Need(flags == 0, "flags");
  if (call.ok()) Fake().initialised = true;
  return call.result();
}
int muGetErrorString(int, const char** text) {
  *text = "made to fail";
  return 0;
}
int muDeviceGetCount(int* count) {
  Call call("muDeviceGetCount", kBad, kAnywhere);
  call.Need(Fake().initialised, "before muInit");
  *count = 1;
  return call.result();
}
int muDeviceGet(int* device, int ordinal) {
  Call call("muDeviceGet", kBad, kAnywhere);
  *device = ordinal;
  return call.result();
}
int muDeviceGetName(char* name, int bytes, int) {
  Call call("muDeviceGetName", kBad, kAnywhere);
  std::snprintf(name, static_cast<size_t>(bytes), "Stand-in");
  return call.result();
}
int muDeviceGetAttribute(int* value, int attribute, int) {
  Call call("muDeviceGetAttribute", kBad, kAnywhere);
  call.Need(attribute == 1 || attribute == 75 || attribute == 76, "attribute");
  *value = attribute == 75 ? 3 : attribute == 76 ? 1 : 1024;
  return call.result();
}
int muDevicePrimaryCtxRetain(void** context, int) {
  Call call("muDevicePrimaryCtxRetain", kBad, kAnywhere);
  if (!call.ok()) return call.result();
  ++Fake().contexts;
  *context = kContext;
  return 0;
}
int muDevicePrimaryCtxRelease_v2(int) {
  Release call("muDevicePrimaryCtxRelease_v2");
  return call.Done(--Fake().contexts >= 0);
}
int muCtxSetCurrent(void* context) {
  Release call("muCtxSetCurrent");
  Entered() = context == kContext && Fake().contexts > 0 ? 0 : -1;
  return call.Done(Entered() == 0);
}
int muMemGetInfo(size_t* free, size_t* total) {
  Call call("muMemGetInfo", kBad);
  *total = Fake().memory_bytes;
  *free = Fake().memory_bytes - Fake().Used();
  return call.result();
}
int muMemAlloc_v2(uint64_t* address, size_t bytes) {
  Call call("muMemAlloc_v2", kBad);
  void* data = nullptr;
  call.Allocate(&data, bytes, kNoMemory);
  *address = reinterpret_cast<uintptr_t>(data);
  return call.result();
}
int muMemFree_v2(uint64_t address) {
  Release call("muMemFree_v2");
  return call.Done(Fake().allocations.erase(address) == 1);
}
int muMemcpyHtoDAsync_v2(uint64_t to, void* from, size_t bytes, void* stream) {
  Call call("muMemcpyHtoDAsync_v2", kBad);
  call.NeedStream(stream);
  if (call.ok()) call.Copy(FakeDirection::kToDevice, Pointer(to), from, bytes);
  return call.result();
}
int muMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void* stream) {
  Call call("muMemcpyDtoHAsync_v2", kBad);
  call.NeedStream(stream);
  if (call.ok()) call.Copy(FakeDirection::kToHost, to, Pointer(from), bytes);
  return call.result();
}
int muMemcpyDtoDAsync(uint64_t to, uint64_t from, size_t bytes, void* stream) {
  Call call("muMemcpyDtoDAsync", kBad);
  call.NeedStream(stream);
  if (call.ok()) call.Copy(FakeDirection::kOnDevice, Pointer(to), Pointer(from), bytes);
  return call.result();
}
int muStreamCreate(void** stream, unsigned) {
  Call call("muStreamCreate", kBad);
  call.NewStream(stream);
  return call.result();
}
int muStreamDestroy(void* stream) {
  Release call("muStreamDestroy");
  return call.Done(Fake().streams.erase(stream) == 1);
}
int muStreamSynchronize(void* stream) {
  Call call("muStreamSynchronize", kBad);
  call.NeedStream(stream);
  return call.result();
}
int muStreamWaitEvent(void* stream, void* event, unsigned) {
  Call call("muStreamWaitEvent", kBad);
  call.NeedStream(stream);
  call.NeedRecorded(event);
  return call.result();
}
int muEventCreate(void** event, unsigned) {
  Call call("muEventCreate", kBad);
  call.NewEvent(event);
  return call.result();
}
int muEventDestroy_v2(void* event) {
  Release call("muEventDestroy_v2");
  return call.Done(Fake().events.erase(event) == 1);
}
int muEventRecord(void* event, void* stream) {
  Call call("muEventRecord", kBad);
  call.Record(event, stream);
  return call.result();
}
int muEventQuery(void* event) {
  Call call("muEventQuery", kBad);
  call.NeedRecorded(event);
  return call.result();
}
int muEventSynchronize(void* event) {
  Call call("muEventSynchronize", kBad);
  call.NeedRecorded(event);
  return call.result();
}
int muModuleLoadData(void** module, const void* image) {
  Call call("muModuleLoadData", kBad);
  call.Need(image != nullptr, "no image");
  call.NewObject(module);
  return call.result();
}
int muModuleUnload(void* module) {
  Release call("muModuleUnload");
  return call.Done(Fake().objects.erase(module) == 1);
}
int muModuleGetFunction(void** function, void* module, const char*) {
  Call call("muModuleGetFunction", kBad);
  call.NeedObject(module);
  *function = module;
  return call.result();
}
int muLaunchKernel(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   unsigned, void* stream, void**, void**) {
  Call call("muLaunchKernel", kBad);
  call.NeedObject(function);
  call.NeedStream(stream);
  if (call.ok()) Fake().launched.emplace_back("kernel");
  return call.result();
}

}  // extern "C"
#pragma GCC visibility pop
