// Multi-head latent attention, absorbed: a query head is moved into the latent space by its key
// matrix, so that keys and values of all heads are the one latent vector that KV holds, and what
// attention gives is moved out of it by the head's value matrix.
#include <numeric>
#include <utility>
#include <vector>

#include "base/status.h"
#include "model/decoder_pass.h"

namespace terrace::model {
namespace {

ops::Matrix Columns(ops::Matrix m, int64_t first, int32_t cols) {
  m.data += first;
  m.cols = cols;
  return m;
}

}  // namespace

absl::Status Decoder::BindLatent(const TensorCatalog& catalog, int32_t layer, LayerTensors* t) {
  const LatentConfig& l = config_.latent;
  const int64_t width = config_.width, heads = config_.heads;
  const int64_t q_width = heads * (l.nope_dim + l.rope_dim);
  auto need = [&](const char* name, std::vector<int64_t> shape, int32_t* index) {
    return NeedInLayer(catalog, layer, name, std::move(shape), WeightProvider::Stage::kAttention,
                       true, index);
  };
  if (l.query_rank > 0) {
    RETURN_IF_ERROR(need("attn_q_a.weight", {l.query_rank, width}, &t->q_a));
    RETURN_IF_ERROR(need("attn_q_a_norm.weight", {l.query_rank}, &t->q_a_norm));
    RETURN_IF_ERROR(need("attn_q_b.weight", {q_width, l.query_rank}, &t->q));
  } else {
    RETURN_IF_ERROR(need("attn_q.weight", {q_width, width}, &t->q));
  }
  RETURN_IF_ERROR(need("attn_kv_a_mqa.weight", {int64_t{l.kv_rank} + l.rope_dim, width}, &t->kv_a));
  RETURN_IF_ERROR(need("attn_kv_a_norm.weight", {l.kv_rank}, &t->kv_a_norm));
  RETURN_IF_ERROR(need("attn_k_b.weight", {heads, l.kv_rank, l.nope_dim}, &t->k_b));
  RETURN_IF_ERROR(need("attn_v_b.weight", {heads, l.value_dim, l.kv_rank}, &t->v_b));
  return need("attn_output.weight", {width, heads * l.value_dim}, &t->attn_out);
}

absl::Status Decoder::Pass::LatentQueries(int32_t layer) {
  const LayerTensors& t = d_.layers_[static_cast<size_t>(layer)];
  const LatentConfig& l = c_.latent;
  ops::Matrix input = b_.normed;
  if (t.q_a != kAbsent) {
    const ops::MatMulTarget low{w_.Matrix(t.q_a), {}, b_.q_low};
    RETURN_IF_ERROR(be_.MatMul(b_.normed, {&low, 1}));
    RETURN_IF_ERROR(be_.RmsNorm(b_.q_low, w_.Vector(t.q_a_norm), c_.norm_epsilon, b_.q_low));
    input = b_.q_low;
  }
  const ops::MatMulTarget heads{w_.Matrix(t.q), {}, b_.q_heads};
  RETURN_IF_ERROR(be_.MatMul(input, {&heads, 1}));
  std::vector<int32_t> all(static_cast<size_t>(b_.q.rows));
  std::iota(all.begin(), all.end(), 0);
  const ops::WeightStack key = w_.Stack(t.k_b);
  for (int32_t h = 0; h < c_.heads; ++h) {
    const int64_t from = int64_t{h} * (l.nope_dim + l.rope_dim);
    const int64_t to = int64_t{h} * c_.key_dim;
    RETURN_IF_ERROR(be_.GatherRows(Columns(b_.q_heads, from + l.nope_dim, l.rope_dim), all,
                                   Columns(b_.q, to, l.rope_dim)));
    const ops::MatMulTarget absorbed{key.at(h), {}, Columns(b_.q, to + l.rope_dim, l.kv_rank)};
    RETURN_IF_ERROR(be_.MatMul(Columns(b_.q_heads, from, l.nope_dim), {&absorbed, 1}));
  }
  return be_.Rope(b_.q, c_.heads, c_.key_dim, in_.batch, RopeOf(layer));
}

absl::Status Decoder::Pass::LatentKeys(int32_t layer) {
  const LayerTensors& t = d_.layers_[static_cast<size_t>(layer)];
  const LatentConfig& l = c_.latent;
  const ops::MatMulTarget low{w_.Matrix(t.kv_a), {}, b_.kv_low};
  RETURN_IF_ERROR(be_.MatMul(b_.normed, {&low, 1}));
  std::vector<int32_t> all(static_cast<size_t>(b_.k.rows));
  std::iota(all.begin(), all.end(), 0);
  RETURN_IF_ERROR(
      be_.GatherRows(Columns(b_.kv_low, l.kv_rank, l.rope_dim), all, Columns(b_.k, 0, l.rope_dim)));
  RETURN_IF_ERROR(
      be_.RmsNorm(Columns(b_.kv_low, 0, l.kv_rank), w_.Vector(t.kv_a_norm), c_.norm_epsilon, b_.v));
  return be_.Rope(b_.k, 1, c_.key_dim, in_.batch, RopeOf(layer));
}

absl::Status Decoder::Pass::LatentAttention(int32_t layer) {
  const LayerTensors& t = d_.layers_[static_cast<size_t>(layer)];
  const LatentConfig& l = c_.latent;
  RETURN_IF_ERROR(LatentQueries(layer));
  RETURN_IF_ERROR(LatentKeys(layer));
  RETURN_IF_ERROR(be_.StoreKv(b_.k, b_.v, layer, in_.kv, in_.batch));
  RETURN_IF_ERROR(be_.Attention(b_.q, AttentionParamsOf(layer), in_.kv, in_.batch, b_.attention));
  const ops::WeightStack value = w_.Stack(t.v_b);
  for (int32_t h = 0; h < c_.heads; ++h) {
    const ops::MatMulTarget expanded{
        value.at(h), {}, Columns(b_.values, int64_t{h} * l.value_dim, l.value_dim)};
    RETURN_IF_ERROR(
        be_.MatMul(Columns(b_.attention, int64_t{h} * l.kv_rank, l.kv_rank), {&expanded, 1}));
  }
  const ops::MatMulTarget out{w_.Matrix(t.attn_out), {}, b_.block_out};
  return be_.MatMul(b_.values, {&out, 1});
}

}  // namespace terrace::model
