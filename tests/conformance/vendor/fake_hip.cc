// A stand-in for the HIP runtime (hip_runtime_api.h), by its public entry points.
#include <cstdio>

#include "fake_call.h"
#include "fake_pages.h"

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
const char* hipGetErrorString(int) {
  Release call("hipGetErrorString");
  return "made to fail";
}
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
  // MaxThreadsPerBlock, VirtualMemoryManagementSupported
  call.Need(attribute == 56 || attribute == 89, "attribute");
  *value = attribute == 89 ? int{Fake().has_pages} : 1024;
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
  call.NeedNoCapture(stream);
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
  if (call.ok() && std::string(name) == "absent") return 500;  // NotFound
  call.NewFunction(function, module, name);
  return call.result();
}
int hipModuleLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                          unsigned by, unsigned bz, unsigned shared, void* stream,
                          void** parameters, void**) {
  Call call("hipModuleLaunchKernel", kBad);
  call.Need(shared == 0, "shared memory");
  if (call.ok()) call.Launched(function, stream, {gx, gy, gz, bx, by, bz}, parameters);
  return call.result();
}

// ---- Graphs ----

int hipStreamBeginCapture(void* stream, int mode) {
  Call call(__func__, kBad);
  call.BeginCapture(stream, mode);
  return call.result();
}
int hipStreamEndCapture(void* stream, void** graph) {
  Call call(__func__, kBad);
  call.EndCapture(stream, graph);
  return call.result();
}
int hipGraphInstantiateWithFlags(void** ready, void* graph, unsigned long long flags) {
  Call call(__func__, kBad);
  call.Instantiate(ready, graph, flags);
  return call.result();
}
int hipGraphLaunch(void* ready, void* stream) {
  Call call(__func__, kBad);
  call.LaunchGraph(ready, stream);
  return call.result();
}
int hipGraphExecDestroy(void* ready) {
  Release call(__func__);
  return call.Done(ForgetGraph(ready));
}
int hipGraphDestroy(void* graph) {
  Release call(__func__);
  return call.Done(ForgetGraph(graph));
}

// ---- Pages and pinned memory ----

int hipMemGetAllocationGranularity(size_t* bytes, const void* properties, int option) {
  Call call(__func__, kBad);
  call.PageBytes(bytes, properties, option);
  return call.result();
}
int hipMemAddressReserve(uint64_t* address, size_t bytes, size_t alignment, uint64_t wanted,
                         unsigned long long flags) {
  Call call(__func__, kBad);
  call.Need(alignment == 0 && wanted == 0 && flags == 0, "arguments");
  call.Reserve(address, bytes);
  return call.result();
}
int hipMemAddressFree(uint64_t address, size_t bytes) {
  Release call(__func__);
  return call.Done(FreeAddresses(address, bytes));
}
int hipMemCreate(uint64_t* handle, size_t bytes, const void* properties, unsigned long long flags) {
  Call call(__func__, kBad);
  call.Need(flags == 0, "flags");
  call.CreatePage(handle, bytes, properties, kNoMemory);
  return call.result();
}
int hipMemRelease(uint64_t handle) {
  Release call(__func__);
  return call.Done(ReleasePage(handle));
}
int hipMemMap(uint64_t address, size_t bytes, size_t offset, uint64_t handle,
              unsigned long long flags) {
  Call call(__func__, kBad);
  call.Need(offset == 0 && flags == 0, "arguments");
  call.MapPage(address, bytes, handle);
  return call.result();
}
int hipMemUnmap(uint64_t address, size_t bytes) {
  Release call(__func__);
  return call.Done(UnmapPages(address, bytes));
}
int hipMemSetAccess(uint64_t address, size_t bytes, const void* access, size_t count) {
  Call call(__func__, kBad);
  call.Need(count == 1, "count");
  call.AllowAccess(address, bytes, access);
  return call.result();
}
int hipHostRegister(void* data, size_t bytes, unsigned flags) {
  Call call(__func__, kBad);
  call.Need(flags == 1, "flags");
  call.Pin(data, bytes);
  return call.result();
}
int hipHostUnregister(void* data) {
  Release call(__func__);
  return call.Done(Fake().pinned.erase(data) == 1);
}
int hipDeviceGetPCIBusId(char* text, int bytes, int) {
  Call call(__func__, kBad, kAnywhere);
  std::snprintf(text, static_cast<size_t>(bytes), "0000:65:00.0");
  return call.result();
}

// ---- The run-time compiler: what it is given is what comes out ----

int hiprtcVersion(int* major, int* minor) {
  Call call("hiprtcVersion", kBad, kAnywhere);
  *major = 6;
  *minor = 3;
  return call.result();
}
const char* hiprtcGetErrorString(int) {
  Release call("hiprtcGetErrorString");
  return "made to fail";
}
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
  Call call("hiprtcGetProgramLogSize", kBad, kAnywhere);
  *bytes = 4;
  return call.result();
}
int hiprtcGetProgramLog(void*, char* log) {
  Call call("hiprtcGetProgramLog", kBad, kAnywhere);
  std::memcpy(log, "log", 4);
  return call.result();
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
