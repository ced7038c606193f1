// A stand-in for Cambricon's CNRT (cnrt.h), by its public entry points.
#include "fake_call.h"

using namespace terrace::device;

namespace {
constexpr int kBad = 100006;       // ArgsInvalid
constexpr int kNoMemory = 100100;  // NoMem
}  // namespace

#pragma GCC visibility push(default)
extern "C" {

VendorFake* terrace_fake_state() { return &Fake(); }

const char* cnrtGetErrorStr(int) {
  Release call("cnrtGetErrorStr");
  return "made to fail";
}
int cnrtGetDeviceCount(unsigned* count) {
  Call call("cnrtGetDeviceCount", kBad, kAnywhere);
  *count = 1;
  return call.result();
}
int cnrtSetDevice(int device) {
  Release call("cnrtSetDevice");
  Entered() = device;
  return call.Done(device == 0);
}
int cnrtMemGetInfo(size_t* free, size_t* total) {
  Call call("cnrtMemGetInfo", kBad);
  *total = Fake().memory_bytes;
  *free = Fake().memory_bytes - Fake().Used();
  return call.result();
}
int cnrtMalloc(void** data, size_t bytes) {
  Call call("cnrtMalloc", kBad);
  call.Allocate(data, bytes, kNoMemory);
  return call.result();
}
int cnrtFree(void* data) {
  Release call("cnrtFree");
  return call.Done(Fake().allocations.erase(reinterpret_cast<uintptr_t>(data)) == 1);
}
int cnrtMemcpyAsync_V3(void* to, void* from, size_t bytes, void* queue, int direction) {
  Call call("cnrtMemcpyAsync_V3", kBad);
  call.NeedStream(queue);
  call.Need(direction >= 0 && direction <= 2, "direction");
  if (call.ok()) {
    call.Copy(direction == 0   ? FakeDirection::kToDevice
              : direction == 2 ? FakeDirection::kToHost
                               : FakeDirection::kOnDevice,
              to, from, bytes);
  }
  return call.result();
}

int cnrtQueueCreate(void** queue) {
  Call call("cnrtQueueCreate", kBad);
  call.NewStream(queue);
  return call.result();
}
int cnrtQueueDestroy(void* queue) {
  Release call("cnrtQueueDestroy");
  return call.Done(Fake().streams.erase(queue) == 1);
}
int cnrtQueueSync(void* queue) {
  Call call("cnrtQueueSync", kBad);
  call.NeedStream(queue);
  return call.result();
}
int cnrtQueueWaitNotifier(void* notifier, void* queue, unsigned flags) {
  Call call("cnrtQueueWaitNotifier", kBad);
  call.Need(flags == 0, "flags");
  call.NeedRecorded(notifier);
  call.NeedStream(queue);
  return call.result();
}

int cnrtNotifierCreateWithFlags(void** notifier, unsigned flags) {
  Call call("cnrtNotifierCreateWithFlags", kBad);
  call.Need((flags & ~14u) == 0, "flags");
  call.NewEvent(notifier);
  return call.result();
}
int cnrtNotifierDestroy(void* notifier) {
  Release call("cnrtNotifierDestroy");
  return call.Done(Fake().events.erase(notifier) == 1);
}
int cnrtPlaceNotifier(void* notifier, void* queue) {
  Call call("cnrtPlaceNotifier", kBad);
  call.Record(notifier, queue);
  return call.result();
}
int cnrtQueryNotifier(void* notifier) {
  Call call("cnrtQueryNotifier", kBad);
  call.NeedRecorded(notifier);
  return call.result();
}
int cnrtWaitNotifier(void* notifier) {
  Call call("cnrtWaitNotifier", kBad);
  call.NeedEvent(notifier);
  return call.result();
}

}  // extern "C"
#pragma GCC visibility pop
