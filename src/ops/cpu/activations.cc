#include "ops/cpu/activations.h"

#include <sys/mman.h>

#include <cstring>
#include <new>

namespace terrace::ops::cpu {

void* NewLines(size_t bytes) {
  constexpr size_t kHuge = size_t{2} << 20;
  const size_t unit = bytes > kHuge / 4 ? kHuge : 64;
  bytes = (bytes + unit - 1) / unit * unit;
  void* const p = std::aligned_alloc(unit, bytes);
  if (p == nullptr) throw std::bad_alloc();
  if (unit == kHuge) madvise(p, bytes, MADV_HUGEPAGE);
  return p;
}

void Activations::Quantise(const Matrix& x) {
  const bool matrix_unit = UsesTileQuant(kernels_, x.rows);
  const int32_t blocks = x.cols / kBlock;
  const int32_t tile = matrix_unit ? kMatrixTile : kernels_.tile_rows;
  const int32_t tiles = (x.rows + tile - 1) / tile;
  const int32_t last = x.rows - (tiles - 1) * tile;
  const int32_t last_padded = matrix_unit ? tile : PaddedRows(last);
  const size_t rows = static_cast<size_t>(tiles - 1) * tile + static_cast<size_t>(last_padded);
  XBlock* out = xq_.Get(rows * static_cast<size_t>(blocks));
  ForRows(team_, static_cast<int64_t>(rows), x.cols, [&](int64_t r) {
    const int32_t t = static_cast<int32_t>(r / tile);
    const int32_t in_tile = static_cast<int32_t>(r % tile);
    const int32_t height = t == tiles - 1 ? last_padded : tile;
    XBlock* to = out + static_cast<int64_t>(t) * tile * blocks + in_tile;
    if (r < x.rows) {
      kernels_.quantize_row(x.row(r), x.cols, to, height);
    } else {
      for (int32_t b = 0; b < blocks; ++b) to[int64_t{b} * height] = XBlock{};
    }
  });
}

void Activations::QuantiseWholeRows(const Matrix& x) {
  const int32_t blocks = x.cols / kBlock;
  const bool matrix_unit = UsesTileScaled(kernels_, x.rows, x.cols);
  const int32_t tile = matrix_unit ? kMatrixTile : kernels_.tile_rows;
  const int32_t tiles = (x.rows + tile - 1) / tile;
  const int32_t last_padded = matrix_unit ? tile : PaddedRows(x.rows - (tiles - 1) * tile);
  const size_t rows = static_cast<size_t>(tiles - 1) * tile + static_cast<size_t>(last_padded);
  int8_t* bytes = x8_.Get(rows * static_cast<size_t>(x.cols));
  float* scales = x8_scale_.Get(rows);
  int32_t* sums = x8_sum_.Get(rows);
  ForRows(team_, static_cast<int64_t>(rows), x.cols, [&](int64_t r) {
    const int64_t t = r / tile;
    const int64_t height = t == tiles - 1 ? last_padded : tile;
    // A matrix unit takes two blocks of a row at a time.
    const int64_t together = matrix_unit ? 2 * kBlock : kBlock;
    const int64_t step = matrix_unit ? kBlock : height * kBlock;
    const int64_t pair_step = 2 * height * kBlock;
    int8_t* const to = bytes + t * tile * x.cols + r % tile * together;
    if (r < x.rows) {
      kernels_.quantize_whole_row(x.row(r), x.cols, to, step, pair_step, scales + r, sums + r);
      return;
    }
    for (int32_t b = 0; b < blocks; ++b) {
      std::memset(to + b / 2 * pair_step + b % 2 * step, 0, kBlock);
    }
    scales[r] = 0.0f;
    sums[r] = 0;
  });
}

void Activations::QuantiseWords(const Matrix& x) {
  const int32_t blocks = x.cols / kBlock;
  const int32_t tile = kernels_.tile_rows;
  const int32_t tiles = (x.rows + tile - 1) / tile;
  const int32_t last_padded = PaddedWordRows(x.rows - (tiles - 1) * tile);
  const size_t rows = static_cast<size_t>(tiles - 1) * tile + static_cast<size_t>(last_padded);
  int16_t* words = xw_.Get(rows * static_cast<size_t>(x.cols));
  float* scales = xw_scale_.Get(rows * static_cast<size_t>(blocks));
  ForRows(team_, static_cast<int64_t>(rows), x.cols, [&](int64_t r) {
    const int64_t t = r / tile;
    const int64_t in_tile = r % tile;
    const int64_t height = t == tiles - 1 ? last_padded : tile;
    const int64_t first = t * tile * blocks + in_tile;  // in blocks
    if (r < x.rows) {
      kernels_.quantize_words(x.row(r), x.cols, words + first * kBlock, scales + first, height);
      return;
    }
    for (int32_t b = 0; b < blocks; ++b) {
      std::memset(words + (first + b * height) * kBlock, 0, kBlock * sizeof(int16_t));
      scales[first + b * height] = 0.0f;
    }
  });
}

void Activations::RoundToBf16(const Matrix& x) {
  const int64_t row_values = int64_t{x.cols} * kMatrixTile;  // of a tile of rows
  const int64_t rows = (x.rows + kMatrixTile - 1) / kMatrixTile * kMatrixTile;
  uint16_t* const out = xb_.Get(static_cast<size_t>(rows * x.cols));
  ForRows(team_, rows, x.cols, [&](int64_t r) {
    uint16_t* to = out + r / kMatrixTile * row_values + r % kMatrixTile * kBlock;
    constexpr int64_t kStride = int64_t{kMatrixTile} * kBlock;
    if (r < x.rows) return kernels_.to_bf16(x.row(r), x.cols, to, kStride);
    for (int32_t c = 0; c < x.cols; c += kBlock, to += kStride) std::memset(to, 0, 2 * kBlock);
  });
}

}  // namespace terrace::ops::cpu
