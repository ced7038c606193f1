#include "device/range_allocator.h"

#include <algorithm>
#include <iterator>

namespace terrace::device {

RangeAllocator::RangeAllocator(uint64_t bytes) { free_.Add({0, bytes}); }

std::optional<uint64_t> RangeAllocator::Allocate(uint64_t bytes) {
  for (const auto& [begin, end] : free_.ranges()) {
    if (end - begin < bytes) continue;
    const uint64_t offset = begin;
    free_.Remove({offset, offset + bytes});
    used_[offset] = bytes;
    allocated_ += bytes;
    return offset;
  }
  return std::nullopt;
}

uint64_t RangeAllocator::Free(uint64_t offset) {
  auto found = used_.find(offset);
  if (found == used_.end()) return 0;
  const uint64_t bytes = found->second;
  used_.erase(found);
  allocated_ -= bytes;
  free_.Add({offset, offset + bytes});
  return bytes;
}

bool RangeAllocator::Holds(uint64_t offset, uint64_t bytes) const {
  auto after = used_.upper_bound(offset);
  if (after == used_.begin()) return false;
  auto at = std::prev(after);
  return offset - at->first <= at->second && bytes <= at->second - (offset - at->first);
}

uint64_t RangeAllocator::LargestFree() const {
  uint64_t largest = 0;
  for (const auto& [begin, end] : free_.ranges()) largest = std::max(largest, end - begin);
  return largest;
}

}  // namespace terrace::device
