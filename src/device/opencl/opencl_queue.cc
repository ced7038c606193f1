#include "device/opencl/opencl_queue.h"

#include <fmt/format.h>

#include "base/status.h"

namespace terrace::device::cl {
namespace {

class OpenClMark final : public DriverMark {
 public:
  // Takes `event` over.
  OpenClMark(const Api* api, EventHandle event) : api_(api), event_(event) {}
  ~OpenClMark() override { api_->ReleaseEvent(event_); }
  OpenClMark(const OpenClMark&) = delete;
  OpenClMark& operator=(const OpenClMark&) = delete;

  absl::StatusOr<bool> Query() const override {
    Int state = 0;
    RETURN_IF_ERROR(
        ToStatus(api_->GetEventInfo(event_, kEventStatus, sizeof(state), &state, nullptr),
                 "clGetEventInfo"));
    if (state > 0) return false;
    RETURN_IF_ERROR(ToStatus(state, "what an event stands for"));
    return true;
  }
  absl::Status Wait() const override {
    return ToStatus(api_->WaitForEvents(1, &event_), "clWaitForEvents");
  }
  EventHandle event() const { return event_; }

 private:
  const Api* const api_;
  EventHandle const event_;
};

}  // namespace

Int OpenClKernel::SetArguments(const Shared& shared,
                               std::span<const KernelArgument> arguments) const {
  Uint index = 0;
  Int code = kSuccess;
  const auto set = [&](size_t bytes, const void* value) {
    if (code == kSuccess) code = api_->SetKernelArg(kernel_, index++, bytes, value);
  };
  for (const KernelArgument& argument : arguments) {
    switch (argument.kind) {
      case KernelArgument::Kind::kMemory: {
        const Place place = shared.memory->At(argument.memory);
        set(sizeof(Mem), &place.buffer);
        set(sizeof(place.offset), &place.offset);
        break;
      }
      case KernelArgument::Kind::kSpace:
        for (size_t i = 0; i < kMaxBuffers; ++i) {
          const Mem buffer = shared.memory->buffer(i);
          set(sizeof(Mem), &buffer);
        }
        break;
      case KernelArgument::Kind::kValue:
        set(argument.bytes, argument.value);
        break;
    }
  }
  // A parameter that is not set keeps its value from the last launch.
  return code == kSuccess && index != parameters_ ? kInvalidKernelArgs : code;
}

Int OpenClKernel::Enqueue(const Shared& shared, Queue queue, const LaunchShape& shape,
                          std::span<const KernelArgument> arguments) const {
  size_t global[3], local[3];
  for (size_t i = 0; i < 3; ++i) {
    local[i] = shape.items[i];
    global[i] = size_t{shape.groups[i]} * shape.items[i];
  }
  absl::MutexLock lock(&mutex_);
  const Int code = SetArguments(shared, arguments);
  if (code != kSuccess) return code;
  return api_->EnqueueNDRangeKernel(queue, kernel_, 3, nullptr, global, local, 0, nullptr, nullptr);
}

OpenClQueue::~OpenClQueue() {
  shared_.api->Finish(queue_);
  shared_.api->ReleaseCommandQueue(queue_);
}

absl::Status OpenClQueue::CheckCopy(CopyDirection direction, const std::byte* to,
                                    const std::byte* from, uint64_t bytes) const {
  const Memory& memory = *shared_.memory;
  const bool to_device = direction != CopyDirection::kDeviceToHost;
  const bool from_device = direction != CopyDirection::kHostToDevice;
  if (to_device ? !memory.Holds(to, bytes) : memory.Overlaps(to, bytes)) {
    return absl::InvalidArgumentError(fmt::format(
        "the copy's target is {} the device's allocations", to_device ? "outside" : "inside"));
  }
  if (from_device ? !memory.Holds(from, bytes) : memory.Overlaps(from, bytes)) {
    return absl::InvalidArgumentError(fmt::format(
        "the copy's source is {} the device's allocations", from_device ? "outside" : "inside"));
  }
  return absl::OkStatus();
}

absl::Status OpenClQueue::CheckLaunch(const Kernel& kernel, const LaunchShape& shape,
                                      std::span<const KernelArgument> arguments) const {
  if (dynamic_cast<const OpenClKernel*>(&kernel) == nullptr) {
    return absl::InvalidArgumentError("kernel of another device");
  }
  const uint64_t items = uint64_t{shape.items[0]} * shape.items[1] * shape.items[2];
  if (items > shared_.max_group_items) {
    return absl::InvalidArgumentError(fmt::format(
        "a work-group of {} items is more than the device's {}", items, shared_.max_group_items));
  }
  for (const KernelArgument& argument : arguments) {
    if (argument.kind == KernelArgument::Kind::kMemory &&
        !shared_.memory->Holds(argument.memory, 0)) {
      return absl::InvalidArgumentError("a kernel's argument is outside the device's allocations");
    }
  }
  return absl::OkStatus();
}

absl::Status OpenClQueue::Copy(CopyDirection direction, std::byte* to, const std::byte* from,
                               uint64_t bytes) {
  const Api& api = *shared_.api;
  Int code = kInvalidValue;
  switch (direction) {
    case CopyDirection::kHostToDevice: {
      const Place place = shared_.memory->At(to);
      shared_.counters->to_device.fetch_add(bytes, std::memory_order_relaxed);
      code = api.EnqueueWriteBuffer(queue_, place.buffer, kFalse, place.offset, bytes, from, 0,
                                    nullptr, nullptr);
      break;
    }
    case CopyDirection::kDeviceToHost: {
      const Place place = shared_.memory->At(from);
      shared_.counters->to_host.fetch_add(bytes, std::memory_order_relaxed);
      code = api.EnqueueReadBuffer(queue_, place.buffer, kFalse, place.offset, bytes, to, 0,
                                   nullptr, nullptr);
      break;
    }
    case CopyDirection::kDeviceToDevice: {
      const Place source = shared_.memory->At(from);
      const Place target = shared_.memory->At(to);
      shared_.counters->on_device.fetch_add(bytes, std::memory_order_relaxed);
      code = api.EnqueueCopyBuffer(queue_, source.buffer, target.buffer, source.offset,
                                   target.offset, bytes, 0, nullptr, nullptr);
      break;
    }
  }
  return ToStatus(code, "copying");
}

absl::Status OpenClQueue::Launch(const Kernel& kernel, const LaunchShape& shape,
                                 std::span<const KernelArgument> arguments) {
  return ToStatus(
      static_cast<const OpenClKernel&>(kernel).Enqueue(shared_, queue_, shape, arguments),
      "launching a kernel");
}

absl::StatusOr<std::unique_ptr<DriverMark>> OpenClQueue::Mark() {
  EventHandle event = nullptr;
  RETURN_IF_ERROR(ToStatus(shared_.api->EnqueueMarkerWithWaitList(queue_, 0, nullptr, &event),
                           "recording an event"));
  auto mark = std::make_unique<OpenClMark>(shared_.api, event);
  // Another queue that waits for it would wait for ever if this one had not begun.
  RETURN_IF_ERROR(Flush());
  return std::unique_ptr<DriverMark>(std::move(mark));
}

absl::Status OpenClQueue::WaitFor(const DriverMark& mark) {
  const EventHandle event = static_cast<const OpenClMark&>(mark).event();
  return ToStatus(shared_.api->EnqueueBarrierWithWaitList(queue_, 1, &event, nullptr),
                  "waiting for an event");
}

absl::Status OpenClQueue::Flush() { return ToStatus(shared_.api->Flush(queue_), "clFlush"); }

absl::Status OpenClQueue::Finish() { return ToStatus(shared_.api->Finish(queue_), "clFinish"); }

}  // namespace terrace::device::cl
