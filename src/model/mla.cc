// Multi-head latent attention in two forms that compute the same but for rounding.
//
// Absorbed: a query head is moved into the latent space by its key matrix, so that keys and values
// of all heads are the one latent vector that KV holds, and what attention gives is moved out of it
// by the head's value matrix. For decoding, and for what follows KV that is there already.
//
// Expanded: each head's keys and values are made of the latent vectors, and attention is that of
// many heads. A pair of query and key then costs less than half, once the key matrices, stored for
// the absorbed form, have been turned: for prompts from their beginning.
#include <algorithm>
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

ops::Matrix Rows(ops::Matrix m, int32_t first, int32_t rows) {
  m.data = m.row(first);
  m.rows = rows;
  return m;
}

std::vector<int32_t> AllRows(const ops::Matrix& m) {
  std::vector<int32_t> all(static_cast<size_t>(m.rows));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Whether a prompt of `rows` tokens costs less in the expanded form: its rows / 2 pairs a row, each
// cheaper by the difference of the two forms' dimensions, against turning a key matrix, which moves
// each element for about as long as 32 products take. (Making keys and values of latent vectors
// costs as much as the absorbed form's steps into the latent space and out of it.)
bool ExpandedPays(const LatentConfig& l, int64_t rows) {
  constexpr int64_t kTurn = 32;
  const int64_t saved = int64_t{2} * l.kv_rank - l.nope_dim - l.value_dim;
  return rows >= ops::kKvBlockTokens && rows * rows / 2 * saved > kTurn * l.nope_dim * l.kv_rank;
}

// to = from with rows and columns exchanged; on the host. `to` lies without gaps between rows.
void Turn(const ops::Matrix& from, const ops::Matrix& to) {
  constexpr int32_t kTile = 16;
  for (int32_t r0 = 0; r0 < from.rows; r0 += kTile) {
    for (int32_t c = 0; c < from.cols; ++c) {
      for (int32_t r = r0; r < std::min(r0 + kTile, from.rows); ++r) {
        to.data[int64_t{c} * from.rows + r] = from.row(r)[c];
      }
    }
  }
}

}  // namespace

ops::KvGeometry Decoder::HeadGeometry(ops::KvDType dtype) const {
  const LatentConfig& l = config_.latent;
  return {.layers = 1,
          .kv_heads = 1,
          .key_dim = l.nope_dim + l.rope_dim,
          .value_dim = l.value_dim,
          .dtype = dtype};
}

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
  ops::Matrix input = b_.normed;
  if (t.q_a != kAbsent) {
    const ops::MatMulTarget low{w_.Matrix(t.q_a), {}, b_.q_low};
    RETURN_IF_ERROR(be_.MatMul(b_.normed, {&low, 1}));
    RETURN_IF_ERROR(Adapt(b_.normed, t.q_a, b_.q_low));
    RETURN_IF_ERROR(be_.RmsNorm(b_.q_low, w_.Vector(t.q_a_norm), c_.norm_epsilon, b_.q_low));
    input = b_.q_low;
  }
  const ops::MatMulTarget heads{w_.Matrix(t.q), {}, b_.q_heads};
  RETURN_IF_ERROR(be_.MatMul(input, {&heads, 1}));
  return Adapt(input, t.q, b_.q_heads);
}

absl::Status Decoder::Pass::LatentKeys(int32_t layer) {
  const LayerTensors& t = d_.layers_[static_cast<size_t>(layer)];
  const LatentConfig& l = c_.latent;
  const ops::MatMulTarget low{w_.Matrix(t.kv_a), {}, b_.kv_low};
  RETURN_IF_ERROR(be_.MatMul(b_.normed, {&low, 1}));
  RETURN_IF_ERROR(Adapt(b_.normed, t.kv_a, b_.kv_low));
  RETURN_IF_ERROR(be_.GatherRows(Columns(b_.kv_low, l.kv_rank, l.rope_dim), AllRows(b_.k),
                                 Columns(b_.k, 0, l.rope_dim)));
  RETURN_IF_ERROR(
      be_.RmsNorm(Columns(b_.kv_low, 0, l.kv_rank), w_.Vector(t.kv_a_norm), c_.norm_epsilon, b_.v));
  return be_.Rope(b_.k, 1, c_.key_dim, in_.batch, RopeOf(layer));
}

