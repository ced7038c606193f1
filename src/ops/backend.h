// The operators a model is composed of, as one interface a device family implements: ops/ref (plain
// float32, the definition of right), ops/cpu (named variants), later one folder a chip. Every call
// is ordered after the calls before it on the same backend; results may be read on the host after
// Synchronize(). A backend is used by one thread at a time.
//
// Activations are float32 on the device. Errors: InvalidArgument for shapes that do not fit (names
// the operator), Unimplemented for a dtype or layout the backend does not take; nothing is written
// then.
#ifndef TERRACE_OPS_BACKEND_H_
#define TERRACE_OPS_BACKEND_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ops/moe.h"
#include "ops/types.h"

namespace terrace::ops {

// One y = W x + b of a group that shares its input.
struct MatMulTarget {
  Weight weight;  // [out, in]
  Vector bias;    // [out] or absent
  Matrix out;     // [rows, out]
};

class Backend {
 public:
  virtual ~Backend() = default;

  // "ref", "portable", "avx2", "avx512vnni" ...
  virtual std::string_view name() const = 0;

  // The layout in which this backend wants a matrix of `dtype` [rows, cols], the bytes it takes
  // there, and the conversion from GGUF's plain rows. Packing is lossless. `source` holds
  // rows * RowBytes(dtype, cols) bytes, `packed` PackedBytes(). Thread-safe; host memory both.
  // A matrix is packed in groups of 16 rows that do not depend on each other and follow one another
  // in `packed`: runs of whole groups may be packed by separate calls, at once or in any order.
  virtual Layout PreferredLayout(DType dtype, int32_t rows, int32_t cols) const = 0;
  virtual uint64_t PackedBytes(Layout layout, DType dtype, int32_t rows, int32_t cols) const = 0;
  virtual absl::Status Pack(Layout layout, DType dtype, int32_t rows, int32_t cols,
                            std::span<const std::byte> source,
                            std::span<std::byte> packed) const = 0;

  // out[r] = scale * table.row(ids[r]); table [vocab, width], out [ids.size(), width].
  virtual absl::Status EmbedRows(const Weight& table, std::span<const int32_t> ids, float scale,
                                 Matrix out) = 0;

  // out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight. x and out may be the same.
  virtual absl::Status RmsNorm(Matrix x, Vector weight, float eps, Matrix out) = 0;
  // The same over each head of x [rows, heads * weight.size], in place (query and key norms).
  virtual absl::Status RmsNormHeads(Matrix x, int32_t heads, Vector weight, float eps) = 0;

  // y = W x + b for each target; the input is read (and quantised) once for all. x [rows, in].
  virtual absl::Status MatMul(Matrix x, std::span<const MatMulTarget> targets) = 0;

  // Rotates heads of x [rows, heads * head_dim] in place, by batch.positions.
  virtual absl::Status Rope(Matrix x, int32_t heads, int32_t head_dim, const BatchRows& batch,
                            const RopeParams& params) = 0;

  // RmsNormHeads and Rope in one pass, with their bits; a head has norm.size values.
  virtual absl::Status NormRope(Matrix x, int32_t heads, Vector norm, float eps,
                                const BatchRows& batch, const RopeParams& params);

  // Writes k [rows, kv_heads * key_dim] and v [rows, kv_heads * value_dim] to the KV blocks of
  // `layer` at the batch's positions.
  virtual absl::Status StoreKv(Matrix k, Matrix v, int32_t layer, const KvGeometry& geometry,
                               const BatchRows& batch) = 0;

  // Causal attention over each sequence's KV blocks (which already hold the batch's own tokens).
  // q [rows, heads * key_dim], out [rows, heads * value_dim].
  virtual absl::Status Attention(Matrix q, const AttentionParams& params,
                                 const KvGeometry& geometry, const BatchRows& batch,
                                 Matrix out) = 0;

  // out = activation(gate) * up; out may be gate.
  virtual absl::Status Glu(Activation activation, Matrix gate, Matrix up, Matrix out) = 0;

  // down.out = down.weight (activation(gate x) * (up x)) + down.bias: MatMul, Glu and MatMul, with
  // their bits. gate and up have the same shape; `gated` and `raised`, [rows, its outputs], are for
  // what lies between and hold anything afterwards.
  virtual absl::Status GatedFfn(Matrix x, const Weight& gate, const Weight& up,
                                Activation activation, Matrix gated, Matrix raised,
                                const MatMulTarget& down);

