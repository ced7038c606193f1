// The operators that a backend need not implement where the host reaches its memory.
#include "ops/backend.h"

#include <algorithm>
#include <cstring>

#include "base/status.h"
#include "ops/check.h"

namespace terrace::ops {

absl::Status Backend::GatedFfn(Matrix x, const Weight& gate, const Weight& up,
                               Activation activation, Matrix gated, Matrix raised,
                               const MatMulTarget& down) {
  const MatMulTarget both[] = {{gate, {}, gated}, {up, {}, raised}};
  RETURN_IF_ERROR(CheckGatedFfn(x, gate, up, gated, raised, down));
  RETURN_IF_ERROR(MatMul(x, both));
  RETURN_IF_ERROR(Glu(activation, gated, raised, gated));
  return MatMul(gated, {&down, 1});
}

absl::Status Backend::NormRope(Matrix x, int32_t heads, Vector norm, float eps,
                               const BatchRows& batch, const RopeParams& params) {
  RETURN_IF_ERROR(CheckNormHeads(x, heads, norm));
  RETURN_IF_ERROR(CheckRope(x, heads, norm.size, batch, params));
  RETURN_IF_ERROR(RmsNormHeads(x, heads, norm, eps));
  return Rope(x, heads, norm.size, batch, params);
}

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