std::vector<Decoder::Pass::LatentRun> Decoder::Pass::LatentRuns() const {
  // The forms round differently, so which one a token gets must not depend on how it comes.
  const bool may_expand = be_.host_addressable() && be_.by_rows();
  std::vector<LatentRun> runs;
  for (ops::SequenceRows s : in_.batch.sequences) {
    const bool expanded = may_expand && s.start == 0 && ExpandedPays(c_.latent, s.rows);
    if (runs.empty() || runs.back().expanded != expanded ||
        runs.back().first + runs.back().batch.rows != s.first_row) {
      runs.push_back({.first = s.first_row, .expanded = expanded});
    }
    LatentRun& run = runs.back();
    s.first_row -= run.first;
    run.batch.rows += s.rows;
    run.sequences.push_back(s);
  }
  for (LatentRun& run : runs) {
    run.batch.positions = in_.batch.positions.subspan(static_cast<size_t>(run.first),
                                                      static_cast<size_t>(run.batch.rows));
    run.batch.sequences = run.sequences;
  }
  return runs;
}

absl::Status Decoder::Pass::Absorbed(int32_t layer, const LatentRun& run) {
  const LayerTensors& t = d_.layers_[static_cast<size_t>(layer)];
  const LatentConfig& l = c_.latent;
  const ops::Matrix heads = Rows(b_.q_heads, run.first, run.batch.rows);
  const ops::Matrix q = Rows(b_.q, run.first, run.batch.rows);
  const ops::Matrix latent = Rows(b_.attention, run.first, run.batch.rows);
  const ops::Matrix values = Rows(b_.values, run.first, run.batch.rows);
  const std::vector<int32_t> all = AllRows(q);
  const ops::WeightStack key = w_.Stack(t.k_b), value = w_.Stack(t.v_b);
  for (int32_t h = 0; h < c_.heads; ++h) {
    const int64_t from = int64_t{h} * (l.nope_dim + l.rope_dim);
    const int64_t to = int64_t{h} * c_.key_dim;
    RETURN_IF_ERROR(be_.GatherRows(Columns(heads, from + l.nope_dim, l.rope_dim), all,
                                   Columns(q, to, l.rope_dim)));
    const ops::MatMulTarget absorbed{key.at(h), {}, Columns(q, to + l.rope_dim, l.kv_rank)};
    RETURN_IF_ERROR(be_.MatMul(Columns(heads, from, l.nope_dim), {&absorbed, 1}));
  }
  RETURN_IF_ERROR(be_.Rope(q, c_.heads, c_.key_dim, run.batch, RopeOf(layer)));
  RETURN_IF_ERROR(be_.Attention(q, AttentionParamsOf(layer), in_.kv, run.batch, latent));
  for (int32_t h = 0; h < c_.heads; ++h) {
    const ops::MatMulTarget expanded{
        value.at(h), {}, Columns(values, int64_t{h} * l.value_dim, l.value_dim)};
    RETURN_IF_ERROR(be_.MatMul(Columns(latent, int64_t{h} * l.kv_rank, l.kv_rank), {&expanded, 1}));
  }
  return absl::OkStatus();
}

