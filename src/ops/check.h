// Shape checks shared by backends: each returns InvalidArgument naming the operator, or OK. They
// make the promise of ops/backend.h that nothing is written when a call is refused.
#ifndef TERRACE_OPS_CHECK_H_
#define TERRACE_OPS_CHECK_H_

#include <span>

#include "absl/status/status.h"
#include "ops/backend.h"
#include "ops/types.h"

namespace terrace::ops {

// A float matrix whose rows fit their stride.
absl::Status CheckMatrix(std::string_view op, std::string_view what, const Matrix& m);
absl::Status CheckSameShape(std::string_view op, const Matrix& a, const Matrix& b);
// `rows` and `cols` positive, cols a multiple of the dtype's block, data present.
absl::Status CheckWeight(std::string_view op, const Weight& weight);

absl::Status CheckEmbed(const Weight& table, std::span<const int32_t> ids, const Matrix& out);
absl::Status CheckNorm(const Matrix& x, const Vector& weight, const Matrix& out);
absl::Status CheckNormHeads(const Matrix& x, int32_t heads, const Vector& weight);
absl::Status CheckMatMul(const Matrix& x, std::span<const MatMulTarget> targets);
absl::Status CheckGatedFfn(const Matrix& x, const Weight& gate, const Weight& up,
                           const Matrix& gated, const Matrix& raised, const MatMulTarget& down);
absl::Status CheckRope(const Matrix& x, int32_t heads, int32_t head_dim, const BatchRows& batch,
                       const RopeParams& params);
absl::Status CheckBatch(std::string_view op, const BatchRows& batch, int32_t rows);
absl::Status CheckStoreKv(const Matrix& k, const Matrix& v, int32_t layer,
                          const KvGeometry& geometry, const BatchRows& batch);
absl::Status CheckAttention(const Matrix& q, const AttentionParams& params,
                            const KvGeometry& geometry, const BatchRows& batch, const Matrix& out);
absl::Status CheckGather(const Matrix& x, std::span<const int32_t> rows, const Matrix& out);
absl::Status CheckAddScaledRows(const Matrix& x, std::span<const int32_t> rows,
                                std::span<const float> shares, const Matrix& out);
absl::Status CheckScaleBySigmoid(const Matrix& x, const Vector& gate, const Matrix& out);
absl::Status CheckLayerNorm(const Matrix& x, const Vector& weight, const Vector& bias);
absl::Status CheckAttendAll(const Matrix& q, const Matrix& k, const Matrix& v, int32_t heads,
                            const BatchRows& batch, const Matrix& out);
absl::Status CheckPool(const Matrix& x, const BatchRows& batch, const Matrix& out);
absl::Status CheckRead(const Matrix& x, std::span<const float> out);

}  // namespace terrace::ops

#endif  // TERRACE_OPS_CHECK_H_
