// A stand-in for the HIP runtime (hip_runtime_api.h), by its public entry points.
#include <cstdio>

#include "fake_call.h"

using namespace terrace::device;

namespace {
constexpr int kBad = 1;       // InvalidValue
constexpr int kNoMemory = 2;  // OutOfMemory
}  // namespace

#pragma GCC visibility push(default)
extern "C" {

VendorFake* terrace_fake_state() { return &Fake(); }

int hipInit(unsigned flags) {
  Call call("hipInit", kBad, kAnywhere);
  call.Need(flags == 0, "flags");
  return call.result();
}
const char* hipGetErrorString(int) { return "made to fail"; }
int hipGetDeviceCount(int* count) {
  Call call("hipGetDeviceCount", kBad, kAnywhere);
  *count = 1;
  return call.result();
}
int hipDeviceGet(int* device, int ordinal) {
  Call call("hipDeviceGet", kBad, kAnywhere);
  *device = ordinal;
  return call.result();
}
// The fields at the offsets of the structure that the suffix stands for.
int hipGetDevicePropertiesR0600(void* properties, int) {
  Call call("hipGetDevicePropertiesR0600", kBad, kAnywhere);
  auto* bytes = static_cast<char*>(properties);
  std::snprintf(bytes, 256, "Stand-in");
  std::snprintf(bytes + 1160, 256, "gfx906:sramecc+:xnack-");
  return call.result();
}
int hipDeviceGetAttribute(int* value, int attribute, int) {
  Call call("hipDeviceGetAttribute", kBad, kAnywhere);
  call.Need(attribute == 56, "not MaxThreadsPerBlock");
  *value = 1024;
  return call.result();
}
int hipSetDevice(int device) {
  Release call("hipSetDevice");
  Entered() = device;
  return call.Done(device == 0);
}
int hipMemGetInfo(size_t* free, size_t* total) {
  Call call("hipMemGetInfo", kBad);
  *total = Fake().memory_bytes;
  *free = Fake().memory_bytes - Fake().Used();
  return call.result();
}
int hipMalloc(void** data, size_t bytes) {
  Call call("hipMalloc", kBad);
  call.Allocate(data, bytes, kNoMemory);
  return call.result();
}
int hipFree(void* data) {
  Release call("hipFree");
  return call.Done(Fake().allocations.erase(reinterpret_cast<uintptr_t>(data)) == 1);
}

#define TERRACE_FAKE_COPY(name, direction)                               \
  int name(void* to, void* from, size_t bytes, void* stream) {           \
    Call call(#name, kBad);                                              \
    call.NeedStream(stream);                                             \
    if (call.ok()) call.Copy(FakeDirection::direction, to, from, bytes); \
    return call.result();                                                \
  }
TERRACE_FAKE_COPY(hipMemcpyHtoDAsync, kToDevice)
TERRACE_FAKE_COPY(hipMemcpyDtoHAsync, kToHost)
TERRACE_FAKE_COPY(hipMemcpyDtoDAsync, kOnDevice)

int hipStreamCreateWithFlags(void** stream, unsigned) {
  Call call("hipStreamCreateWithFlags", kBad);
  call.NewStream(stream);
  return call.result();
}
int hipStreamDestroy(void* stream) {
  Release call("hipStreamDestroy");
  return call.Done(Fake().streams.erase(stream) == 1);
}
int hipStreamSynchronize(void* stream) {
  Call call("hipStreamSynchronize", kBad);
  call.NeedStream(stream);
  return call.result();
}
int hipStreamWaitEvent(void* stream, void* event, unsigned) {
  Call call("hipStreamWaitEvent", kBad);
  call.NeedStream(stream);
  call.NeedRecorded(event);
  return call.result();
}
int hipEventCreateWithFlags(void** event, unsigned) {
  Call call("hipEventCreateWithFlags", kBad);
  call.NewEvent(event);
  return call.result();
}
int hipEventDestroy(void* event) {
  Release call("hipEventDestroy");
  return call.Done(Fake().events.erase(event) == 1);
}
int hipEventRecord(void* event, void* stream) {
  Call call("hipEventRecord", kBad);
  call.Record(event, stream);
  return call.result();
}
int hipEventQuery(void* event) {
  Call call("hipEventQuery", kBad);
  call.NeedRecorded(event);
  return call.result();
}
int hipEventSynchronize(void* event) {
  Call call("hipEventSynchronize", kBad);
  call.NeedRecorded(event);
  return call.result();
}

int hipModuleLoadData(void** module, const void* image) {
  Call call("hipModuleLoadData", kBad);
  call.Need(image != nullptr, "no image");
  call.NewObject(module);
  return call.result();
}
int hipModuleUnload(void* module) {
  Release call("hipModuleUnload");
  return call.Done(Fake().objects.erase(module) == 1);
}
int hipModuleGetFunction(void** function, void* module, const char* name) {
  Call call("hipModuleGetFunction", kBad);
  call.NeedObject(module);
  if (!call.ok()) return call.result();
  if (std::string(name) == "absent") return 500;  // NotFound
  *function = module;
  return 0;
}
int hipModuleLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                          unsigned by, unsigned bz, unsigned shared, void* stream, void**, void**) {
  Call call("hipModuleLaunchKernel", kBad);
  call.NeedObject(function);
  call.NeedStream(stream);
  call.Need(shared == 0, "shared memory");
  if (call.ok()) {
    char shape[128];
    std::snprintf(shape, sizeof(shape), "%ux%ux%u groups of %ux%ux%u", gx, gy, gz, bx, by, bz);
    Fake().launched.emplace_back(shape);
  }
  return call.result();
}

// ---- The run-time compiler: what it is given is what comes out ----

int hiprtcVersion(int* major, int* minor) {
  *major = 6;
  *minor = 3;
  return 0;
}
const char* hiprtcGetErrorString(int) { return "made to fail"; }
int hiprtcCreateProgram(void** program, const char* source, const char*, int, const char**,
                        const char**) {
  Call call("hiprtcCreateProgram", kBad, kAnywhere);
  if (!call.ok()) return call.result();
  auto* text = new std::string(source);
  Fake().objects.insert(text);
  *program = text;
  return 0;
}
int hiprtcDestroyProgram(void** program) {
  Release call("hiprtcDestroyProgram");
  const bool known = Fake().objects.erase(*program) == 1;
  if (known) delete static_cast<std::string*>(*program);
  return call.Done(known);
}
int hiprtcCompileProgram(void* program, int count, const char** options) {
  Call call("hiprtcCompileProgram", kBad, kAnywhere);
  call.NeedObject(program);
  if (!call.ok()) return call.result();
  auto* text = static_cast<std::string*>(program);
  if (text->find("broken") != std::string::npos) return 6;  // COMPILATION
  for (int i = 0; i < count; ++i) Fake().launched.push_back(std::string("option ") + options[i]);
  return 0;
}
int hiprtcGetProgramLogSize(void*, size_t* bytes) {
  *bytes = 4;
  return 0;
}
int hiprtcGetProgramLog(void*, char* log) {
  std::memcpy(log, "log", 4);
  return 0;
}
int hiprtcGetCodeSize(void* program, size_t* bytes) {
  Call call("hiprtcGetCodeSize", kBad, kAnywhere);
  *bytes = static_cast<std::string*>(program)->size();
  return call.result();
}
int hiprtcGetCode(void* program, char* code) {
  Call call("hiprtcGetCode", kBad, kAnywhere);
  const auto* text = static_cast<std::string*>(program);
  std::memcpy(code, text->data(), text->size());
  return call.result();
}

}  // extern "C"
#pragma GCC visibility pop