absl::Status Decoder::Pass::Expanded(int32_t layer, const LatentRun& run) {
  const LayerTensors& t = d_.layers_[static_cast<size_t>(layer)];
  const LatentConfig& l = c_.latent;
  const int32_t rows = run.batch.rows, head_dim = l.nope_dim + l.rope_dim;
  const ops::Matrix heads = Rows(b_.q_heads, run.first, rows);
  const ops::Matrix values = Rows(b_.values, run.first, rows);
  const ops::Matrix latent = Rows(b_.v, run.first, rows);
  const ops::Matrix keys = Rows(b_.keys, 0, rows), own = Rows(b_.head_values, 0, rows);
  // Rotated keys are the same for all heads.
  RETURN_IF_ERROR(be_.GatherRows(Columns(Rows(b_.k, run.first, rows), 0, l.rope_dim), AllRows(keys),
                                 Columns(keys, l.nope_dim, l.rope_dim)));
  const ops::KvGeometry geometry =
      d_.HeadGeometry(in_.kv.dtype == ops::KvDType::kF32 ? ops::KvDType::kF32 : ops::KvDType::kF16);
  ops::BatchRows batch = run.batch;
  std::vector<ops::SequenceRows> sequences = run.sequences;
  std::vector<std::byte*> blocks;
  for (const ops::SequenceRows& s : sequences) {
    for (int32_t row = 0; row < s.rows; row += ops::kKvBlockTokens) {
      const auto block = static_cast<int64_t>(blocks.size());
      blocks.push_back(reinterpret_cast<std::byte*>(b_.head_blocks.row(block)));
    }
  }
  for (size_t i = 0, first = 0; i < sequences.size(); ++i) {
    const auto count = static_cast<size_t>(sequences[i].rows + ops::kKvBlockTokens - 1) /
                       static_cast<size_t>(ops::kKvBlockTokens);
    sequences[i].blocks = std::span(blocks).subspan(first, count);
    first += count;
  }
  batch.sequences = sequences;
  ops::AttentionParams params = AttentionParamsOf(layer);
  params.layer = 0;
  params.heads = 1;
  const std::vector<int32_t> stored = AllRows(b_.key_stored);
  const ops::WeightStack key = w_.Stack(t.k_b), value = w_.Stack(t.v_b);
  for (int32_t h = 0; h < c_.heads; ++h) {
    const ops::Matrix query = Columns(heads, int64_t{h} * head_dim, head_dim);
    RETURN_IF_ERROR(
        be_.Rope(Columns(query, l.nope_dim, l.rope_dim), 1, l.rope_dim, batch, RopeOf(layer)));
    RETURN_IF_ERROR(be_.EmbedRows(key.at(h), stored, 1.0f, b_.key_stored));
    Turn(b_.key_stored, b_.key_turned);
    const ops::Weight turned{.rows = l.nope_dim,
                             .cols = l.kv_rank,
                             .data = reinterpret_cast<const std::byte*>(b_.key_turned.data)};
    const ops::MatMulTarget targets[] = {{turned, {}, Columns(keys, 0, l.nope_dim)},
                                         {value.at(h), {}, own}};
    RETURN_IF_ERROR(be_.MatMul(latent, targets));
    RETURN_IF_ERROR(be_.StoreKv(keys, own, 0, geometry, batch));
    RETURN_IF_ERROR(be_.Attention(query, params, geometry, batch,
                                  Columns(values, int64_t{h} * l.value_dim, l.value_dim)));
  }
  return absl::OkStatus();
}

absl::Status Decoder::Pass::LatentAttention(int32_t layer) {
  const LayerTensors& t = d_.layers_[static_cast<size_t>(layer)];
  RETURN_IF_ERROR(LatentQueries(layer));
  RETURN_IF_ERROR(LatentKeys(layer));
  RETURN_IF_ERROR(be_.StoreKv(b_.k, b_.v, layer, in_.kv, in_.batch));
  for (const LatentRun& run : LatentRuns()) {
    RETURN_IF_ERROR(run.expanded ? Expanded(layer, run) : Absorbed(layer, run));
  }
  const ops::MatMulTarget out{w_.Matrix(t.attn_out), {}, b_.block_out};
  RETURN_IF_ERROR(be_.MatMul(b_.values, {&out, 1}));
  return Adapt(b_.values, t.attn_out, b_.block_out);
}

}  // namespace terrace::model
