#include "device/range_allocator.h"

#include <algorithm>
#include <iterator>

namespace terrace::device {

RangeAllocator::RangeAllocator(uint64_t bytes) { free_[0] = bytes; }

std::optional<uint64_t> RangeAllocator::Allocate(uint64_t bytes) {
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->second < bytes) continue;
    const uint64_t offset = it->first;
    const uint64_t left = it->second - bytes;
    free_.erase(it);
    if (left > 0) free_[offset + bytes] = left;
    used_[offset] = bytes;
    allocated_ += bytes;
    return offset;
  }
  return std::nullopt;
}

uint64_t RangeAllocator::Free(uint64_t offset) {
  auto found = used_.find(offset);
  if (found == used_.end()) return 0;
  const uint64_t freed = found->second;
  uint64_t bytes = freed;
  used_.erase(found);
  allocated_ -= bytes;
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + bytes == next->first) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      previous->second += bytes;
      return freed;
    }
  }
  free_[offset] = bytes;
  return freed;
}

bool RangeAllocator::Holds(uint64_t offset, uint64_t bytes) const {
  auto after = used_.upper_bound(offset);
  if (after == used_.begin()) return false;
  auto at = std::prev(after);
  return offset - at->first <= at->second && bytes <= at->second - (offset - at->first);
}

uint64_t RangeAllocator::LargestFree() const {
  uint64_t largest = 0;
  for (const auto& [offset, bytes] : free_) largest = std::max(largest, bytes);
  return largest;
}

}  // namespace terrace::device
