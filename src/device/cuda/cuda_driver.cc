#include "device/cuda/cuda_driver.h"

#include <utility>

#include <fmt/format.h>

#include "base/status.h"
#include "base/units.h"

namespace terrace::device::cuda {
namespace {

constexpr uint64_t kPageBytes = uint64_t{2} << 20;
constexpr int kMinimum = 0;        // of the granularities
constexpr unsigned kPortable = 1;  // pinned for all contexts

Address AddressOf(const std::byte* data) { return reinterpret_cast<uintptr_t>(data); }
StreamHandle StreamOf(void* stream) { return static_cast<StreamHandle>(stream); }
EventHandle EventOf(void* event) { return static_cast<EventHandle>(event); }

class CudaApi final : public DriverApi {
 public:
  CudaApi(const Driver& driver, Ordinal device) : driver_(driver), device_(device) {
    page_.location = device;
  }
  ~CudaApi() override {
    if (context_ != nullptr) driver_.DevicePrimaryCtxRelease(device_);
  }

  absl::Status Open() {
    if (driver_.DevicePrimaryCtxRetain == nullptr) return absl::OkStatus();
    ContextHandle context = nullptr;
    RETURN_IF_ERROR(
        Check(driver_.DevicePrimaryCtxRetain(&context, device_), "DevicePrimaryCtxRetain"));
    context_ = context;
    return absl::OkStatus();
  }

  absl::Status Enter() const override {
    if (context_ == nullptr) return Check(driver_.SetDevice(device_), "SetDevice");
    return Check(driver_.CtxSetCurrent(context_), "CtxSetCurrent");
  }

  absl::StatusOr<Room> GetRoom() const override {
    size_t free = 0, total = 0;
    RETURN_IF_ERROR(Check(driver_.MemGetInfo(&free, &total), "MemGetInfo"));
    return Room{free, total};
  }
  absl::StatusOr<uint64_t> PageBytes() const override {
    if (driver_.MemGetAllocationGranularity == nullptr || driver_.MemAddressReserve == nullptr ||
        driver_.MemAddressFree == nullptr || driver_.MemCreate == nullptr ||
        driver_.MemRelease == nullptr || driver_.MemMap == nullptr || driver_.MemUnmap == nullptr ||
        driver_.MemSetAccess == nullptr) {
      return 0;
    }
    int supported = 0;
    RETURN_IF_ERROR(
        Check(driver_.DeviceGetAttribute(&supported, driver_.attributes.virtual_memory, device_),
              "DeviceGetAttribute"));
    if (supported == 0) return 0;
    size_t least = 0;
    RETURN_IF_ERROR(Check(driver_.MemGetAllocationGranularity(&least, &page_, kMinimum),
                          "MemGetAllocationGranularity"));
    // Small pages would take more calls than they save memory.
    return least == 0 ? 0 : AlignUp(kPageBytes, least);
  }
  absl::StatusOr<uint64_t> ReserveAddresses(uint64_t bytes) const override {
    Address address = 0;
    RETURN_IF_ERROR(
        Check(driver_.MemAddressReserve(&address, bytes, 0, 0, 0), "MemAddressReserve"));
    return address;
  }
  void FreeAddresses(uint64_t address, uint64_t bytes) const override {
    driver_.MemAddressFree(address, bytes);
  }
  absl::StatusOr<uint64_t> CreatePage(uint64_t bytes) const override {
    uint64_t handle = 0;
    RETURN_IF_ERROR(Check(driver_.MemCreate(&handle, bytes, &page_, 0), "MemCreate"));
    return handle;
  }
  void ReleasePage(uint64_t handle) const override { driver_.MemRelease(handle); }
  absl::Status MapPage(uint64_t address, uint64_t bytes, uint64_t handle) const override {
    return Check(driver_.MemMap(address, bytes, 0, handle, 0), "MemMap");
  }
  absl::Status AllowAccess(uint64_t address, uint64_t bytes) const override {
    PageAccess access;
    access.location = device_;
    return Check(driver_.MemSetAccess(address, bytes, &access, 1), "MemSetAccess");
  }
  void Unmap(uint64_t address, uint64_t bytes) const override { driver_.MemUnmap(address, bytes); }

  bool Pin(std::span<std::byte> memory) const override {
    return driver_.MemHostRegister != nullptr && driver_.MemHostUnregister != nullptr &&
           driver_.MemHostRegister(memory.data(), memory.size(), kPortable) == kSuccess;
  }
  void Unpin(std::span<std::byte> memory) const override {
    driver_.MemHostUnregister(memory.data());
  }

