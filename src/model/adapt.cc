// Low-rank adapters: what they add to a layer's matrices, for the rows that have one.
#include <optional>

#include "base/status.h"
#include "model/decoder_pass.h"

namespace terrace::model {
namespace {

// Rows [first, first + rows) of `m`, and of these the first `cols` columns.
ops::Matrix Part(ops::Matrix m, int32_t first, int32_t rows, int32_t cols) {
  m.data = m.row(first);
  m.rows = rows;
  m.cols = cols;
  return m;
}

}  // namespace

bool Decoder::CanAdapt(int32_t tensor) const {
  const TensorNeed& need = tensors_[static_cast<size_t>(tensor)];
  if (need.stage != WeightProvider::Stage::kAttention && need.stage != WeightProvider::Stage::kFfn)
    return false;
  const LayerTensors& t = layers_[static_cast<size_t>(need.layer)];
  if (need.stage == WeightProvider::Stage::kAttention) {
    // Not the key and value matrices of latent attention, which lie in stacks by head.
    return tensor == t.q || tensor == t.k || tensor == t.v || tensor == t.qkv ||
           tensor == t.attn_out || tensor == t.q_a || tensor == t.kv_a;
  }
  return t.router == kAbsent && (tensor == t.gate || tensor == t.up || tensor == t.down);
}

absl::Status Decoder::Pass::Adapt(ops::Matrix x, int32_t tensor, ops::Matrix out) {
  for (const AdapterRows& rows : in_.adapters) {
    const std::optional<LowRank> pair = w_.Delta(rows.adapter, tensor);
    if (!pair) continue;
    const ops::Matrix input = Part(x, rows.first, rows.rows, x.cols);
    const ops::Matrix low = Part(b_.low, 0, rows.rows, pair->a.rows);
    const ops::Matrix delta = Part(b_.delta, 0, rows.rows, out.cols);
    const ops::MatMulTarget down{pair->a, {}, low};
    RETURN_IF_ERROR(be_.MatMul(input, {&down, 1}));
    RETURN_IF_ERROR(be_.Scale(low, pair->scale));
    const ops::MatMulTarget up{pair->b, {}, delta};
    RETURN_IF_ERROR(be_.MatMul(low, {&up, 1}));
    RETURN_IF_ERROR(be_.Add(Part(out, rows.first, rows.rows, out.cols), delta));
  }
  return absl::OkStatus();
}

}  // namespace terrace::model
