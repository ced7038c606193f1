// A run of indices, and how a whole is divided among the members of a group.
#ifndef TERRACE_BASE_INDEX_RANGE_H_
#define TERRACE_BASE_INDEX_RANGE_H_

#include <algorithm>
#include <cstdint>

namespace terrace {

// [begin, end).
struct IndexRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const IndexRange&) const = default;
};

// What member `rank` of `size` gets of `total` things that are handed out in runs of `unit`: runs
// of all members follow one another and their sizes differ by one unit at most (the last one may
// lack what `total` lacks of a whole unit). REQUIRES: 0 <= rank < size, unit > 0.
inline IndexRange DividedRange(int64_t total, int64_t unit, int32_t rank, int32_t size) {
  const int64_t units = (total + unit - 1) / unit;
  return {std::min(total, units * rank / size * unit),
          std::min(total, units * (rank + 1) / size * unit)};
}

}  // namespace terrace

#endif  // TERRACE_BASE_INDEX_RANGE_H_
