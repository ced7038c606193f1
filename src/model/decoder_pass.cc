#include "model/decoder_pass.h"

#include <numeric>
#include <optional>
#include <vector>

#include "base/status.h"

namespace terrace::model {

absl::Status Decoder::Pass::Embed() {
  if (c_.share.tensor) return EmbedPart();
  return be_.EmbedRows(w_.Matrix(d_.embedding_), in_.tokens, c_.embedding_scale, b_.x);
}

absl::StatusOr<bool> Decoder::Pass::EmbedFetched() {
  if (in_.group != nullptr) return false;  // a pass of theirs is not to be begun anew
  ASSIGN_OR_RETURN(const std::optional<FetchedRows> rows, w_.FetchRows(d_.embedding_, in_.tokens));
  if (!rows) return false;
  RETURN_IF_ERROR(be_.EmbedRows(rows->table, rows->rows, c_.embedding_scale, b_.x));
  return true;
}

absl::Status Decoder::Pass::ReadVector(const ops::Vector& from, std::vector<float>* to) {
  to->resize(static_cast<size_t>(from.size));
  return be_.Read({const_cast<float*>(from.data), 1, from.size, from.size}, *to);
}

ops::RopeParams Decoder::Pass::RopeOf(int32_t layer) const {
  const LayerConfig& config = c_.layers[static_cast<size_t>(layer)];
  ops::RopeParams rope = config.rope;
  // Factors for short and long contexts go for all layers, others for those without a window.
  const bool factored = config.window == 0 || c_.original_context > 0;
  if (factored && !rope_factors_.empty()) {
    rope.frequency_factors = {rope_factors_.data(), static_cast<int32_t>(rope_factors_.size())};
  }
  return rope;
}

ops::AttentionParams Decoder::Pass::AttentionParamsOf(int32_t layer) const {
  ops::AttentionParams params;
  params.layer = layer;
  params.heads = c_.heads;
  params.scale = c_.attention_scale;
  params.window = c_.layers[static_cast<size_t>(layer)].window;
  params.softcap = c_.attention_softcap;
  params.sinks = Optional(d_.layers_[static_cast<size_t>(layer)].sinks);
  return params;
}

absl::Status Decoder::Pass::Attention(int32_t layer) {
  const LayerTensors& t = d_.layers_[static_cast<size_t>(layer)];
  if (layer == 0 && d_.rope_factors_ != kAbsent) {
    RETURN_IF_ERROR(ReadVector(w_.Vector(d_.rope_factors_), &rope_factors_));
  }
  RETURN_IF_ERROR(EnterBlock(t.attn_norm));
  RETURN_IF_ERROR(t.kv_a != kAbsent ? LatentAttention(layer) : PlainAttention(layer));
  RETURN_IF_ERROR(SumBlock());
  return AddBlock(t.attn_post_norm);
}

absl::Status Decoder::Pass::PlainAttention(int32_t layer) {
  const LayerTensors& t = d_.layers_[static_cast<size_t>(layer)];
  if (t.qkv != kAbsent) {
    ops::Matrix all = b_.q;
    all.cols = b_.q.cols + b_.k.cols + b_.v.cols;
    ops::MatMulTarget fused{w_.Matrix(t.qkv), {}, all};
    RETURN_IF_ERROR(be_.MatMul(b_.normed, {&fused, 1}));
    RETURN_IF_ERROR(Adapt(b_.normed, t.qkv, all));
  } else {
    const ops::MatMulTarget separate[] = {{w_.Matrix(t.q), Optional(t.q_bias), b_.q},
                                          {w_.Matrix(t.k), Optional(t.k_bias), b_.k},
                                          {w_.Matrix(t.v), Optional(t.v_bias), b_.v}};
    RETURN_IF_ERROR(be_.MatMul(b_.normed, separate));
    RETURN_IF_ERROR(Adapt(b_.normed, t.q, b_.q));
    RETURN_IF_ERROR(Adapt(b_.normed, t.k, b_.k));
    RETURN_IF_ERROR(Adapt(b_.normed, t.v, b_.v));
  }
  if (t.q_norm != kAbsent && c_.qk_norm_whole) {
    RETURN_IF_ERROR(be_.RmsNorm(b_.q, w_.Vector(t.q_norm), c_.norm_epsilon, b_.q));
    RETURN_IF_ERROR(be_.RmsNorm(b_.k, w_.Vector(t.k_norm), c_.norm_epsilon, b_.k));
  }
  const ops::RopeParams rope = RopeOf(layer);
  if (t.q_norm != kAbsent && !c_.qk_norm_whole) {
    const float eps = c_.norm_epsilon;
    RETURN_IF_ERROR(be_.NormRope(b_.q, c_.heads, w_.Vector(t.q_norm), eps, in_.batch, rope));
    RETURN_IF_ERROR(be_.NormRope(b_.k, c_.kv_heads, w_.Vector(t.k_norm), eps, in_.batch, rope));
  } else {
    RETURN_IF_ERROR(be_.Rope(b_.q, c_.heads, c_.key_dim, in_.batch, rope));
    RETURN_IF_ERROR(be_.Rope(b_.k, c_.kv_heads, c_.key_dim, in_.batch, rope));
  }
  RETURN_IF_ERROR(be_.StoreKv(b_.k, b_.v, layer, in_.kv, in_.batch));
  RETURN_IF_ERROR(be_.Attention(b_.q, AttentionParamsOf(layer), in_.kv, in_.batch, b_.attention));
  ops::MatMulTarget out{w_.Matrix(t.attn_out), Optional(t.attn_out_bias), b_.block_out};
  RETURN_IF_ERROR(be_.MatMul(b_.attention, {&out, 1}));
  return Adapt(b_.attention, t.attn_out, b_.block_out);
}

absl::Status Decoder::Pass::Ffn(int32_t layer) {
  const LayerTensors& t = d_.layers_[static_cast<size_t>(layer)];
  RETURN_IF_ERROR(EnterBlock(t.ffn_norm));
  RETURN_IF_ERROR(t.router != kAbsent ? ExpertFfn(layer) : DenseFfn(layer));
  RETURN_IF_ERROR(SumBlock());
  return AddBlock(t.ffn_post_norm);
}

absl::Status Decoder::Pass::DenseFfn(int32_t layer) {
  const LayerTensors& t = d_.layers_[static_cast<size_t>(layer)];
  if (t.gate == kAbsent) {
    ops::Matrix all = b_.gate;
    all.cols = 2 * c_.ffn_width;
    ops::MatMulTarget fused{w_.Matrix(t.up), {}, all};
    RETURN_IF_ERROR(be_.MatMul(b_.normed, {&fused, 1}));
    RETURN_IF_ERROR(Adapt(b_.normed, t.up, all));
  } else if (in_.adapters.empty()) {
    return be_.GatedFfn(b_.normed, w_.Matrix(t.gate), w_.Matrix(t.up), c_.activation, b_.gate,
                        b_.up, {w_.Matrix(t.down), {}, b_.block_out});
  } else {
    const ops::MatMulTarget separate[] = {{w_.Matrix(t.gate), {}, b_.gate},
                                          {w_.Matrix(t.up), {}, b_.up}};
    RETURN_IF_ERROR(be_.MatMul(b_.normed, separate));
    RETURN_IF_ERROR(Adapt(b_.normed, t.gate, b_.gate));
    RETURN_IF_ERROR(Adapt(b_.normed, t.up, b_.up));
  }
  RETURN_IF_ERROR(be_.Glu(c_.activation, b_.gate, b_.up, b_.gate));
  ops::MatMulTarget down{w_.Matrix(t.down), {}, b_.block_out};
  RETURN_IF_ERROR(be_.MatMul(b_.gate, {&down, 1}));
  return Adapt(b_.gate, t.down, b_.block_out);
}

absl::Status Decoder::Pass::Head() {
  RETURN_IF_ERROR(be_.GatherRows(b_.x, in_.logit_rows, b_.last));
  RETURN_IF_ERROR(be_.RmsNorm(b_.last, w_.Vector(d_.output_norm_), c_.norm_epsilon, b_.last));
  ops::MatMulTarget head{w_.Matrix(d_.head_), Optional(d_.head_bias_), b_.logit_part};
  RETURN_IF_ERROR(be_.MatMul(b_.last, {&head, 1}));
  if (c_.logit_scale != 1.0f) RETURN_IF_ERROR(be_.Scale(b_.logit_part, c_.logit_scale));
  if (c_.logit_softcap > 0) RETURN_IF_ERROR(be_.Softcap(b_.logit_part, c_.logit_softcap));
  return c_.share.tensor ? GatherLogits() : absl::OkStatus();
}

absl::Status Decoder::Pass::EnterBlock(int32_t norm) {
  if (norm != kAbsent) {
    return be_.RmsNorm(b_.x, w_.Vector(norm), c_.norm_epsilon, b_.normed);
  }
  std::vector<int32_t> all(static_cast<size_t>(b_.x.rows));
  std::iota(all.begin(), all.end(), 0);
  return be_.GatherRows(b_.x, all, b_.normed);
}

absl::Status Decoder::Pass::AddBlock(int32_t post_norm) {
  if (post_norm != kAbsent) {
    RETURN_IF_ERROR(be_.RmsNorm(b_.block_out, w_.Vector(post_norm), c_.norm_epsilon, b_.block_out));
  }
  if (c_.residual_scale != 1.0f) RETURN_IF_ERROR(be_.Scale(b_.block_out, c_.residual_scale));
  return be_.Add(b_.x, b_.block_out);
}

}  // namespace terrace::model
