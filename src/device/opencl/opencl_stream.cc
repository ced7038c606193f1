#include "device/opencl/opencl_stream.h"

#include <utility>

#include <fmt/format.h>

#include "base/status.h"

namespace terrace::device::cl {
namespace {

// Drivers may hold operations until they are told to begin; not each is worth telling.
constexpr uint32_t kFlushEvery = 16;

}  // namespace

// ---- Kernels
// -------------------------------------------------------------------------------------

Int DeviceKernel::SetArguments(const Shared& shared,
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

Int DeviceKernel::Enqueue(const Shared& shared, Queue queue, const LaunchShape& shape,
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

// ---- Events
// --------------------------------------------------------------------------------------

Point::~Point() {
  absl::MutexLock lock(&mutex_);
  if (event_ != nullptr) api_->ReleaseEvent(event_);
}

void Point::Submit(EventHandle event, absl::Status status) {
  absl::MutexLock lock(&mutex_);
  event_ = event;
  status_ = std::move(status);
  submitted_ = true;
}

bool Point::submitted() const {
  absl::MutexLock lock(&mutex_);
  return submitted_;
}

void Point::AwaitSubmitted() const {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&submitted_));
}

EventHandle Point::event() const {
  absl::MutexLock lock(&mutex_);
  return event_;
}

absl::Status Point::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

absl::StatusOr<bool> Point::Query() const {
  absl::MutexLock lock(&mutex_);
  if (!submitted_) return false;
  if (event_ != nullptr) {
    Int state = 0;
    RETURN_IF_ERROR(
        ToStatus(api_->GetEventInfo(event_, kEventStatus, sizeof(state), &state, nullptr),
                 "clGetEventInfo"));
    if (state > 0) return false;
    RETURN_IF_ERROR(ToStatus(state, "what an event stands for"));
  }
  RETURN_IF_ERROR(status_);
  return true;
}

absl::Status Point::Synchronize() const {
  AwaitSubmitted();
  const EventHandle reached = event();
  if (reached != nullptr) {
    RETURN_IF_ERROR(ToStatus(api_->WaitForEvents(1, &reached), "clWaitForEvents"));
  }
  return status();
}

absl::StatusOr<bool> DeviceEvent::Query() const {
  const std::shared_ptr<Point> current = point();
  return current == nullptr ? absl::StatusOr<bool>(true) : current->Query();
}

absl::Status DeviceEvent::Synchronize() const {
  const std::shared_ptr<Point> current = point();
  return current == nullptr ? absl::OkStatus() : current->Synchronize();
}

std::shared_ptr<Point> DeviceEvent::NewPoint() {
  absl::MutexLock lock(&mutex_);
  point_ = std::make_shared<Point>(api_);
  return point_;
}

std::shared_ptr<Point> DeviceEvent::point() const {
  absl::MutexLock lock(&mutex_);
  return point_;
}

// ---- Streams
// -------------------------------------------------------------------------------------

DeviceStream::DeviceStream(const Shared& shared, Queue queue) : shared_(shared), queue_(queue) {
  worker_ = std::thread([this] { Work(); });
}

DeviceStream::~DeviceStream() {
  {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
  }
  worker_.join();
  shared_.api->Finish(queue_);
  shared_.api->ReleaseCommandQueue(queue_);
}

absl::Status DeviceStream::CopyAsync(CopyDirection direction, std::byte* to, const std::byte* from,
                                     uint64_t bytes) {
  if (bytes > 0 && (to == nullptr || from == nullptr)) {
    return absl::InvalidArgumentError("copy with a null address");
  }
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
  if (bytes == 0) return absl::OkStatus();
  Operation operation{Operation::Type::kCopy};
  operation.direction = direction;
  operation.to = to;
  operation.from = from;
  operation.bytes = bytes;
  return Submit(std::move(operation));
}

absl::Status DeviceStream::HostCallback(std::function<void(absl::Status)> callback) {
  if (callback == nullptr) return absl::InvalidArgumentError("empty callback");
  Operation operation{Operation::Type::kCallback};
  operation.callback = std::move(callback);
  absl::MutexLock lock(&mutex_);
  held_back_.push_back(std::move(operation));
  return absl::OkStatus();
}

absl::Status DeviceStream::Launch(const device::Kernel& kernel, const LaunchShape& shape,
                                  std::span<const KernelArgument> arguments) {
  const auto* own = dynamic_cast<const DeviceKernel*>(&kernel);
  if (own == nullptr) return absl::InvalidArgumentError("kernel of another device");
  uint64_t items = 1;
  for (size_t i = 0; i < 3; ++i) {
    if (shape.groups[i] == 0 || shape.items[i] == 0) {
      return absl::InvalidArgumentError("launch of no work");
    }
    items *= shape.items[i];
  }
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
  Operation operation{Operation::Type::kLaunch};
  operation.kernel = own;
  operation.shape = shape;
  absl::MutexLock lock(&mutex_);
  if (DirectLocked()) {
    HandOverLocked(operation, arguments);
    return absl::OkStatus();
  }
  operation.arguments.assign(arguments.begin(), arguments.end());
  held_back_.push_back(std::move(operation));
  return absl::OkStatus();
}

absl::Status DeviceStream::Record(device::Event* event) {
  auto* own = dynamic_cast<DeviceEvent*>(event);
  if (own == nullptr) return absl::InvalidArgumentError("event of another device");
  Operation operation{Operation::Type::kRecord};
  operation.point = own->NewPoint();
  return Submit(std::move(operation));
}

absl::Status DeviceStream::Wait(const device::Event& event) {
  const auto* own = dynamic_cast<const DeviceEvent*>(&event);
  if (own == nullptr) return absl::InvalidArgumentError("event of another device");
  Operation operation{Operation::Type::kWait};
  operation.point = own->point();
  if (operation.point == nullptr) return absl::OkStatus();
  return Submit(std::move(operation));
}

absl::Status DeviceStream::Synchronize() {
  {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](DeviceStream* stream)
             ABSL_SHARED_LOCKS_REQUIRED(stream->mutex_) { return stream->DirectLocked(); },
        this));
  }
  Finish();
  absl::MutexLock lock(&mutex_);
  return status_;
}

