#include "device/range_set.h"

#include <algorithm>
#include <iterator>

namespace terrace::device {

std::map<uint64_t, uint64_t>::const_iterator RangeSet::FirstEndingAfter(uint64_t at) const {
  auto next = ranges_.upper_bound(at);
  if (next == ranges_.begin()) return next;
  auto previous = std::prev(next);
  return previous->second > at ? previous : next;
}

Range RangeSet::Add(Range range) {
  if (range.size() == 0) return range;
  size_ += range.size();
  auto next = ranges_.lower_bound(range.begin);
  if (next != ranges_.end() && next->first == range.end) {
    range.end = next->second;
    next = ranges_.erase(next);
  }
  if (next != ranges_.begin()) {
    auto previous = std::prev(next);
    if (previous->second == range.begin) {
      previous->second = range.end;
      return {previous->first, previous->second};
    }
  }
  ranges_.emplace_hint(next, range.begin, range.end);
  return range;
}

void RangeSet::Remove(Range range) {
  for (const Range& part : Inside(range)) {
    auto whole = std::prev(ranges_.upper_bound(part.begin));
    const uint64_t end = whole->second;
    whole->second = part.begin;
    if (whole->first == part.begin) ranges_.erase(whole);
    if (end > part.end) ranges_.emplace(part.end, end);
    size_ -= part.size();
  }
}

std::vector<Range> RangeSet::Inside(Range range) const {
  std::vector<Range> parts;
  if (range.size() == 0) return parts;
  for (auto it = FirstEndingAfter(range.begin); it != ranges_.end() && it->first < range.end;
       ++it) {
    parts.push_back({std::max(it->first, range.begin), std::min(it->second, range.end)});
  }
  return parts;
}

std::vector<Range> RangeSet::Outside(Range range) const {
  std::vector<Range> parts;
  for (const Range& inside : Inside(range)) {
    if (inside.begin > range.begin) parts.push_back({range.begin, inside.begin});
    range.begin = inside.end;
  }
  if (range.size() > 0) parts.push_back(range);
  return parts;
}

}  // namespace terrace::device
