// A stand-in for AscendCL's runtime (acl/acl_rt.h), by its public entry points.
#include <cstdint>

#include "fake_call.h"

using namespace terrace::device;

namespace {
constexpr int kBad = 107000;       // PARAM_INVALID
constexpr int kNoMemory = 207001;  // MEMORY_ALLOCATION
}  // namespace

#pragma GCC visibility push(default)
extern "C" {

VendorFake* terrace_fake_state() { return &Fake(); }

int aclInit(const char*) {
  Call call("aclInit", kBad, kAnywhere);
  if (!call.ok()) return call.result();
  if (Fake().initialised) return 100002;  // REPEAT_INITIALIZE
  Fake().initialised = true;
  return 0;
}
const char* aclGetRecentErrMsg() {
  Release call("aclGetRecentErrMsg");
  return "made to fail";
}
const char* aclrtGetSocName() {
  Release call("aclrtGetSocName");
  return "Stand-in 910";
}

int aclrtGetDeviceCount(uint32_t* count) {
  Call call("aclrtGetDeviceCount", kBad, kAnywhere);
  call.Need(Fake().initialised, "before aclInit");
  *count = 1;
  return call.result();
}
int aclrtSetDevice(int32_t device) {
  Release call("aclrtSetDevice");
  if (device != 0 || !Fake().initialised) return call.Done(false);
  Fake().contexts = 1;
  Entered() = device;
  return 0;
}
int aclrtResetDevice(int32_t) {
  Release call("aclrtResetDevice");
  Fake().contexts = 0;
  return call.Done(Fake().streams.empty() && Fake().events.empty());
}
int aclrtGetMemInfo(int attribute, size_t* free, size_t* total) {
  Call call("aclrtGetMemInfo", kBad);
  call.Need(attribute == 1, "not ACL_HBM_MEM");
  *total = Fake().memory_bytes;
  *free = Fake().memory_bytes - Fake().Used();
  return call.result();
}
int aclrtMalloc(void** data, size_t bytes, int policy) {
  Call call("aclrtMalloc", kBad);
  call.Need(policy == 0, "not ACL_MEM_MALLOC_HUGE_FIRST");
  // As the runtime does: a multiple of 32 bytes, and 32 behind them.
  call.Allocate(data, (bytes + 31) / 32 * 32 + 32, kNoMemory);
  return call.result();
}
int aclrtFree(void* data) {
  Release call("aclrtFree");
  return call.Done(Fake().allocations.erase(reinterpret_cast<uintptr_t>(data)) == 1);
}
int aclrtHostRegister(void* data, uint64_t bytes, int type, void** on_device) {
  Call call("aclrtHostRegister", kBad);
  call.Need(type == 0, "type");
  call.Need(reinterpret_cast<uintptr_t>(data) % 4096 == 0, "not at a page");
  call.Pin(data, bytes);
  *on_device = data;
  return call.result();
}
int aclrtHostUnregister(void* data) {
  Release call("aclrtHostUnregister");
  return call.Done(Fake().pinned.erase(data) == 1);
}
int aclrtMemcpyAsync(void* to, size_t most, const void* from, size_t bytes, int kind,
                     void* stream) {
  Call call("aclrtMemcpyAsync", kBad);
  call.NeedStream(stream);
  call.Need(bytes <= most, "more than destMax");
  call.Need(kind >= 1 && kind <= 3, "kind");
  if (call.ok()) {
    call.Copy(kind == 1   ? FakeDirection::kToDevice
              : kind == 2 ? FakeDirection::kToHost
                          : FakeDirection::kOnDevice,
              to, from, bytes);
  }
  return call.result();
}

int aclrtCreateStream(void** stream) {
  Call call("aclrtCreateStream", kBad);
  call.NewStream(stream);
  return call.result();
}
int aclrtDestroyStream(void* stream) {
  Release call("aclrtDestroyStream");
  return call.Done(Fake().streams.erase(stream) == 1);
}
int aclrtSynchronizeStream(void* stream) {
  Call call("aclrtSynchronizeStream", kBad);
  call.NeedStream(stream);
  return call.result();
}
int aclrtSynchronizeDevice() {
  Release call("aclrtSynchronizeDevice");
  return call.Done(true);
}
int aclrtStreamWaitEvent(void* stream, void* event) {
  Call call("aclrtStreamWaitEvent", kBad);
  call.NeedStream(stream);
  call.NeedRecorded(event);
  return call.result();
}

int aclrtCreateEventExWithFlag(void** event, uint32_t flags) {
  Call call("aclrtCreateEventExWithFlag", kBad);
  call.Need((flags & 1) != 0, "streams cannot wait for an event without ACL_EVENT_SYNC");
  call.NewEvent(event);
  return call.result();
}
int aclrtDestroyEvent(void* event) {
  Release call("aclrtDestroyEvent");
  return call.Done(Fake().events.erase(event) == 1);
}
int aclrtRecordEvent(void* event, void* stream) {
  Call call("aclrtRecordEvent", kBad);
  call.Record(event, stream);
  return call.result();
}
int aclrtQueryEventStatus(void* event, int* status) {
  Call call("aclrtQueryEventStatus", kBad);
  call.NeedRecorded(event);
  *status = 1;  // complete
  return call.result();
}
int aclrtSynchronizeEvent(void* event) {
  Call call("aclrtSynchronizeEvent", kBad);
  call.NeedRecorded(event);
  return call.result();
}

}  // extern "C"
#pragma GCC visibility pop