void DeviceStream::ClearError() {
  absl::MutexLock lock(&mutex_);
  status_ = absl::OkStatus();
}

absl::Status DeviceStream::Submit(Operation operation) {
  absl::MutexLock lock(&mutex_);
  const bool waits = operation.type == Operation::Type::kWait && !operation.point->submitted();
  if (DirectLocked() && !waits) {
    HandOverLocked(operation, operation.arguments);
  } else {
    held_back_.push_back(std::move(operation));
  }
  return absl::OkStatus();
}

void DeviceStream::HandOverLocked(Operation& operation, std::span<const KernelArgument> arguments) {
  switch (operation.type) {
    case Operation::Type::kCopy:
      if (!status_.ok()) return;
      FailLocked(ToStatus(CopyLocked(operation), "copying"));
      break;
    case Operation::Type::kLaunch:
      if (!status_.ok()) return;
      FailLocked(ToStatus(operation.kernel->Enqueue(shared_, queue_, operation.shape, arguments),
                          "launching a kernel"));
      break;
    case Operation::Type::kRecord:
      RecordLocked(*operation.point);
      return;
    case Operation::Type::kWait:
      WaitLocked(*operation.point);
      return;
    case Operation::Type::kCallback:
      return;  // the thread's own
  }
  if (++unflushed_ >= kFlushEvery) {
    unflushed_ = 0;
    FailLocked(ToStatus(shared_.api->Flush(queue_), "clFlush"));
  }
}

Int DeviceStream::CopyLocked(const Operation& operation) {
  const Api& api = *shared_.api;
  switch (operation.direction) {
    case CopyDirection::kHostToDevice: {
      const Place to = shared_.memory->At(operation.to);
      shared_.counters->to_device.fetch_add(operation.bytes, std::memory_order_relaxed);
      return api.EnqueueWriteBuffer(queue_, to.buffer, kFalse, to.offset, operation.bytes,
                                    operation.from, 0, nullptr, nullptr);
    }
    case CopyDirection::kDeviceToHost: {
      const Place from = shared_.memory->At(operation.from);
      shared_.counters->to_host.fetch_add(operation.bytes, std::memory_order_relaxed);
      return api.EnqueueReadBuffer(queue_, from.buffer, kFalse, from.offset, operation.bytes,
                                   operation.to, 0, nullptr, nullptr);
    }
    case CopyDirection::kDeviceToDevice: {
      const Place from = shared_.memory->At(operation.from);
      const Place to = shared_.memory->At(operation.to);
      shared_.counters->on_device.fetch_add(operation.bytes, std::memory_order_relaxed);
      return api.EnqueueCopyBuffer(queue_, from.buffer, to.buffer, from.offset, to.offset,
                                   operation.bytes, 0, nullptr, nullptr);
    }
  }
  return kInvalidValue;
}

void DeviceStream::RecordLocked(Point& point) {
  EventHandle event = nullptr;
  FailLocked(ToStatus(shared_.api->EnqueueMarkerWithWaitList(queue_, 0, nullptr, &event),
                      "recording an event"));
  // Another queue that waits for it would wait for ever if this one had not begun.
  FailLocked(ToStatus(shared_.api->Flush(queue_), "clFlush"));
  unflushed_ = 0;
  point.Submit(event, status_);
}

void DeviceStream::WaitLocked(const Point& point) {
  FailLocked(point.status());
  const EventHandle event = point.event();
  if (event == nullptr) return;
  FailLocked(ToStatus(shared_.api->EnqueueBarrierWithWaitList(queue_, 1, &event, nullptr),
                      "waiting for an event"));
}

void DeviceStream::FailLocked(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

void DeviceStream::Finish() {
  absl::Status finished = ToStatus(shared_.api->Finish(queue_), "clFinish");
  absl::MutexLock lock(&mutex_);
  FailLocked(std::move(finished));
}

void DeviceStream::Work() {
  absl::MutexLock lock(&mutex_);
  for (;;) {
    working_ = false;
    mutex_.Await(absl::Condition(
        +[](DeviceStream* stream) ABSL_SHARED_LOCKS_REQUIRED(stream->mutex_) {
          return stream->ending_ || !stream->held_back_.empty();
        },
        this));
    if (held_back_.empty()) return;
    Operation operation = std::move(held_back_.front());
    held_back_.pop_front();
    working_ = true;
    if (operation.type == Operation::Type::kCallback) {
      mutex_.Unlock();
      Finish();
      mutex_.Lock();
      const absl::Status so_far = status_;
      mutex_.Unlock();
      operation.callback(so_far);
      operation.callback = nullptr;
      mutex_.Lock();
      continue;
    }
    if (operation.type == Operation::Type::kWait) {
      mutex_.Unlock();
      operation.point->AwaitSubmitted();
      mutex_.Lock();
    }
    HandOverLocked(operation, operation.arguments);
  }
}

}  // namespace terrace::device::cl
