#include "device/ascend/ascend_device.h"

#include <utility>

#include <fmt/format.h>

#include "base/status.h"
#include "device/ascend/acl_api.h"
#include "device/ascend/dcmi.h"
#include "device/ascend/hccl.h"

namespace terrace::device {
namespace {

class AscendApi final : public DriverApi {
 public:
  AscendApi(const ascend::Runtime& runtime, int32_t device) : acl_(runtime), device_(device) {}
  ~AscendApi() override {
    if (open_) acl_.rtResetDevice(device_);
  }

  absl::Status Open() {
    RETURN_IF_ERROR(Enter());
    open_ = true;
    return absl::OkStatus();
  }

  absl::Status Enter() const override { return Check(acl_.rtSetDevice(device_), "aclrtSetDevice"); }

  absl::StatusOr<Room> GetRoom() const override {
    size_t free = 0, total = 0;
    RETURN_IF_ERROR(Check(acl_.rtGetMemInfo(ascend::kHbmMemory, &free, &total), "aclrtGetMemInfo"));
    return Room{free, total};
  }
  // The runtime leaves behind each allocation what its operators read beyond the end.
  absl::StatusOr<uint64_t> Allocate(uint64_t bytes) const override {
    void* data = nullptr;
    RETURN_IF_ERROR(Check(acl_.rtMalloc(&data, bytes, ascend::kHugeFirst), "aclrtMalloc"));
    return reinterpret_cast<uintptr_t>(data);
  }
  // Freeing does not wait for what runs.
  void Free(uint64_t address) const override {
    acl_.rtSynchronizeDevice();
    acl_.rtFree(reinterpret_cast<void*>(address));
  }
  // The runtime copies from other host memory only while the caller waits.
  bool Pin(std::span<std::byte> memory) const override {
    constexpr uintptr_t kHostPage = 4096;
    void* on_device = nullptr;
    return acl_.rtHostRegister != nullptr && acl_.rtHostUnregister != nullptr &&
           reinterpret_cast<uintptr_t>(memory.data()) % kHostPage == 0 &&
           acl_.rtHostRegister(memory.data(), memory.size(), ascend::kMappedHost, &on_device) ==
               ascend::kSuccess;
  }
  void Unpin(std::span<std::byte> memory) const override { acl_.rtHostUnregister(memory.data()); }
  absl::Status Copy(CopyDirection direction, std::byte* to, const std::byte* from, uint64_t bytes,
                    void* stream) const override {
    const int kind = direction == CopyDirection::kHostToDevice   ? ascend::kHostToDevice
                     : direction == CopyDirection::kDeviceToHost ? ascend::kDeviceToHost
                                                                 : ascend::kDeviceToDevice;
    return Check(acl_.rtMemcpyAsync(to, bytes, from, bytes, kind, stream), "aclrtMemcpyAsync");
  }

  absl::StatusOr<void*> CreateStream() const override {
    void* stream = nullptr;
    RETURN_IF_ERROR(Check(acl_.rtCreateStream(&stream), "aclrtCreateStream"));
    return stream;
  }
  void DestroyStream(void* stream) const override { acl_.rtDestroyStream(stream); }
  absl::Status SynchronizeStream(void* stream) const override {
    return Check(acl_.rtSynchronizeStream(stream), "aclrtSynchronizeStream");
  }
  absl::Status WaitEvent(void* stream, void* event) const override {
    return Check(acl_.rtStreamWaitEvent(stream, event), "aclrtStreamWaitEvent");
  }

  absl::StatusOr<void*> CreateEvent() const override {
    void* event = nullptr;
    RETURN_IF_ERROR(Check(acl_.rtCreateEventExWithFlag(&event, ascend::kEventFlags),
                          "aclrtCreateEventExWithFlag"));
    return event;
  }
  void DestroyEvent(void* event) const override { acl_.rtDestroyEvent(event); }
  absl::Status RecordEvent(void* event, void* stream) const override {
    return Check(acl_.rtRecordEvent(event, stream), "aclrtRecordEvent");
  }
  absl::StatusOr<bool> QueryEvent(void* event) const override {
    int status = 0;
    RETURN_IF_ERROR(Check(acl_.rtQueryEventStatus(event, &status), "aclrtQueryEventStatus"));
    return status == ascend::kEventRecorded;
  }
  absl::Status SynchronizeEvent(void* event) const override {
    return Check(acl_.rtSynchronizeEvent(event), "aclrtSynchronizeEvent");
  }

 private:
  absl::Status Check(ascend::AclError code, const char* call) const {
    return ascend::ToStatus(acl_, code, call);
  }

  const ascend::Runtime acl_;
  const int32_t device_;
  bool open_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DriverDevice>> CreateAscendDevice(const AscendOptions& options) {
  ASSIGN_OR_RETURN(const ascend::Runtime runtime, ascend::LoadRuntime(options.library));
  // Once a process; another part of it may have been first.
  const ascend::AclError code = runtime.Init(nullptr);
  if (code != ascend::kRepeatInitialize) {
    RETURN_IF_ERROR(ascend::ToStatus(runtime, code, "aclInit"));
  }
  uint32_t count = 0;
  RETURN_IF_ERROR(
      ascend::ToStatus(runtime, runtime.rtGetDeviceCount(&count), "aclrtGetDeviceCount"));
  if (options.ordinal < 0 || static_cast<uint32_t>(options.ordinal) >= count) {
    return absl::NotFoundError(
        fmt::format("there is no Ascend NPU {}: the runtime has {}", options.ordinal, count));
  }
  auto api = std::make_unique<AscendApi>(runtime, options.ordinal);
  RETURN_IF_ERROR(api->Open());
  const char* chip = runtime.rtGetSocName();
  DriverDeviceOptions device;
  device.info.name = options.name;
  device.info.kind = "ascend";
  device.info.description = chip != nullptr ? chip : "Ascend";
  device.memory_bytes = options.memory_bytes;
  device.arena = false;
  device.collectives = [library = options.collective_library] { return ascend::LoadHccl(library); };
  device.sensors = ascend::OpenDcmi(options.ordinal);
  return DriverDevice::Create(std::move(device), std::move(api), nullptr);
}

}  // namespace terrace::device
