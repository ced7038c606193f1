#include "kv/frequency_sketch.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/hash.h"

namespace terrace::kv {

FrequencySketch::FrequencySketch(size_t width)
    : mask_(std::bit_ceil(std::max<size_t>(width, 16)) - 1) {
  for (auto& row : rows_) row.assign(mask_ + 1, 0);
}

size_t FrequencySketch::Slot(const BlockKey& key, size_t row) const {
  return Hash64(key.bytes.data(), key.bytes.size(), row + 1) & mask_;
}

void FrequencySketch::Add(const BlockKey& key) {
  for (size_t row = 0; row < kRows; ++row) {
    uint8_t& count = rows_[row][Slot(key, row)];
    if (count < 255) ++count;
  }
  if (++uses_ >= 8 * (mask_ + 1)) Halve();
}

uint32_t FrequencySketch::Estimate(const BlockKey& key) const {
  uint32_t least = 255;
  for (size_t row = 0; row < kRows; ++row) {
    least = std::min<uint32_t>(least, rows_[row][Slot(key, row)]);
  }
  return least;
}

void FrequencySketch::Halve() {
  uses_ = 0;
  for (auto& row : rows_) {
    for (uint8_t& count : row) count /= 2;
  }
}

}  // namespace terrace::kv