  absl::StatusOr<uint64_t> Allocate(uint64_t bytes) const override {
    Address address = 0;
    RETURN_IF_ERROR(Check(driver_.MemAlloc(&address, bytes), "MemAlloc"));
    return address;
  }
  void Free(uint64_t address) const override { driver_.MemFree(address); }
  absl::Status Copy(CopyDirection direction, std::byte* to, const std::byte* from, uint64_t bytes,
                    void* stream) const override {
    Result code = kInvalidValue;
    switch (direction) {
      case CopyDirection::kHostToDevice:
        code = driver_.MemcpyHtoDAsync(AddressOf(to), from, bytes, StreamOf(stream));
        break;
      case CopyDirection::kDeviceToHost:
        code = driver_.MemcpyDtoHAsync(to, AddressOf(from), bytes, StreamOf(stream));
        break;
      case CopyDirection::kDeviceToDevice:
        code = driver_.MemcpyDtoDAsync(AddressOf(to), AddressOf(from), bytes, StreamOf(stream));
        break;
    }
    return Check(code, "copying");
  }

  absl::StatusOr<void*> CreateStream() const override {
    StreamHandle stream = nullptr;
    RETURN_IF_ERROR(Check(driver_.StreamCreate(&stream, kNonBlocking), "StreamCreate"));
    return static_cast<void*>(stream);
  }
  void DestroyStream(void* stream) const override { driver_.StreamDestroy(StreamOf(stream)); }
  absl::Status SynchronizeStream(void* stream) const override {
    return Check(driver_.StreamSynchronize(StreamOf(stream)), "StreamSynchronize");
  }
  absl::Status WaitEvent(void* stream, void* event) const override {
    return Check(driver_.StreamWaitEvent(StreamOf(stream), EventOf(event), 0), "StreamWaitEvent");
  }

  absl::StatusOr<void*> CreateEvent() const override {
    EventHandle event = nullptr;
    RETURN_IF_ERROR(Check(driver_.EventCreate(&event, kDisableTiming), "EventCreate"));
    return static_cast<void*>(event);
  }
  void DestroyEvent(void* event) const override { driver_.EventDestroy(EventOf(event)); }
  absl::Status RecordEvent(void* event, void* stream) const override {
    return Check(driver_.EventRecord(EventOf(event), StreamOf(stream)), "EventRecord");
  }
  absl::StatusOr<bool> QueryEvent(void* event) const override {
    const Result code = driver_.EventQuery(EventOf(event));
    if (code == kNotReady) return false;
    RETURN_IF_ERROR(Check(code, "EventQuery"));
    return true;
  }
  absl::Status SynchronizeEvent(void* event) const override {
    return Check(driver_.EventSynchronize(EventOf(event)), "EventSynchronize");
  }

  absl::StatusOr<void*> LoadModule(const std::string& image) const override {
    ModuleHandle module = nullptr;
    RETURN_IF_ERROR(Check(driver_.ModuleLoadData(&module, image.data()), "ModuleLoadData"));
    return static_cast<void*>(module);
  }
  void UnloadModule(void* module) const override {
    driver_.ModuleUnload(static_cast<ModuleHandle>(module));
  }
  absl::StatusOr<void*> GetFunction(void* module, const std::string& name) const override {
    FunctionHandle function = nullptr;
    const Result code =
        driver_.ModuleGetFunction(&function, static_cast<ModuleHandle>(module), name.c_str());
    if (code == kNotFound) {
      return absl::InvalidArgumentError(fmt::format("the source has no kernel {}", name));
    }
    RETURN_IF_ERROR(Check(code, "ModuleGetFunction"));
    return static_cast<void*>(function);
  }
  absl::Status Launch(void* function, const LaunchShape& shape, void** parameters,
                      void* stream) const override {
    return Check(
        driver_.LaunchKernel(static_cast<FunctionHandle>(function), shape.groups[0],
                             shape.groups[1], shape.groups[2], shape.items[0], shape.items[1],
                             shape.items[2], 0, StreamOf(stream), parameters, nullptr),
        "LaunchKernel");
  }

