#include "model/decoder.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/status.h"
#include "base/units.h"
#include "model/decoder_pass.h"

namespace terrace::model {

using Stage = WeightProvider::Stage;

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Create(Config config,
                                                         const TensorCatalog& catalog) {
  std::unique_ptr<Decoder> decoder(new Decoder(std::move(config)));
  RETURN_IF_ERROR(decoder->Bind(catalog));
  return decoder;
}

absl::StatusOr<int32_t> Decoder::Need(const TensorCatalog& catalog, const std::string& name,
                                      std::vector<int64_t> shape, Stage stage, int32_t layer,
                                      bool required) {
  const std::vector<int64_t>* stored = catalog.Shape(name);
  if (stored == nullptr) {
    if (!required) return kAbsent;
    return absl::InvalidArgumentError(fmt::format(
        "{} needs tensor '{}', which the model does not hold", config_.architecture, name));
  }
  if (*stored != shape) {
    return absl::InvalidArgumentError(fmt::format("tensor '{}' has shape [{}], but {} needs [{}]",
                                                  name, fmt::join(*stored, ", "),
                                                  config_.architecture, fmt::join(shape, ", ")));
  }
  tensors_.push_back({name, stage, layer});
  return static_cast<int32_t>(tensors_.size()) - 1;
}

absl::Status Decoder::BindEnds(const TensorCatalog& catalog) {
  const std::string embedding = "token_embd.weight";
  const std::string output = "output.weight";
  const std::vector<int64_t>* embedding_shape = catalog.Shape(embedding);
  const std::vector<int64_t>* output_shape = catalog.Shape(output);
  const std::vector<int64_t>* shape = embedding_shape != nullptr ? embedding_shape : output_shape;
  if (shape == nullptr) {
    return absl::InvalidArgumentError(
        fmt::format("the model holds neither '{}' nor '{}'", embedding, output));
  }
  if (shape->size() != 2 || (*shape)[0] < 1 || (*shape)[0] > (int64_t{1} << 24)) {
    return absl::InvalidArgumentError(fmt::format("the embedding has shape [{}], not [vocab, {}]",
                                                  fmt::join(*shape, ", "), config_.width));
  }
  if (!config_.share.tensor) {
    config_.vocab_size = config_.vocab_rows = static_cast<int32_t>((*shape)[0]);
  }
  const std::vector<int64_t> expected = {config_.vocab_rows, config_.width};
  const std::string& embedding_name = embedding_shape != nullptr ? embedding : output;
  const std::string& output_name = output_shape != nullptr ? output : embedding;
  // A tensor that serves both ends lies in the segment of its own name; that segment is entered at
  // both ends.
  Stage embedding_stage = embedding_shape != nullptr ? Stage::kEmbed : Stage::kHead;
  Stage output_stage = output_shape != nullptr ? Stage::kHead : Stage::kEmbed;
  ASSIGN_OR_RETURN(embedding_, Need(catalog, embedding_name, expected, embedding_stage, 0, true));
  ASSIGN_OR_RETURN(head_, Need(catalog, output_name, expected, output_stage, 0, true));
  ASSIGN_OR_RETURN(output_norm_,
                   Need(catalog, "output_norm.weight", {config_.width}, Stage::kHead, 0, true));
  ASSIGN_OR_RETURN(head_bias_,
                   Need(catalog, "output.bias", {config_.vocab_rows}, Stage::kHead, 0, false));
  const std::vector<int64_t> factors = {config_.layers.front().rope.dim / 2};
  if (config_.original_context > 0) {
    const char* name = config_.long_rope ? "rope_factors_long.weight" : "rope_factors_short.weight";
    // Files of models that have no longer context name it, too, without factors.
    ASSIGN_OR_RETURN(rope_factors_,
                     Need(catalog, name, factors, Stage::kAttention, 0, config_.long_rope));
  } else if (config_.uses_rope_factors) {
    ASSIGN_OR_RETURN(rope_factors_,
                     Need(catalog, "rope_freqs.weight", factors, Stage::kAttention, 0, false));
  }
  return absl::OkStatus();
}

absl::Status Decoder::NeedInLayer(const TensorCatalog& catalog, int32_t layer, const char* name,
                                  std::vector<int64_t> shape, Stage stage, bool required,
                                  int32_t* index) {
  ASSIGN_OR_RETURN(*index, Need(catalog, fmt::format("blk.{}.{}", layer, name), std::move(shape),
                                stage, layer, required));
  return absl::OkStatus();
}

absl::Status Decoder::BindAttention(const TensorCatalog& catalog, int32_t layer, LayerTensors* t) {
  const Config& c = config_;
  const int64_t width = c.width;
  const int64_t q_width = int64_t{c.heads} * c.key_dim;
  const int64_t k_width = int64_t{c.kv_heads} * c.key_dim;
  const int64_t v_width = int64_t{c.kv_heads} * c.value_dim;
  auto need = [&](const char* name, std::vector<int64_t> shape, bool required, int32_t* index) {
    return NeedInLayer(catalog, layer, name, std::move(shape), Stage::kAttention, required, index);
  };
  if (c.fused_qkv) {
    RETURN_IF_ERROR(need("attn_qkv.weight", {q_width + k_width + v_width, width}, true, &t->qkv));
  } else {
    RETURN_IF_ERROR(need("attn_q.weight", {q_width, width}, true, &t->q));
    RETURN_IF_ERROR(need("attn_k.weight", {k_width, width}, true, &t->k));
    RETURN_IF_ERROR(need("attn_v.weight", {v_width, width}, true, &t->v));
    RETURN_IF_ERROR(need("attn_q.bias", {q_width}, c.qkv_bias, &t->q_bias));
    RETURN_IF_ERROR(need("attn_k.bias", {k_width}, c.qkv_bias, &t->k_bias));
    RETURN_IF_ERROR(need("attn_v.bias", {v_width}, c.qkv_bias, &t->v_bias));
  }
  if (c.qk_norm || c.qk_norm_whole) {
    const int64_t q_norm = c.qk_norm ? c.key_dim : q_width,
                  k_norm = c.qk_norm ? c.key_dim : k_width;
    RETURN_IF_ERROR(need("attn_q_norm.weight", {q_norm}, true, &t->q_norm));
    RETURN_IF_ERROR(need("attn_k_norm.weight", {k_norm}, true, &t->k_norm));
  }
  if (c.sinks) RETURN_IF_ERROR(need("attn_sinks.weight", {c.heads}, true, &t->sinks));
  RETURN_IF_ERROR(
      need("attn_output.weight", {width, int64_t{c.heads} * c.value_dim}, true, &t->attn_out));
  if (!c.adds_biases) return absl::OkStatus();
  return need("attn_output.bias", {width}, false, &t->attn_out_bias);
}

absl::Status Decoder::BindDense(const TensorCatalog& catalog, int32_t layer, LayerTensors* t) {
  const Config& c = config_;
  auto need = [&](const char* name, std::vector<int64_t> shape, int32_t* index) {
    return NeedInLayer(catalog, layer, name, std::move(shape), Stage::kFfn, true, index);
  };
  if (c.fused_gate_up) {
    RETURN_IF_ERROR(need("ffn_up.weight", {int64_t{2} * c.ffn_width, c.width}, &t->up));
  } else {
    RETURN_IF_ERROR(need("ffn_gate.weight", {c.ffn_width, c.width}, &t->gate));
    RETURN_IF_ERROR(need("ffn_up.weight", {c.ffn_width, c.width}, &t->up));
  }
  return need("ffn_down.weight", {c.width, c.ffn_width}, &t->down);
}

absl::Status Decoder::BindLayer(const TensorCatalog& catalog, int32_t layer) {
  const Config& c = config_;
  LayerTensors t;
  auto norm = [&](const char* name, Stage stage, int32_t* index) {
    return NeedInLayer(catalog, layer, name, {c.width}, stage, true, index);
  };
  if (c.pre_norms) {
    RETURN_IF_ERROR(norm("attn_norm.weight", Stage::kAttention, &t.attn_norm));
    RETURN_IF_ERROR(norm(c.ffn_norm_name.c_str(), Stage::kFfn, &t.ffn_norm));
  }
  RETURN_IF_ERROR(c.latent.kv_rank > 0 ? BindLatent(catalog, layer, &t)
                                       : BindAttention(catalog, layer, &t));
  if (c.post_norms) {
    RETURN_IF_ERROR(norm("post_attention_norm.weight", Stage::kAttention, &t.attn_post_norm));
    RETURN_IF_ERROR(norm("post_ffw_norm.weight", Stage::kFfn, &t.ffn_post_norm));
  }
  RETURN_IF_ERROR(c.layers[static_cast<size_t>(layer)].experts ? BindExperts(catalog, layer, &t)
                                                               : BindDense(catalog, layer, &t));
  layers_.push_back(t);
  return absl::OkStatus();
}

absl::Status Decoder::Bind(const TensorCatalog& catalog) {
  RETURN_IF_ERROR(BindEnds(catalog));
  for (int32_t i = 0; i < config_.layer_count(); ++i) RETURN_IF_ERROR(BindLayer(catalog, i));
  return absl::OkStatus();
}

namespace {

// Columns [first, first + cols) of `m`.
ops::Matrix Columns(ops::Matrix m, int64_t first, int64_t cols) {
  m.data = m.data == nullptr ? nullptr : m.data + first;
  m.cols = static_cast<int32_t>(cols);
  return m;
}

}  // namespace

void Decoder::CutExperts(int32_t rows, const Cutter& cut, Buffers* buffers) const {
  const Config& c = config_;
  const int32_t most = std::max(rows, c.experts.router.used);
  buffers->scores = cut(rows, c.experts.count);
  buffers->experts.gathered = cut(most, c.width);
  buffers->experts.gate = cut(most, c.experts.ffn_width);
  buffers->experts.up = cut(most, c.experts.ffn_width);
  buffers->experts.down = cut(most, c.width);
  if (c.experts.shared_width > 0) {
    buffers->shared_gate = cut(rows, c.experts.shared_width);
    buffers->shared_up = cut(rows, c.experts.shared_width);
  }
}

void Decoder::CutLatent(int32_t rows, const Cutter& cut, Buffers* buffers) const {
  const Config& c = config_;
  const LatentConfig& l = c.latent;
  if (l.query_rank > 0) buffers->q_low = cut(rows, l.query_rank);
  buffers->q_heads = cut(rows, int64_t{c.heads} * (l.nope_dim + l.rope_dim));
  buffers->kv_low = cut(rows, l.kv_rank + l.rope_dim);
  buffers->values = cut(rows, int64_t{c.heads} * l.value_dim);
  buffers->q = cut(rows, int64_t{c.heads} * c.key_dim);
  buffers->k = cut(rows, int64_t{c.kv_heads} * c.key_dim);
  buffers->v = Columns(buffers->k, l.rope_dim, l.kv_rank);
  buffers->key_stored = cut(l.kv_rank, l.nope_dim);
  buffers->key_turned = cut(l.nope_dim, l.kv_rank);
  buffers->keys = cut(rows, l.rope_dim + l.nope_dim);
  buffers->head_values = cut(rows, l.value_dim);
  // Of sequences that have a block's rows or more, each leaves less than a block empty.
  const size_t block_bytes = HeadGeometry(ops::KvDType::kF32).block_bytes();
  buffers->head_blocks =
      cut(2 * rows / ops::kKvBlockTokens, static_cast<int64_t>(block_bytes / sizeof(float)));
}

uint64_t Decoder::Cut(int32_t rows, int32_t logit_rows, int32_t adapter_rank, std::byte* base,
                      Buffers* buffers) const {
  const Config& c = config_;
  uint64_t offset = 0;
  // Rows start at multiples of 64 bytes so that wide loads do not straddle cache lines.
  auto cut = [&](int32_t matrix_rows, int64_t cols) {
    ops::Matrix m;
    m.rows = matrix_rows;
    m.cols = static_cast<int32_t>(cols);
    m.stride = static_cast<int64_t>(AlignUp(static_cast<uint64_t>(cols), 16));
    m.data = base == nullptr ? nullptr : reinterpret_cast<float*>(base + offset);
    offset += static_cast<uint64_t>(matrix_rows) * static_cast<uint64_t>(m.stride) * sizeof(float);
    return m;
  };
  const int64_t q_width = int64_t{c.heads} * c.key_dim;
  const int64_t k_width = int64_t{c.kv_heads} * c.key_dim;
  const int64_t v_width = int64_t{c.kv_heads} * c.value_dim;
  buffers->x = cut(rows, c.width);
  buffers->normed = cut(rows, c.width);
  buffers->block_out = cut(rows, c.width);
  if (adapter_rank > 0) {
    buffers->low = cut(rows, adapter_rank);
    const LatentConfig& l = c.latent;
    const int64_t latent =
        std::max(int64_t{l.query_rank}, int64_t{c.heads} * (l.nope_dim + l.rope_dim));
    buffers->delta = cut(rows, std::max({q_width + k_width + v_width, latent,
                                         int64_t{2} * c.ffn_width, int64_t{c.width}}));
  }
  // Attention and FFN use the same bytes: neither needs the other's.
  const uint64_t shared = offset;
  if (c.latent.kv_rank > 0) {
    CutLatent(rows, cut, buffers);
  } else {
    ops::Matrix qkv = cut(rows, q_width + k_width + v_width);
    buffers->q = Columns(qkv, 0, q_width);
    buffers->k = Columns(qkv, q_width, k_width);
    buffers->v = Columns(qkv, q_width + k_width, v_width);
  }
  buffers->attention = cut(rows, int64_t{c.heads} * c.value_dim);
  const uint64_t attention_end = offset;
  offset = shared;
  ops::Matrix gate_up = cut(rows, int64_t{2} * c.ffn_width);
  buffers->gate = Columns(gate_up, 0, c.ffn_width);
  buffers->up = Columns(gate_up, c.ffn_width, c.ffn_width);
  uint64_t ffn_end = offset;
  if (c.experts.count > 0) {
    offset = shared;
    CutExperts(rows, cut, buffers);
    ffn_end = std::max(ffn_end, offset);
  }
  offset = shared;
  buffers->last = cut(logit_rows, c.width);
  buffers->logits = cut(logit_rows, c.vocab_size);
  buffers->logit_part = c.share.tensor ? cut(logit_rows, c.vocab_rows) : buffers->logits;
  return std::max({attention_end, ffn_end, offset});
}

uint64_t Decoder::WorkspaceBytes(int32_t rows, int32_t logit_rows, int32_t adapter_rank) const {
  Buffers buffers;
  return Cut(rows, logit_rows, adapter_rank, nullptr, &buffers);
}

namespace {

// Enters a stage for the current scope. A failed Enter has nothing to leave.
class StageScope {
 public:
  static absl::StatusOr<StageScope> Enter(WeightProvider& weights, Stage stage, int32_t layer) {
    RETURN_IF_ERROR(weights.Enter(stage, layer));
    return StageScope(&weights, stage, layer);
  }
  StageScope(StageScope&& other) noexcept
      : weights_(std::exchange(other.weights_, nullptr)),
        stage_(other.stage_),
        layer_(other.layer_) {}
  StageScope& operator=(StageScope&&) = delete;
  ~StageScope() {
    if (weights_ != nullptr) weights_->Leave(stage_, layer_);
  }

