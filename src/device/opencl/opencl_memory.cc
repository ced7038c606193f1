#include "device/opencl/opencl_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include <fmt/format.h>

#include "base/status.h"
#include "base/units.h"

namespace terrace::device::cl {

absl::StatusOr<std::unique_ptr<Memory>> Memory::Create(const Api* api, Context context,
                                                       uint64_t bytes, uint64_t buffer_bytes) {
  std::unique_ptr<Memory> memory(new Memory(api, bytes, buffer_bytes));
  void* base =
      ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return ErrnoStatus(errno, "reserving addresses for device memory");
  memory->base_ = static_cast<std::byte*>(base);
  absl::MutexLock lock(&memory->mutex_);
  for (uint64_t offset = 0; offset < bytes; offset += buffer_bytes) {
    const uint64_t size = std::min(buffer_bytes, bytes - offset);
    Int code = kSuccess;
    Mem buffer = api->CreateBuffer(context, kMemReadWrite, size, nullptr, &code);
    if (code != kSuccess) {
      return WithContext(ToStatus(code, "clCreateBuffer"),
                         fmt::format("device memory of {}", FormatBytes(bytes)));
    }
    memory->buffers_.push_back(buffer);
    memory->ranges_.emplace_back(size);
  }
  return memory;
}

Memory::~Memory() {
  for (Mem buffer : buffers_) api_->ReleaseMemObject(buffer);
  if (base_ != nullptr) ::munmap(base_, bytes_);
}

absl::StatusOr<std::byte*> Memory::Allocate(uint64_t bytes, const std::string& device) {
  if (bytes == 0) return absl::InvalidArgumentError("allocation of no bytes");
  const uint64_t rounded = AlignUp(std::min(bytes, bytes_ + 1), kAlignment);
  absl::MutexLock lock(&mutex_);
  uint64_t largest = 0, allocated = 0;
  for (size_t i = 0; i < ranges_.size(); ++i) {
    const std::optional<uint64_t> offset = ranges_[i].Allocate(rounded);
    if (offset.has_value()) return base_ + i * buffer_bytes_ + *offset;
    largest = std::max(largest, ranges_[i].LargestFree());
    allocated += ranges_[i].allocated();
  }
  return absl::ResourceExhaustedError(fmt::format(
      "{}: {} asked for, {} of {} are allocated, the largest free range has {}", device,
      FormatBytes(bytes), FormatBytes(allocated), FormatBytes(bytes_), FormatBytes(largest)));
}

void Memory::Free(std::byte* data) {
  if (data == nullptr || !Overlaps(data, 1)) return;
  const Place place = At(data);
  absl::MutexLock lock(&mutex_);
  ranges_[place.index].Free(place.offset);
}

uint64_t Memory::allocated() const {
  absl::MutexLock lock(&mutex_);
  uint64_t sum = 0;
  for (const RangeAllocator& ranges : ranges_) sum += ranges.allocated();
  return sum;
}

bool Memory::Holds(const std::byte* data, uint64_t bytes) const {
  if (data < base_ || data >= base_ + bytes_) return false;
  const Place place = At(data);
  absl::MutexLock lock(&mutex_);
  return ranges_[place.index].Holds(place.offset, bytes);
}

Place Memory::At(const std::byte* data) const {
  const auto offset = static_cast<uint64_t>(data - base_);
  const size_t index = offset / buffer_bytes_;
  return {buffers_[index], index, offset % buffer_bytes_};
}

}  // namespace terrace::device::cl
