#include "device/driver_memory.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/status.h"
#include "base/units.h"

namespace terrace::device {
namespace {

// Ranges that drivers do not put into pages of 2 MiB.
constexpr uint64_t kSmallPages = uint64_t{1} << 20;

uint64_t AddressOf(const std::byte* data) { return reinterpret_cast<uintptr_t>(data); }

}  // namespace

DriverMemory::DriverMemory(const DriverApi* api, std::string device, uint64_t bytes)
    : api_(api), device_(std::move(device)), bytes_(bytes), ranges_(bytes) {}

absl::StatusOr<std::unique_ptr<DriverMemory>> DriverMemory::Create(const DriverApi* api,
                                                                   std::string device,
                                                                   uint64_t bytes, bool arena) {
  ASSIGN_OR_RETURN(const uint64_t page_bytes,
                   arena ? api->PageBytes() : absl::StatusOr<uint64_t>(0));
  if (page_bytes > 0 && bytes >= page_bytes) {
    bytes -= bytes % page_bytes;
    std::unique_ptr<DriverMemory> memory(new DriverMemory(api, std::move(device), bytes));
    ASSIGN_OR_RETURN(memory->pages_, VirtualArena::Create(api, bytes, page_bytes));
    return memory;
  }
  std::unique_ptr<DriverMemory> memory(new DriverMemory(api, std::move(device), bytes));
  if (!arena) return memory;
  // Drivers align to less than we do.
  ASSIGN_OR_RETURN(memory->arena_, api->Allocate(bytes + kAlignment));
  memory->base_ = AlignUp(memory->arena_, kAlignment);
  return memory;
}

DriverMemory::~DriverMemory() {
  if (!api_->Enter().ok()) return;
  if (arena_ != 0) api_->Free(arena_);
  absl::MutexLock lock(&mutex_);
  for (const auto& [address, own] : own_) api_->Free(own.address);
  pages_.reset();
}

absl::StatusOr<std::byte*> DriverMemory::Allocate(uint64_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("allocation of no bytes");
  const uint64_t rounded = AlignUp(std::min(bytes, bytes_ + 1), kAlignment);
  if (arena_ != 0) {
    absl::MutexLock lock(&mutex_);
    const std::optional<uint64_t> offset = ranges_.Allocate(rounded);
    if (offset.has_value()) return reinterpret_cast<std::byte*>(base_ + *offset);
    return Refuse(bytes, ranges_.allocated(), ranges_.LargestFree());
  }
  RETURN_IF_ERROR(api_->Enter());
  if (pages_ != nullptr) {
    absl::MutexLock lock(&mutex_);
    absl::StatusOr<std::optional<uint64_t>> address = pages_->Allocate(rounded);
    if (!address.ok()) return WithContext(address.status(), device_);
    if (address->has_value()) return reinterpret_cast<std::byte*>(**address);
    return Refuse(bytes, pages_->allocated(), pages_->free_bytes());
  }
  {
    absl::MutexLock lock(&mutex_);
    if (rounded > bytes_ - own_bytes_) return Refuse(bytes, own_bytes_, bytes_ - own_bytes_);
    own_bytes_ += rounded;
  }
  // Large ranges come aligned as it is, and what is asked for beyond them may cost a page more.
  const bool large = rounded > kSmallPages;
  absl::StatusOr<uint64_t> address = api_->Allocate(rounded + (large ? 0 : kAlignment));
  if (large && address.ok() && *address % kAlignment != 0) {
    api_->Free(*address);
    address = api_->Allocate(rounded + kAlignment);
  }
  absl::MutexLock lock(&mutex_);
  if (!address.ok()) {
    own_bytes_ -= rounded;
    return WithContext(address.status(), device_);
  }
  const uint64_t aligned = AlignUp(*address, kAlignment);
  own_[aligned] = {rounded, *address};
  return reinterpret_cast<std::byte*>(aligned);
}

absl::Status DriverMemory::Refuse(uint64_t bytes, uint64_t allocated, uint64_t largest) const {
  return absl::ResourceExhaustedError(fmt::format(
      "{}: {} asked for, {} of {} are allocated, the largest free range has {}", device_,
      FormatBytes(bytes), FormatBytes(allocated), FormatBytes(bytes_), FormatBytes(largest)));
}

void DriverMemory::Free(const std::byte* data) {
  if (data == nullptr) return;
  uint64_t address = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (arena_ != 0) {
      ranges_.Free(AddressOf(data) - base_);
      return;
    }
    if (pages_ != nullptr) {
      pages_->Free(AddressOf(data));
      return;
    }
    const auto found = own_.find(AddressOf(data));
    if (found == own_.end()) return;
    address = found->second.address;
    own_bytes_ -= found->second.bytes;
    own_.erase(found);
  }
  if (api_->Enter().ok()) api_->Free(address);
}

uint64_t DriverMemory::allocated() const {
  absl::MutexLock lock(&mutex_);
  if (pages_ != nullptr) return pages_->allocated();
  return arena_ != 0 ? ranges_.allocated() : own_bytes_;
}

bool DriverMemory::Holds(const std::byte* data, uint64_t bytes) const {
  const uint64_t address = AddressOf(data);
  absl::MutexLock lock(&mutex_);
  if (pages_ != nullptr) return pages_->Holds(address, bytes);
  if (arena_ != 0) {
    if (address < base_ || address >= base_ + bytes_) return false;
    return ranges_.Holds(address - base_, bytes);
  }
  auto after = own_.upper_bound(address);
  if (after == own_.begin()) return false;
  const auto& [begin, own] = *std::prev(after);
  return address - begin <= own.bytes && bytes <= own.bytes - (address - begin);
}

}  // namespace terrace::device