  // The GLU with clamped operands (ops/moe.h); out may be gate. gate and up are overwritten.
  virtual absl::Status GluClamped(const GluClamp& clamp, Matrix gate, Matrix up, Matrix out);

  // out.row(t) = the sum over the experts of token t, ascending, of share * FFN of the expert. Each
  // used expert's weights are read once for all its tokens; those of unused ones are not looked at.
  // out is neither x nor in `scratch`. Composed of the other operators here.
  virtual absl::Status ExpertFfn(Matrix x, const ExpertRouting& routing,
                                 const ExpertWeights& weights, const ExpertScratch& scratch,
                                 Matrix out);

  // out.row(r) *= sigmoid(x.row(r) . gate): how much of a shared expert a token takes.
  virtual absl::Status ScaleBySigmoid(Matrix x, Vector gate, Matrix out);

  // x += y.
  virtual absl::Status Add(Matrix x, Matrix y) = 0;
  // x *= scale.
  virtual absl::Status Scale(Matrix x, float scale) = 0;
  // x = cap * tanh(x / cap).
  virtual absl::Status Softcap(Matrix x, float cap) = 0;
  // out.row(i) = x.row(rows[i]).
  virtual absl::Status GatherRows(Matrix x, std::span<const int32_t> rows, Matrix out) = 0;

  // x = 0.
  virtual absl::Status Zero(Matrix x);
  // out.row(rows[i]) += shares[i] * x.row(i), in order of i.
  virtual absl::Status AddScaledRows(Matrix x, std::span<const int32_t> rows,
                                     std::span<const float> shares, Matrix out);

  // What encoders (BERT and its kin) need beside these.
  // x[r] = (x[r] - mean(x[r])) / sqrt(variance(x[r]) + eps) * weight + bias, in place.
  virtual absl::Status LayerNorm(Matrix x, Vector weight, Vector bias, float eps);
  // x = x / 2 * (1 + erf(x / sqrt(2))), in place.
  virtual absl::Status GeluErf(Matrix x);
  // Attention in which every row of a sequence sees all rows of it. q, k, v and out are [rows,
  // heads * dim]; `scale` multiplies q . k. out is none of the others.
  virtual absl::Status AttendAll(Matrix q, Matrix k, Matrix v, int32_t heads, float scale,
                                 const BatchRows& batch, Matrix out);
  // out.row(i) = the mean of the rows of sequence i (`mean`), or its first row; of length 1 with
  // `normalize`. out [sequences, cols of x].
  virtual absl::Status Pool(Matrix x, const BatchRows& batch, bool mean, bool normalize,
                            Matrix out);

  // While on, the kernels that run are chosen by formats and shapes of weights alone, never by the
  // number of rows: a row's result depends neither on the other rows of its batch nor on the pieces
  // in which its sequence comes. Off at first; changes nothing else where that always holds.
  virtual void SetUniform(bool uniform) { uniform_ = uniform; }
  // Whether speed may be bought with results that differ, by rounding, with the number of rows.
  virtual bool by_rows() const { return !uniform_; }

  // Whether the host may read and write the device's memory through its addresses, between calls.
  // The operators that are implemented in this class do, but for ExpertFfn, which is composed of
  // others; a backend whose memory the host can't reach overrides them.
  virtual bool host_addressable() const { return true; }
  // Copies x to the host: out [rows, cols] without gaps. Waits for all calls before it.
  virtual absl::Status Read(Matrix x, std::span<float> out);

  // Copies `in` [rows, cols], without gaps, from the host to x, after all calls before it; `in` is
  // not used any more when it returns.
  virtual absl::Status Write(std::span<const float> in, Matrix x);

  // Waits for all calls before it. The error of a call that failed after it returned is told here,
  // once.
  virtual absl::Status Synchronize() = 0;
  // Whether calls return before their work is done: then what they read has to stay until a later
  // Synchronize, or a WaitFor of a mark that was set after them.
  virtual bool asynchronous() const { return false; }
  // A mark after all calls so far; waiting for one waits for all before it. Marks are forgotten at
  // Synchronize.
  virtual absl::StatusOr<uint64_t> Mark() { return 0; }
  virtual absl::Status WaitFor(uint64_t) { return Synchronize(); }

 protected:
  bool uniform_ = false;
};

}  // namespace terrace::ops

#endif  // TERRACE_OPS_BACKEND_H_
