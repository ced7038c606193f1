// What encoders (BERT and its kin) need beside the operators of Backend. Composed on the host from
// rows in device memory: for backends whose memory the host can reach. Each waits for the calls
// before it. InvalidArgument for shapes that do not fit.
#ifndef TERRACE_OPS_ENCODER_H_
#define TERRACE_OPS_ENCODER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "ops/backend.h"
#include "ops/types.h"

namespace terrace::ops {

// x[r] = (x[r] - mean(x[r])) / sqrt(variance(x[r]) + eps) * weight + bias, in place.
absl::Status LayerNorm(Backend& backend, Matrix x, Vector weight, Vector bias, float eps);

// x = x / 2 * (1 + erf(x / sqrt(2))), in place.
absl::Status GeluErf(Backend& backend, Matrix x);

// Attention in which every row of a sequence sees all rows of it. q, k, v and out are [rows, heads
// * dim]; `scale` multiplies q . k.
absl::Status AttendAll(Backend& backend, Matrix q, Matrix k, Matrix v, int32_t heads, float scale,
                       const BatchRows& batch, Matrix out);

// out.row(i) = the mean of the rows of sequence i (`mean`), or its first row; of length 1 with
// `normalize`. out [sequences, cols of x].
absl::Status Pool(Backend& backend, Matrix x, const BatchRows& batch, bool mean, bool normalize,
                  Matrix out);

}  // namespace terrace::ops

#endif  // TERRACE_OPS_ENCODER_H_
