// Products of matrices by a library of the chip's maker, where the device has one: an interface
// that its streams have beside Stream.
#ifndef TERRACE_DEVICE_MATRIX_STREAM_H_
#define TERRACE_DEVICE_MATRIX_STREAM_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace terrace::device {

// out[i][j] = the sum over k < cols of x[i][k] w[j][k], of bfloat16 numbers in device memory,
// summed and given in float32. Strides are in elements.
struct MatrixProduct {
  const std::byte* w = nullptr;
  int32_t w_rows = 0;
  int64_t w_stride = 0;
  const std::byte* x = nullptr;
  int32_t x_rows = 0;
  int64_t x_stride = 0;
  int32_t cols = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
};

class MatrixStream {
 public:
  virtual ~MatrixStream() = default;
  // Finds the library. NotFound if the device has none or it is not installed.
  virtual absl::Status OpenMatrices() = 0;
  // In stream order. An error is told here and does not count as one of the stream: `out` is then
  // undefined and may be computed in another way.
  virtual absl::Status Multiply(const MatrixProduct& product) = 0;
};

}  // namespace terrace::device

#endif  // TERRACE_DEVICE_MATRIX_STREAM_H_
