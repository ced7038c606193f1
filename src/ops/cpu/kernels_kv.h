// Keys and values in the tiles of KV blocks. Part of kernels_impl.h.
#ifndef TERRACE_OPS_CPU_KERNELS_KV_H_
#define TERRACE_OPS_CPU_KERNELS_KV_H_

#include "ops/cpu/kernels_lanes.h"

namespace terrace::ops::cpu {
namespace {

void StoreKvToken(const float* x, int32_t dim, KvDType dtype, bool transposed, int32_t token,
                  std::byte* tile) {
  const int64_t step = transposed ? kKvBlockTokens : 1;
  const int64_t first = transposed ? token : static_cast<int64_t>(token) * dim;
  if (transposed) {  // a line of each few dimensions: waiting for one at a time would take long
    const int64_t bytes =
        static_cast<int64_t>(dim) * kKvBlockTokens * static_cast<int64_t>(KvElementBytes(dtype));
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(tile + i, 1);
  }
  F inverse = Set1(0.0f);
  if (dtype == KvDType::kI8) {
    F largest = Set1(0.0f);
    ForLanes(dim, [&](int32_t i, int n) { largest = Max(largest, Abs(LoadN(x + i, n))); });
    const float top = ReduceMax(largest);
    const float scale = top / 127.0f;
    inverse = Set1(top > 0.0f ? 127.0f / top : 0.0f);
    __builtin_memcpy(tile + static_cast<int64_t>(dim) * kKvBlockTokens + 4 * token, &scale, 4);
  }
  ForLanes(dim, [&](int32_t i, int n) {
    const F v = LoadN(x + i, n);
    if (dtype == KvDType::kF16) {
      uint16_t half[kLanes];
      StoreHalf(half, v);
      uint16_t* to = reinterpret_cast<uint16_t*>(tile) + first + i * step;
      for (int j = 0; j < n; ++j) to[j * step] = half[j];
    } else if (dtype == KvDType::kI8) {
      int8_t q[kLanes];
      StoreI8(q, RoundToI(Mul(v, inverse)));
      int8_t* to = reinterpret_cast<int8_t*>(tile) + first + i * step;
      for (int j = 0; j < n; ++j) to[j * step] = q[j];
    } else {
      float* to = reinterpret_cast<float*>(tile) + first + i * step;
      for (int j = 0; j < n; ++j) to[j * step] = x[i + j];
    }
  });
}

#ifdef TERRACE_HAS_TRANSPOSE
void StoreKeyTile(const float* x, int64_t stride, int32_t dim, std::byte* tile) {
  for (int32_t d = 0; d < dim; d += kLanes) {
    F rows[kLanes];
#pragma GCC unroll 16
    for (int t = 0; t < kLanes; ++t) rows[t] = Load(x + t * stride + d);
    Transpose(rows);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) StoreHalf(tile + int64_t{d + i} * kKvBlockTokens * 2, rows[i]);
  }
}
#endif

template <KvDType kType>
inline F LoadKv(const std::byte* tile, int64_t index) {
  if constexpr (kType == KvDType::kF16) {
    return LoadHalf(tile + 2 * index);
  } else if constexpr (kType == KvDType::kI8) {
    return ToF(LoadI8(tile + index));
  } else {
    return Load(reinterpret_cast<const float*>(tile) + index);
  }
}
template <KvDType kType>
inline float LoadKvOne(const std::byte* tile, int64_t index) {
  if constexpr (kType == KvDType::kI8) {
    return static_cast<float>(static_cast<int8_t>(tile[index]));
  } else if constexpr (kType == KvDType::kF32) {
    return reinterpret_cast<const float*>(tile)[index];
  } else {
    alignas(32) std::byte padded[32] = {};
    __builtin_memcpy(padded, tile + 2 * index, 2);
    float lanes[kLanes];
    Store(lanes, LoadHalf(padded));
    return lanes[0];
  }
}

}  // namespace
}  // namespace terrace::ops::cpu

#endif  // TERRACE_OPS_CPU_KERNELS_KV_H_
