// How often keys were asked for lately: a count-min sketch (Cormode and Muthukrishnan 2005) whose
// counts are halved as uses add up, as in TinyLFU (Einziger et al. 2017). Estimates are never below
// the true (decayed) count. Not thread-safe.
#ifndef TERRACE_KV_FREQUENCY_SKETCH_H_
#define TERRACE_KV_FREQUENCY_SKETCH_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kv/block_key.h"

namespace terrace::kv {

class FrequencySketch {
 public:
  // Takes 4 * `width` bytes; `width` is rounded up to a power of two. Counts are halved after
  // 8 * width uses.
  explicit FrequencySketch(size_t width = size_t{1} << 16);
  void Add(const BlockKey& key);
  uint32_t Estimate(const BlockKey& key) const;

 private:
  static constexpr size_t kRows = 4;
  size_t Slot(const BlockKey& key, size_t row) const;
  void Halve();

  size_t mask_;
  uint64_t uses_ = 0;
  std::array<std::vector<uint8_t>, kRows> rows_;
};

}  // namespace terrace::kv

#endif  // TERRACE_KV_FREQUENCY_SKETCH_H_
