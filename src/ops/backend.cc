// The operators that a backend need not implement where the host reaches its memory.
#include "ops/backend.h"

#include <algorithm>
#include <cstring>

#include "base/status.h"
#include "ops/check.h"

namespace terrace::ops {

absl::Status Backend::Zero(Matrix x) {
  RETURN_IF_ERROR(CheckMatrix("Zero", "output", x));
  RETURN_IF_ERROR(Synchronize());
  for (int32_t r = 0; r < x.rows; ++r) std::fill_n(x.row(r), x.cols, 0.0f);
  return absl::OkStatus();
}

absl::Status Backend::AddScaledRows(Matrix x, std::span<const int32_t> rows,
                                    std::span<const float> shares, Matrix out) {
  RETURN_IF_ERROR(CheckAddScaledRows(x, rows, shares, out));
  RETURN_IF_ERROR(Synchronize());
  for (size_t i = 0; i < rows.size(); ++i) {
    const float* from = x.row(static_cast<int64_t>(i));
    float* to = out.row(rows[i]);
    for (int32_t c = 0; c < out.cols; ++c) to[c] += shares[i] * from[c];
  }
  return absl::OkStatus();
}

absl::Status Backend::Read(Matrix x, std::span<float> out) {
  RETURN_IF_ERROR(CheckRead(x, out));
  RETURN_IF_ERROR(Synchronize());
  for (int32_t r = 0; r < x.rows; ++r) {
    std::memcpy(out.data() + int64_t{r} * x.cols, x.row(r),
                static_cast<size_t>(x.cols) * sizeof(float));
  }
  return absl::OkStatus();
}

absl::Status Backend::Write(std::span<const float> in, Matrix x) {
  RETURN_IF_ERROR(CheckRead(x, in));
  RETURN_IF_ERROR(Synchronize());
  for (int32_t r = 0; r < x.rows; ++r) {
    std::memcpy(x.row(r), in.data() + int64_t{r} * x.cols,
                static_cast<size_t>(x.cols) * sizeof(float));
  }
  return absl::OkStatus();
}

}  // namespace terrace::ops
