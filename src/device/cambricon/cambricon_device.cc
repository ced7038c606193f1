#include "device/cambricon/cambricon_device.h"

#include <utility>

#include <fmt/format.h>

#include "base/status.h"
#include "device/cambricon/cncl.h"
#include "device/cambricon/cndev.h"
#include "device/cambricon/cnrt_api.h"

namespace terrace::device {
namespace {

class CambriconApi final : public DriverApi {
 public:
  CambriconApi(const cambricon::Runtime& runtime, int device) : cnrt_(runtime), device_(device) {}

  absl::Status Enter() const override { return Check(cnrt_.SetDevice(device_), "cnrtSetDevice"); }

  absl::StatusOr<Room> GetRoom() const override {
    size_t free = 0, total = 0;
    RETURN_IF_ERROR(Check(cnrt_.MemGetInfo(&free, &total), "cnrtMemGetInfo"));
    return Room{free, total};
  }
  absl::StatusOr<uint64_t> Allocate(uint64_t bytes) const override {
    void* data = nullptr;
    RETURN_IF_ERROR(Check(cnrt_.Malloc(&data, bytes), "cnrtMalloc"));
    return reinterpret_cast<uintptr_t>(data);
  }
  void Free(uint64_t address) const override { cnrt_.Free(reinterpret_cast<void*>(address)); }
  absl::Status Copy(CopyDirection direction, std::byte* to, const std::byte* from, uint64_t bytes,
                    void* queue) const override {
    const int kind = direction == CopyDirection::kHostToDevice   ? cambricon::kHostToDev
                     : direction == CopyDirection::kDeviceToHost ? cambricon::kDevToHost
                                                                 : cambricon::kDevToDev;
    return Check(cnrt_.MemcpyAsync_V3(to, const_cast<std::byte*>(from), bytes, queue, kind),
                 "cnrtMemcpyAsync_V3");
  }

  absl::StatusOr<void*> CreateStream() const override {
    void* queue = nullptr;
    RETURN_IF_ERROR(Check(cnrt_.QueueCreate(&queue), "cnrtQueueCreate"));
    return queue;
  }
  void DestroyStream(void* queue) const override { cnrt_.QueueDestroy(queue); }
  absl::Status SynchronizeStream(void* queue) const override {
    return Check(cnrt_.QueueSync(queue), "cnrtQueueSync");
  }
  absl::Status WaitEvent(void* queue, void* notifier) const override {
    return Check(cnrt_.QueueWaitNotifier(notifier, queue, 0), "cnrtQueueWaitNotifier");
  }

  absl::StatusOr<void*> CreateEvent() const override {
    void* notifier = nullptr;
    RETURN_IF_ERROR(Check(cnrt_.NotifierCreateWithFlags(&notifier, cambricon::kDisableTiming),
                          "cnrtNotifierCreateWithFlags"));
    return notifier;
  }
  void DestroyEvent(void* notifier) const override { cnrt_.NotifierDestroy(notifier); }
  absl::Status RecordEvent(void* notifier, void* queue) const override {
    return Check(cnrt_.PlaceNotifier(notifier, queue), "cnrtPlaceNotifier");
  }
  absl::StatusOr<bool> QueryEvent(void* notifier) const override {
    const cambricon::CnrtError code = cnrt_.QueryNotifier(notifier);
    if (code == cambricon::kBusy || code == cambricon::kNotReady) return false;
    RETURN_IF_ERROR(Check(code, "cnrtQueryNotifier"));
    return true;
  }
  absl::Status SynchronizeEvent(void* notifier) const override {
    return Check(cnrt_.WaitNotifier(notifier), "cnrtWaitNotifier");
  }

 private:
  absl::Status Check(cambricon::CnrtError code, const char* call) const {
    return cambricon::ToStatus(cnrt_, code, call);
  }

  const cambricon::Runtime cnrt_;
  const int device_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DriverDevice>> CreateCambriconDevice(
    const CambriconOptions& options) {
  ASSIGN_OR_RETURN(const cambricon::Runtime runtime, cambricon::LoadRuntime(options.library));
  unsigned count = 0;
  RETURN_IF_ERROR(
      cambricon::ToStatus(runtime, runtime.GetDeviceCount(&count), "cnrtGetDeviceCount"));
  if (options.ordinal < 0 || static_cast<unsigned>(options.ordinal) >= count) {
    return absl::NotFoundError(
        fmt::format("there is no Cambricon MLU {}: the runtime has {}", options.ordinal, count));
  }
  DriverDeviceOptions device;
  device.info.name = options.name;
  device.info.kind = "cambricon";
  device.info.description = fmt::format("Cambricon MLU {}", options.ordinal);
  device.memory_bytes = options.memory_bytes;
  device.collectives = [ordinal = options.ordinal, library = options.collective_library] {
    return cambricon::LoadCncl(ordinal, library);
  };
  device.sensors = cambricon::OpenCndev(options.ordinal);
  return DriverDevice::Create(std::move(device),
                              std::make_unique<CambriconApi>(runtime, options.ordinal), nullptr);
}

}  // namespace terrace::device
