// First fit over the free ranges in order of their addresses: the book-keeping of a device whose
// memory is one range (or a few). Knows offsets only. Not thread-safe.
#ifndef TERRACE_DEVICE_RANGE_ALLOCATOR_H_
#define TERRACE_DEVICE_RANGE_ALLOCATOR_H_

#include <cstdint>
#include <map>
#include <optional>

#include "device/range_set.h"

namespace terrace::device {

class RangeAllocator {
 public:
  explicit RangeAllocator(uint64_t bytes);

  // The offset of `bytes` free bytes, now used; nothing if no free range is that large.
  std::optional<uint64_t> Allocate(uint64_t bytes);
  // The bytes that were allocated at `offset`, now free; 0 if none were.
  uint64_t Free(uint64_t offset);
  // True if [offset, offset + bytes) lies in one allocation.
  bool Holds(uint64_t offset, uint64_t bytes) const;

  uint64_t allocated() const { return allocated_; }
  uint64_t LargestFree() const;

 private:
  uint64_t allocated_ = 0;
  RangeSet free_;
  std::map<uint64_t, uint64_t> used_;  // offset to bytes
};

}  // namespace terrace::device

#endif  // TERRACE_DEVICE_RANGE_ALLOCATOR_H_