 private:
  StageScope(WeightProvider* weights, Stage stage, int32_t layer)
      : weights_(weights), stage_(stage), layer_(layer) {}
  WeightProvider* weights_;
  Stage stage_;
  int32_t layer_;
};

}  // namespace

absl::StatusOr<ops::Matrix> Decoder::Forward(const ForwardInput& input, ops::Backend& backend,
                                             WeightProvider& weights,
                                             std::span<std::byte> workspace) const {
  RETURN_IF_ERROR(CheckGroup(input));
  const auto rows = static_cast<int32_t>(input.tokens.size());
  const auto logit_rows = static_cast<int32_t>(input.logit_rows.size());
  Buffers buffers;
  if (Cut(rows, logit_rows, input.adapter_rank, workspace.data(), &buffers) > workspace.size()) {
    return absl::InternalError(
        fmt::format("a workspace of {} bytes is too small for {} rows", workspace.size(), rows));
  }
  Pass pass(*this, input, backend, weights, buffers);
  const Stage embedding_stage = tensors_[static_cast<size_t>(embedding_)].stage;
  ASSIGN_OR_RETURN(const bool fetched, pass.EmbedFetched());
  if (!fetched) {
    ASSIGN_OR_RETURN(StageScope scope, StageScope::Enter(weights, embedding_stage, 0));
    RETURN_IF_ERROR(pass.Embed());
  }
  for (int32_t layer = 0; layer < config_.layer_count(); ++layer) {
    {
      ASSIGN_OR_RETURN(StageScope scope, StageScope::Enter(weights, Stage::kAttention, layer));
      RETURN_IF_ERROR(WithContext(pass.Attention(layer), fmt::format("layer {} attention", layer)));
    }
    {
      ASSIGN_OR_RETURN(StageScope scope, StageScope::Enter(weights, Stage::kFfn, layer));
      RETURN_IF_ERROR(WithContext(pass.Ffn(layer), fmt::format("layer {} FFN", layer)));
    }
  }
  std::vector<StageScope> ends;
  for (const Stage stage : {Stage::kEmbed, Stage::kHead}) {
    // Whose rows were fetched is entered in any case: there it turns out whether they were its own.
    const bool has_head =
        stage == Stage::kHead || tensors_[static_cast<size_t>(head_)].stage == stage;
    if (!(fetched && embedding_stage == stage) && !(logit_rows > 0 && has_head)) continue;
    ASSIGN_OR_RETURN(StageScope scope, StageScope::Enter(weights, stage, 0));
    ends.push_back(std::move(scope));
  }
  if (logit_rows > 0) RETURN_IF_ERROR(WithContext(pass.Head(), "head"));
  RETURN_IF_ERROR(backend.Synchronize());
  if (input.states != nullptr) *input.states = buffers.last;
  return buffers.logits;
}

}  // namespace terrace::model
