// A set of disjoint ranges of numbers (addresses or offsets), neighbours joined: what is free, or
// what holds pages.
#ifndef TERRACE_DEVICE_RANGE_SET_H_
#define TERRACE_DEVICE_RANGE_SET_H_

#include <cstdint>
#include <map>
#include <vector>

namespace terrace::device {

struct Range {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t size() const { return end - begin; }
};

// Not thread-safe.
class RangeSet {
 public:
  // `range` must not overlap what is in the set. Returns the range that it is part of now.
  Range Add(Range range);
  // Takes the parts of `range` that are in the set out of it.
  void Remove(Range range);
  // The parts of `range` that are in the set, in order.
  std::vector<Range> Inside(Range range) const;
  // The parts of `range` that are not, in order.
  std::vector<Range> Outside(Range range) const;

  uint64_t size() const { return size_; }  // of all ranges together
  bool empty() const { return ranges_.empty(); }
  // Begin to end of each.
  const std::map<uint64_t, uint64_t>& ranges() const { return ranges_; }

 private:
  std::map<uint64_t, uint64_t>::const_iterator FirstEndingAfter(uint64_t at) const;

  std::map<uint64_t, uint64_t> ranges_;
  uint64_t size_ = 0;
};

}  // namespace terrace::device

#endif  // TERRACE_DEVICE_RANGE_SET_H_
