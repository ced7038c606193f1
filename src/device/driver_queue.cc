#include "device/driver_queue.h"

#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "base/status.h"

namespace terrace::device {
namespace {

// So that the device is not kept waiting.
constexpr size_t kMostGathered = 256;

class ApiMark final : public DriverMark {
 public:
  // Takes `event` over.
  ApiMark(const DriverApi* api, void* event) : api_(api), event_(event) {}
  ~ApiMark() override {
    if (api_->Enter().ok()) api_->DestroyEvent(event_);
  }
  ApiMark(const ApiMark&) = delete;
  ApiMark& operator=(const ApiMark&) = delete;

  absl::StatusOr<bool> Query() const override {
    RETURN_IF_ERROR(api_->Enter());
    return api_->QueryEvent(event_);
  }
  absl::Status Wait() const override {
    RETURN_IF_ERROR(api_->Enter());
    return api_->SynchronizeEvent(event_);
  }
  void* event() const { return event_; }

 private:
  const DriverApi* const api_;
  void* const event_;
};

}  // namespace

ApiQueue::ApiQueue(const QueueParts& parts, void* stream) : parts_(parts), stream_(stream) {
  if (parts.graphs && parts.api->HasGraphs()) {
    graphs_ = std::make_unique<LaunchGraphs>(parts.api, parts.tell);
  }
}

ApiQueue::~ApiQueue() {
  if (!parts_.api->Enter().ok()) return;
  HandOver().IgnoreError();
  parts_.api->SynchronizeStream(stream_).IgnoreError();
  if (matrices_ != nullptr) matrix_calls_->Destroy(matrices_);
  parts_.api->DestroyStream(stream_);
}

absl::Status ApiQueue::CheckCopy(CopyDirection direction, const std::byte* to,
                                 const std::byte* from, uint64_t bytes) const {
  if (direction != CopyDirection::kDeviceToHost && !parts_.memory->Holds(to, bytes)) {
    return absl::InvalidArgumentError("the copy's target is outside the device's allocations");
  }
  if (direction != CopyDirection::kHostToDevice && !parts_.memory->Holds(from, bytes)) {
    return absl::InvalidArgumentError("the copy's source is outside the device's allocations");
  }
  return absl::OkStatus();
}

absl::Status ApiQueue::CheckLaunch(const Kernel& kernel, const LaunchShape& shape,
                                   std::span<const KernelArgument> arguments) const {
  if (dynamic_cast<const DriverKernel*>(&kernel) == nullptr) {
    return absl::InvalidArgumentError("kernel of another device");
  }
  const uint64_t items = uint64_t{shape.items[0]} * shape.items[1] * shape.items[2];
  if (items > parts_.max_group_items) {
    return absl::InvalidArgumentError(fmt::format(
        "a work-group of {} items is more than the device's {}", items, parts_.max_group_items));
  }
  for (const KernelArgument& argument : arguments) {
    if (argument.kind == KernelArgument::Kind::kMemory &&
        !parts_.memory->Holds(argument.memory, 0)) {
      return absl::InvalidArgumentError("a kernel's argument is outside the device's allocations");
    }
  }
  return absl::OkStatus();
}

absl::Status ApiQueue::Copy(CopyDirection direction, std::byte* to, const std::byte* from,
                            uint64_t bytes) {
  RETURN_IF_ERROR(parts_.api->Enter());
  std::atomic<uint64_t>& counter =
      direction == CopyDirection::kHostToDevice   ? parts_.counters->to_device
      : direction == CopyDirection::kDeviceToHost ? parts_.counters->to_host
                                                  : parts_.counters->on_device;
  counter.fetch_add(bytes, std::memory_order_relaxed);
  RETURN_IF_ERROR(HandOver());
  return parts_.api->Copy(direction, to, from, bytes, stream_);
}

absl::Status ApiQueue::Launch(const Kernel& kernel, const LaunchShape& shape,
                              std::span<const KernelArgument> arguments) {
  RETURN_IF_ERROR(parts_.api->Enter());
  // Parameters as the dialect has them: an address is a pointer and an offset, the space one
  // number.
  std::vector<uint64_t> values;
  values.reserve(2 * arguments.size());
  for (const KernelArgument& argument : arguments) {
    switch (argument.kind) {
      case KernelArgument::Kind::kMemory:
        values.push_back(reinterpret_cast<uintptr_t>(argument.memory));
        values.push_back(0);
        break;
      case KernelArgument::Kind::kSpace:
        values.push_back(0);
        break;
      case KernelArgument::Kind::kValue:
        values.push_back(0);
        std::memcpy(&values.back(), argument.value, argument.bytes);
        break;
    }
  }
  void* const function = static_cast<const DriverKernel&>(kernel).function();
  absl::MutexLock lock(&mutex_);
  gathered_.Add(function, shape, values);
  if (graphs_ != nullptr && gathered_.launches() < kMostGathered) return absl::OkStatus();
  const absl::Status launched = graphs_ != nullptr ? graphs_->Launch(gathered_, stream_)
                                                   : gathered_.Launch(*parts_.api, stream_);
  gathered_.Clear();
  return launched;
}

absl::Status ApiQueue::HandOver() {
  absl::MutexLock lock(&mutex_);
  if (gathered_.launches() == 0) return absl::OkStatus();
  const absl::Status launched = graphs_->Launch(gathered_, stream_);
  gathered_.Clear();
  return launched;
}

absl::StatusOr<std::unique_ptr<DriverMark>> ApiQueue::Mark() {
  RETURN_IF_ERROR(parts_.api->Enter());
  RETURN_IF_ERROR(HandOver());
  ASSIGN_OR_RETURN(void* event, parts_.api->CreateEvent());
  auto mark = std::make_unique<ApiMark>(parts_.api, event);
  RETURN_IF_ERROR(parts_.api->RecordEvent(event, stream_));
  return std::unique_ptr<DriverMark>(std::move(mark));
}

absl::Status ApiQueue::WaitFor(const DriverMark& mark) {
  RETURN_IF_ERROR(parts_.api->Enter());
  RETURN_IF_ERROR(HandOver());
  return parts_.api->WaitEvent(stream_, static_cast<const ApiMark&>(mark).event());
}

absl::Status ApiQueue::Finish() {
  RETURN_IF_ERROR(parts_.api->Enter());
  const absl::Status launched = HandOver();
  const absl::Status finished = parts_.api->SynchronizeStream(stream_);
  return launched.ok() ? finished : launched;
}

absl::Status ApiQueue::OpenMatrices() {
  if (matrices_ != nullptr) return absl::OkStatus();
  if (parts_.matrices == nullptr) {
    return absl::NotFoundError("the device has no library for matrices");
  }
  RETURN_IF_ERROR(parts_.api->Enter());
  ASSIGN_OR_RETURN(const MatrixCalls* calls, parts_.matrices());
  void* handle = nullptr;
  RETURN_IF_ERROR(ToStatus(*calls, calls->Create(&handle), "making a handle"));
  if (const int code = calls->SetStream(handle, stream_); code != 0) {
    calls->Destroy(handle);
    return ToStatus(*calls, code, "setting its stream");
  }
  matrix_calls_ = calls;
  matrices_ = handle;
  return absl::OkStatus();
}

absl::Status ApiQueue::Multiply(const MatrixProduct& p) {
  RETURN_IF_ERROR(OpenMatrices());
  const auto bytes = [](int32_t rows, int64_t stride, int32_t cols, uint64_t size) {
    return (static_cast<uint64_t>(rows - 1) * static_cast<uint64_t>(stride) +
            static_cast<uint64_t>(cols)) *
           size;
  };
  if (p.w_rows <= 0 || p.x_rows <= 0 || p.cols <= 0 || p.w_stride < p.cols || p.x_stride < p.cols ||
      p.out_stride < p.w_rows ||
      !parts_.memory->Holds(p.w, bytes(p.w_rows, p.w_stride, p.cols, 2)) ||
      !parts_.memory->Holds(p.x, bytes(p.x_rows, p.x_stride, p.cols, 2)) ||
      !parts_.memory->Holds(reinterpret_cast<const std::byte*>(p.out),
                            bytes(p.x_rows, p.out_stride, p.w_rows, 4))) {
    return absl::InvalidArgumentError("a product of matrices outside the device's allocations");
  }
  RETURN_IF_ERROR(parts_.api->Enter());
  return ToStatus(*matrix_calls_, matrix_calls_->Multiply(matrices_, p), "a product");
}

}  // namespace terrace::device
