#include "device/cuda/cuda_queue.h"

#include <algorithm>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "base/status.h"
#include "base/units.h"

namespace terrace::device::cuda {
namespace {

constexpr uint64_t kAlignment = 4096;

Address AddressOf(const std::byte* data) { return reinterpret_cast<uintptr_t>(data); }

class CudaMark final : public DriverMark {
 public:
  // Takes `event` over.
  CudaMark(const Shared& shared, EventHandle event) : shared_(shared), event_(event) {}
  ~CudaMark() override {
    if (shared_.Enter().ok()) shared_.driver->EventDestroy(event_);
  }
  CudaMark(const CudaMark&) = delete;
  CudaMark& operator=(const CudaMark&) = delete;

  absl::StatusOr<bool> Query() const override {
    RETURN_IF_ERROR(shared_.Enter());
    const Result code = shared_.driver->EventQuery(event_);
    if (code == kNotReady) return false;
    RETURN_IF_ERROR(ToStatus(*shared_.driver, code, "cuEventQuery"));
    return true;
  }
  absl::Status Wait() const override {
    RETURN_IF_ERROR(shared_.Enter());
    return ToStatus(*shared_.driver, shared_.driver->EventSynchronize(event_),
                    "cuEventSynchronize");
  }
  EventHandle event() const { return event_; }

 private:
  const Shared shared_;
  EventHandle const event_;
};

}  // namespace

absl::StatusOr<std::byte*> Memory::Allocate(uint64_t bytes, const std::string& device) {
  if (bytes == 0) return absl::InvalidArgumentError("allocation of no bytes");
  const uint64_t rounded = AlignUp(std::min(bytes, bytes_ + 1), kAlignment);
  absl::MutexLock lock(&mutex_);
  const std::optional<uint64_t> offset = ranges_.Allocate(rounded);
  if (offset.has_value()) return reinterpret_cast<std::byte*>(base_ + *offset);
  return absl::ResourceExhaustedError(
      fmt::format("{}: {} asked for, {} of {} are allocated, the largest free range has {}", device,
                  FormatBytes(bytes), FormatBytes(ranges_.allocated()), FormatBytes(bytes_),
                  FormatBytes(ranges_.LargestFree())));
}

void Memory::Free(const std::byte* data) {
  if (data == nullptr) return;
  absl::MutexLock lock(&mutex_);
  ranges_.Free(AddressOf(data) - base_);
}

uint64_t Memory::allocated() const {
  absl::MutexLock lock(&mutex_);
  return ranges_.allocated();
}

bool Memory::Holds(const std::byte* data, uint64_t bytes) const {
  const Address address = AddressOf(data);
  if (address < base_ || address >= base_ + bytes_) return false;
  absl::MutexLock lock(&mutex_);
  return ranges_.Holds(address - base_, bytes);
}

CudaQueue::~CudaQueue() {
  if (!shared_.Enter().ok()) return;
  shared_.driver->StreamSynchronize(stream_);
  shared_.driver->StreamDestroy(stream_);
}

absl::Status CudaQueue::CheckCopy(CopyDirection direction, const std::byte* to,
                                  const std::byte* from, uint64_t bytes) const {
  if (direction != CopyDirection::kDeviceToHost && !shared_.memory->Holds(to, bytes)) {
    return absl::InvalidArgumentError("the copy's target is outside the device's allocations");
  }
  if (direction != CopyDirection::kHostToDevice && !shared_.memory->Holds(from, bytes)) {
    return absl::InvalidArgumentError("the copy's source is outside the device's allocations");
  }
  return absl::OkStatus();
}

absl::Status CudaQueue::CheckLaunch(const Kernel& kernel, const LaunchShape& shape,
                                    std::span<const KernelArgument> arguments) const {
  if (dynamic_cast<const CudaKernel*>(&kernel) == nullptr) {
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

absl::Status CudaQueue::Copy(CopyDirection direction, std::byte* to, const std::byte* from,
                             uint64_t bytes) {
  RETURN_IF_ERROR(shared_.Enter());
  const Driver& driver = *shared_.driver;
  Result code = kInvalidValue;
  switch (direction) {
    case CopyDirection::kHostToDevice:
      shared_.counters->to_device.fetch_add(bytes, std::memory_order_relaxed);
      code = driver.MemcpyHtoDAsync(AddressOf(to), from, bytes, stream_);
      break;
    case CopyDirection::kDeviceToHost:
      shared_.counters->to_host.fetch_add(bytes, std::memory_order_relaxed);
      code = driver.MemcpyDtoHAsync(to, AddressOf(from), bytes, stream_);
      break;
    case CopyDirection::kDeviceToDevice:
      shared_.counters->on_device.fetch_add(bytes, std::memory_order_relaxed);
      code = driver.MemcpyDtoDAsync(AddressOf(to), AddressOf(from), bytes, stream_);
      break;
  }
  return ToStatus(driver, code, "copying");
}

absl::Status CudaQueue::Launch(const Kernel& kernel, const LaunchShape& shape,
                               std::span<const KernelArgument> arguments) {
  RETURN_IF_ERROR(shared_.Enter());
  // Parameters as the dialect has them: an address is a pointer and an offset, the space one
  // number.
  std::vector<uint64_t> values;
  values.reserve(2 * arguments.size());
  for (const KernelArgument& argument : arguments) {
    switch (argument.kind) {
      case KernelArgument::Kind::kMemory:
        values.push_back(AddressOf(argument.memory));
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
  std::vector<void*> parameters;
  for (uint64_t& value : values) parameters.push_back(&value);
  return ToStatus(*shared_.driver,
                  shared_.driver->LaunchKernel(static_cast<const CudaKernel&>(kernel).function(),
                                               shape.groups[0], shape.groups[1], shape.groups[2],
                                               shape.items[0], shape.items[1], shape.items[2], 0,
                                               stream_, parameters.data(), nullptr),
                  "launching a kernel");
}

absl::StatusOr<std::unique_ptr<DriverMark>> CudaQueue::Mark() {
  RETURN_IF_ERROR(shared_.Enter());
  const Driver& driver = *shared_.driver;
  EventHandle event = nullptr;
  RETURN_IF_ERROR(ToStatus(driver, driver.EventCreate(&event, kDisableTiming), "cuEventCreate"));
  auto mark = std::make_unique<CudaMark>(shared_, event);
  RETURN_IF_ERROR(ToStatus(driver, driver.EventRecord(event, stream_), "cuEventRecord"));
  return std::unique_ptr<DriverMark>(std::move(mark));
}

absl::Status CudaQueue::WaitFor(const DriverMark& mark) {
  RETURN_IF_ERROR(shared_.Enter());
  return ToStatus(
      *shared_.driver,
      shared_.driver->StreamWaitEvent(stream_, static_cast<const CudaMark&>(mark).event(), 0),
      "cuStreamWaitEvent");
}

absl::Status CudaQueue::Finish() {
  RETURN_IF_ERROR(shared_.Enter());
  return ToStatus(*shared_.driver, shared_.driver->StreamSynchronize(stream_),
                  "cuStreamSynchronize");
}

}  // namespace terrace::device::cuda
