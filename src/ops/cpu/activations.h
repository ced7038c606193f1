// A matrix of activations in the forms that matrix kernels take (cpu::MatMulArgs): each is made
// once a call, by all workers, and kept until it is made for another matrix.
#ifndef TERRACE_OPS_CPU_ACTIVATIONS_H_
#define TERRACE_OPS_CPU_ACTIVATIONS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>

#include "device/cpu/thread_team.h"
#include "ops/cpu/kernels.h"
#include "ops/tolerance.h"
#include "ops/types.h"

namespace terrace::ops::cpu {

// Work below this many elements is done by the caller: a fork and join costs about as much.
inline constexpr int64_t kForkElements = 8192;

// Calls fn(row) for each row, by several workers if that pays.
template <typename F>
void ForRows(ThreadTeam* team, int64_t rows, int64_t cols, F&& fn) {
  if (rows * cols < kForkElements) {
    for (int64_t r = 0; r < rows; ++r) fn(r);
    return;
  }
  const int64_t grain = std::max<int64_t>(1, kForkElements / 2 / cols);
  team->ParallelFor(rows, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) fn(r);
  });
}

// Which of its kernels a variant runs.
inline Factors FactorsOf(const Kernels& kernels, DType dtype, int32_t rows, int32_t cols,
                         bool deterministic) {
  if (deterministic || cols % kBlock != 0) return Factors::kStored;
  if (kernels.tile_matmul[static_cast<size_t>(dtype)] != nullptr && rows >= kernels.tile_min_rows) {
    return Factors::kBf16;
  }
  if (kernels.word_matmul[static_cast<size_t>(dtype)] != nullptr && rows >= kernels.word_min_rows) {
    return Factors::kWords;
  }
  return Factors::kStored;
}
// Whether block formats, and W8A8 of a width, are multiplied by tile_quant_matmul.
inline bool UsesTileQuant(const Kernels& kernels, int32_t rows) {
  return kernels.tile_quant_min_rows > 0 && rows >= kernels.tile_quant_min_rows;
}
inline bool UsesTileScaled(const Kernels& kernels, int32_t rows, int32_t cols) {
  return kernels.tile_scaled_min_rows > 0 && rows >= kernels.tile_scaled_min_rows && cols % 64 == 0;
}
inline bool AttendsInTiles(const Kernels& kernels, const KvGeometry& geometry, int32_t rows,
                           bool deterministic) {
  return kernels.tile_attention != nullptr && !deterministic &&
         rows >= kernels.tile_attention_min_rows && geometry.dtype != KvDType::kF32 &&
         geometry.key_dim % kBlock == 0 && geometry.value_dim % kLanes == 0;
}

// Memory of at least `bytes` at a multiple of 64; more than half a megabyte lies on huge pages
// where the system grants them. For std::free.
void* NewLines(size_t bytes);

// Memory that is kept between calls and only grows; 64-byte aligned.
template <typename T>
class Scratch {
 public:
  // The memory, made larger where it holds fewer than `count`; its contents are lost then.
  T* Get(size_t count) {
    if (count > size_) {
      data_.reset(static_cast<T*>(NewLines(count * sizeof(T))));
      size_ = count;
    }
    return data_.get();
  }

  const T* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T, Free> data_;
  size_t size_ = 0;
};

class Activations {
 public:
  // Both outlive this.
  Activations(const Kernels& kernels, ThreadTeam* team) : kernels_(kernels), team_(team) {}

  // INT8 with a scale for each block of 32.
  void Quantise(const Matrix& x);
  // INT8 with a scale for each row.
  void QuantiseWholeRows(const Matrix& x);
  // 14-bit integers with a scale for each block of 32.
  void QuantiseWords(const Matrix& x);
  void RoundToBf16(const Matrix& x);
  // Room for a matrix [rows, cols] in BF16 that is computed from the present one: in tiles of 16
  // rows, the last filled up. UseNext() makes it the present one.
  uint16_t* NextBf16(int32_t rows, int32_t cols) {
    const int32_t padded = (rows + kMatrixTile - 1) / kMatrixTile * kMatrixTile;
    return next_xb_.Get(static_cast<size_t>(padded) * static_cast<size_t>(cols));
  }
  void UseNext() { std::swap(xb_, next_xb_); }

  // Points `args` to all of them.
  void Fill(MatMulArgs* args) const {
    args->xq = xq_.data();
    args->x8 = x8_.data();
    args->x8_scale = x8_scale_.data();
    args->x8_sum = x8_sum_.data();
    args->xw = xw_.data();
    args->xw_scale = xw_scale_.data();
    args->xb = xb_.data();
  }

 private:
  const Kernels& kernels_;
  ThreadTeam* const team_;
  Scratch<XBlock> xq_;
  Scratch<int8_t> x8_;
  Scratch<float> x8_scale_;
  Scratch<int32_t> x8_sum_;
  Scratch<int16_t> xw_;
  Scratch<float> xw_scale_;
  Scratch<uint16_t> xb_;
  Scratch<uint16_t> next_xb_;
};

}  // namespace terrace::ops::cpu

#endif  // TERRACE_OPS_CPU_ACTIVATIONS_H_
