// What matrix kernels share: weights asked for ahead, heights of tiles, results written. Part of
// kernels_impl.h.
#ifndef TERRACE_OPS_CPU_KERNELS_STREAM_H_
#define TERRACE_OPS_CPU_KERNELS_STREAM_H_

#include "ops/cpu/kernels_lanes.h"

namespace terrace::ops::cpu {
namespace {

// How far ahead of use weights are asked for: into the second-level cache, whose queue of lines
// that are on their way is longer than the first level's, and once more into the first, which also
// makes up for what the queue had no room for. 4 KiB read 6% faster than 6 KiB and more, or 2; far
// alone takes 4 to 11% longer, near alone reads 5 to 10% slower.
inline constexpr int kFarBytes = 4 << 10;
inline constexpr int kNearBytes = 1 << 10;
inline void PrefetchStream(const void* p) {
  Prefetch(static_cast<const char*>(p) + kNearBytes);
  PrefetchFar(static_cast<const char*>(p) + kFarBytes);
}

// Calls use with the height of a tile of `count` activation rows, at most kMost: the least of those
// that kernels exist for, 1, 2, 3, 4, 6, 8, 10 and 12.
template <int kMost = kTileRows, int kHeight = 1, typename Use>
inline void WithTileHeight(int count, Use use) {
  if constexpr (kHeight < kMost) {
    if (count > kHeight) return WithTileHeight<kMost, PaddedRows(kHeight + 1)>(count, use);
  }
  use.template operator()<kHeight>();
}

// Adds the bias and writes tile results: lanes are output features, tile rows activation rows.
inline void WriteTile(const MatMulArgs& a, const F* acc, int32_t group, int32_t row, int count) {
  const int32_t first = group * kLanes;
  const int lanes = a.rows - first < kLanes ? a.rows - first : kLanes;
  const F bias = a.bias != nullptr ? LoadN(a.bias + first, lanes) : Set1(0.0f);
  for (int t = 0; t < count; ++t) {
    StoreN(a.out + (row + t) * a.out_stride + first, Add(acc[t], bias), lanes);
  }
}

// Rows of activations that stay in the second-level cache while row groups pass over them.
inline int32_t ChunkRows(int32_t bytes_a_row, int tile) {
  constexpr int32_t kChunkBytes = 384 << 10;
  const int32_t rows = kChunkBytes / (bytes_a_row < 1 ? 1 : bytes_a_row) / tile * tile;
  return rows < tile ? tile : rows;
}

// Starts the stream of weights of a range, before the hardware has seen its direction.
inline void PrefetchStart(const std::byte* weight) {
  int i = 0;
  for (; i < 2 * kNearBytes; i += 64) Prefetch(weight + i);
  for (; i < kFarBytes; i += 64) PrefetchFar(weight + i);
}

}  // namespace
}  // namespace terrace::ops::cpu

#endif  // TERRACE_OPS_CPU_KERNELS_STREAM_H_
