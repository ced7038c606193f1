// Loops that tell what the machine does at best (Kernels: measures). Part of kernels_impl.h.
#ifndef TERRACE_OPS_CPU_KERNELS_MEASURE_H_
#define TERRACE_OPS_CPU_KERNELS_MEASURE_H_

#include "ops/cpu/kernels_stream.h"

namespace terrace::ops::cpu {
namespace {

int32_t ReadAll(const std::byte* data, int64_t bytes) {
  I sum[4] = {ZeroI(), ZeroI(), ZeroI(), ZeroI()};
  for (int64_t i = 0; i + 256 <= bytes; i += 256) {
#pragma GCC unroll 16
    for (int j = 0; j < 4; ++j) {
      PrefetchFar(data + i + kFarBytes + 64 * j);
      sum[j] = AddI(sum[j], LoadI(data + i + 64 * j));
    }
  }
  return ReduceAddI(AddI(AddI(sum[0], sum[1]), AddI(sum[2], sum[3])));
}

int32_t Int8Rounds(int64_t rounds) {
  alignas(64) uint8_t bytes[4][64];
  for (int i = 0; i < 256; ++i) bytes[i / 64][i % 64] = static_cast<uint8_t>(i % 64);
  const int8_t x[3][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}, {1, -1, 2, -2}};
  I acc[12];
#pragma GCC unroll 16
  for (int j = 0; j < 12; ++j) acc[j] = SetI(j);  // or equal sums would be computed once
  for (int64_t r = 0; r < rounds; ++r) {
    asm volatile("" : "+m"(bytes));  // or the products would be hoisted
    B w[4];
#pragma GCC unroll 16
    for (int j = 0; j < 4; ++j) w[j] = LoadBytes(bytes[j]);
#pragma GCC unroll 16
    for (int j = 0; j < 12; ++j) acc[j] = Dot4<false>(acc[j], w[j % 4], x[j / 4]);
  }
#pragma GCC unroll 16
  for (int j = 1; j < 12; ++j) acc[0] = AddI(acc[0], acc[j]);
  return ReduceAddI(acc[0]);
}

float FloatRounds(int64_t rounds) {
  float start = 0.5f;
  F acc[12];
#pragma GCC unroll 16
  for (int j = 0; j < 12; ++j) acc[j] = Set1(static_cast<float>(j));
  for (int64_t r = 0; r < rounds; ++r) {
    asm volatile("" : "+m"(start));
    const F w = Set1(start);
#pragma GCC unroll 16
    for (int j = 0; j < 12; ++j) acc[j] = Fma(acc[j], w, w);
  }
#pragma GCC unroll 16
  for (int j = 1; j < 12; ++j) acc[0] = Add(acc[0], acc[j]);
  return ReduceAdd(acc[0]);
}

}  // namespace
}  // namespace terrace::ops::cpu

#endif  // TERRACE_OPS_CPU_KERNELS_MEASURE_H_