  bool HasGraphs() const override {
    return driver_.StreamBeginCapture != nullptr && driver_.StreamEndCapture != nullptr &&
           driver_.GraphInstantiate != nullptr && driver_.GraphLaunch != nullptr &&
           driver_.GraphExecDestroy != nullptr && driver_.GraphDestroy != nullptr;
  }
  absl::Status BeginCapture(void* stream) const override {
    return Check(driver_.StreamBeginCapture(StreamOf(stream), kRelaxedCapture),
                 "StreamBeginCapture");
  }
  absl::StatusOr<void*> EndCapture(void* stream) const override {
    GraphHandle graph = nullptr;
    RETURN_IF_ERROR(Check(driver_.StreamEndCapture(StreamOf(stream), &graph), "StreamEndCapture"));
    ReadyGraph ready = nullptr;
    const absl::Status made = Check(driver_.GraphInstantiate(&ready, graph, 0), "GraphInstantiate");
    driver_.GraphDestroy(graph);
    RETURN_IF_ERROR(made);
    return static_cast<void*>(ready);
  }
  absl::Status LaunchGraph(void* graph, void* stream) const override {
    return Check(driver_.GraphLaunch(static_cast<ReadyGraph>(graph), StreamOf(stream)),
                 "GraphLaunch");
  }
  void DestroyGraph(void* graph) const override {
    driver_.GraphExecDestroy(static_cast<ReadyGraph>(graph));
  }

 private:
  absl::Status Check(Result code, const char* call) const { return ToStatus(driver_, code, call); }

  const Driver driver_;
  const Ordinal device_;
  PageProperties page_;
  ContextHandle context_ = nullptr;
};

absl::StatusOr<std::string> Architecture(const Driver& driver, Ordinal device) {
  if (driver.DeviceArchitecture != nullptr) {
    char name[256] = {};
    RETURN_IF_ERROR(ToStatus(driver, driver.DeviceArchitecture(name, sizeof(name), device),
                             "the device's kind"));
    return std::string(name);
  }
  int major = 0, minor = 0;
  RETURN_IF_ERROR(ToStatus(driver,
                           driver.DeviceGetAttribute(&major, driver.attributes.major, device),
                           "DeviceGetAttribute"));
  RETURN_IF_ERROR(ToStatus(driver,
                           driver.DeviceGetAttribute(&minor, driver.attributes.minor, device),
                           "DeviceGetAttribute"));
  return fmt::format("{}{}{}", driver.architecture_prefix, major, minor);
}

// Of the makers' preludes CUDA's has it, for compute capability 8.0 and later, and HIP's for chips
// with matrix cores.
absl::StatusOr<bool> HasTileProduct(const Driver& driver, Ordinal device,
                                    const std::string& architecture) {
  for (const std::string& name : driver.tile_product_architectures) {
    if (architecture.starts_with(name)) return true;
  }
  if (driver.tile_product_from == 0) return false;
  int major = 0;
  RETURN_IF_ERROR(ToStatus(driver,
                           driver.DeviceGetAttribute(&major, driver.attributes.major, device),
                           "DeviceGetAttribute"));
  return major >= driver.tile_product_from;
}

}  // namespace

absl::StatusOr<OpenedDriver> OpenDriver(const Driver& driver, int ordinal) {
  const auto check = [&](Result code, const char* call) { return ToStatus(driver, code, call); };
  RETURN_IF_ERROR(check(driver.Init(0), "Init"));
  int count = 0;
  RETURN_IF_ERROR(check(driver.DeviceGetCount(&count), "DeviceGetCount"));
  if (ordinal < 0 || ordinal >= count) {
    return absl::NotFoundError(
        fmt::format("there is no {} device {}: the driver has {}", driver.maker, ordinal, count));
  }
  Ordinal device = 0;
  RETURN_IF_ERROR(check(driver.DeviceGet(&device, ordinal), "DeviceGet"));
  OpenedDriver opened;
  char name[256] = {};
  RETURN_IF_ERROR(check(driver.DeviceGetName(name, sizeof(name) - 1, device), "DeviceGetName"));
  opened.chip = name;
  ASSIGN_OR_RETURN(opened.architecture, Architecture(driver, device));
  int items = 0;
  RETURN_IF_ERROR(
      check(driver.DeviceGetAttribute(&items, driver.attributes.max_threads_per_block, device),
            "DeviceGetAttribute"));
  opened.max_group_items = static_cast<uint32_t>(items);
  char pci[32] = {};
  if (driver.DeviceGetPCIBusId != nullptr &&
      driver.DeviceGetPCIBusId(pci, sizeof(pci) - 1, device) == kSuccess) {
    opened.pci_bus_id = pci;
  }
  ASSIGN_OR_RETURN(opened.tile_product, HasTileProduct(driver, device, opened.architecture));
  auto api = std::make_unique<CudaApi>(driver, device);
  RETURN_IF_ERROR(api->Open());
  opened.api = std::move(api);
  return opened;
}

}  // namespace terrace::device::cuda
