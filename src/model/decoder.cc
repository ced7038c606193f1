#include "model/decoder.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/status.h"
#include "base/units.h"

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
    return absl::InvalidArgumentError(
        fmt::format("{} needs tensor '{}', which the model does not hold", config_.architecture,
                    name));
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
  config_.vocab_size = static_cast<int32_t>((*shape)[0]);
  const std::vector<int64_t> expected = {config_.vocab_size, config_.width};
  const std::string& embedding_name = embedding_shape != nullptr ? embedding : output;
  const std::string& output_name = output_shape != nullptr ? output : embedding;
  // A tensor that serves both ends lies in the segment of its own name; that segment is entered at
  // both ends.
  Stage embedding_stage = embedding_shape != nullptr ? Stage::kEmbed : Stage::kHead;
  Stage output_stage = output_shape != nullptr ? Stage::kHead : Stage::kEmbed;
  ASSIGN_OR_RETURN(embedding_, Need(catalog, embedding_name, expected, embedding_stage, 0, true));
  ASSIGN_OR_RETURN(head_, Need(catalog, output_name, expected, output_stage, 0, true));
  ASSIGN_OR_RETURN(output_norm_, Need(catalog, "output_norm.weight", {config_.width},
                                      Stage::kHead, 0, true));
  ASSIGN_OR_RETURN(head_bias_, Need(catalog, "output.bias", {config_.vocab_size}, Stage::kHead, 0,
                                    false));
  if (config_.uses_rope_factors) {
    ASSIGN_OR_RETURN(rope_factors_,
                     Need(catalog, "rope_freqs.weight", {config_.layers.front().rope.dim / 2},
                          Stage::kEmbed, 0, false));
  }
  if (catalog.Shape("rope_factors_long.weight") != nullptr) {
    return absl::UnimplementedError("long rope factors are not read by this build");
  }
  return absl::OkStatus();
}

absl::Status Decoder::BindLayer(const TensorCatalog& catalog, int32_t layer) {
  const Config& c = config_;
  const int64_t width = c.width;
  const int64_t q_width = int64_t{c.heads} * c.key_dim;
  const int64_t k_width = int64_t{c.kv_heads} * c.key_dim;
  const int64_t v_width = int64_t{c.kv_heads} * c.value_dim;
  LayerTensors t;
  auto need = [&](const char* name, std::vector<int64_t> shape, Stage stage, bool required,
                  int32_t* index) -> absl::Status {
    ASSIGN_OR_RETURN(*index, Need(catalog, fmt::format("blk.{}.{}", layer, name),
                                  std::move(shape), stage, layer, required));
    return absl::OkStatus();
  };
  const Stage kA = Stage::kAttention, kF = Stage::kFfn;
  RETURN_IF_ERROR(need("attn_norm.weight", {width}, kA, true, &t.attn_norm));
  if (c.fused_qkv) {
    RETURN_IF_ERROR(
        need("attn_qkv.weight", {q_width + k_width + v_width, width}, kA, true, &t.qkv));
  } else {
    RETURN_IF_ERROR(need("attn_q.weight", {q_width, width}, kA, true, &t.q));
    RETURN_IF_ERROR(need("attn_k.weight", {k_width, width}, kA, true, &t.k));
    RETURN_IF_ERROR(need("attn_v.weight", {v_width, width}, kA, true, &t.v));
    RETURN_IF_ERROR(need("attn_q.bias", {q_width}, kA, c.qkv_bias, &t.q_bias));
    RETURN_IF_ERROR(need("attn_k.bias", {k_width}, kA, c.qkv_bias, &t.k_bias));
    RETURN_IF_ERROR(need("attn_v.bias", {v_width}, kA, c.qkv_bias, &t.v_bias));
  }
  if (c.qk_norm) {
    RETURN_IF_ERROR(need("attn_q_norm.weight", {c.key_dim}, kA, true, &t.q_norm));
    RETURN_IF_ERROR(need("attn_k_norm.weight", {c.key_dim}, kA, true, &t.k_norm));
  }
  RETURN_IF_ERROR(need("attn_output.weight", {width, int64_t{c.heads} * c.value_dim}, kA, true,
                       &t.attn_out));
  RETURN_IF_ERROR(need("attn_output.bias", {width}, kA, false, &t.attn_out_bias));
  RETURN_IF_ERROR(need("ffn_norm.weight", {width}, kF, true, &t.ffn_norm));
  if (c.post_norms) {
    RETURN_IF_ERROR(need("post_attention_norm.weight", {width}, kA, true, &t.attn_post_norm));
    RETURN_IF_ERROR(need("post_ffw_norm.weight", {width}, kF, true, &t.ffn_post_norm));
  }
  if (c.fused_gate_up) {
    RETURN_IF_ERROR(need("ffn_up.weight", {int64_t{2} * c.ffn_width, width}, kF, true, &t.up));
  } else {
    RETURN_IF_ERROR(need("ffn_gate.weight", {c.ffn_width, width}, kF, true, &t.gate));
    RETURN_IF_ERROR(need("ffn_up.weight", {c.ffn_width, width}, kF, true, &t.up));
  }
  RETURN_IF_ERROR(need("ffn_down.weight", {width, c.ffn_width}, kF, true, &t.down));
  layers_.push_back(t);
  return absl::OkStatus();
}

absl::Status Decoder::Bind(const TensorCatalog& catalog) {
  RETURN_IF_ERROR(BindEnds(catalog));
  for (int32_t i = 0; i < config_.layer_count(); ++i) RETURN_IF_ERROR(BindLayer(catalog, i));
  return absl::OkStatus();
}

uint64_t Decoder::Cut(int32_t rows, int32_t logit_rows, std::byte* base, Buffers* buffers) const {
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
  // Columns [first, first + cols) of `m`.
  auto slice = [](ops::Matrix m, int64_t first, int64_t cols) {
    m.data = m.data == nullptr ? nullptr : m.data + first;
    m.cols = static_cast<int32_t>(cols);
    return m;
  };
  const int64_t q_width = int64_t{c.heads} * c.key_dim;
  const int64_t k_width = int64_t{c.kv_heads} * c.key_dim;
  const int64_t v_width = int64_t{c.kv_heads} * c.value_dim;
  buffers->x = cut(rows, c.width);
  buffers->normed = cut(rows, c.width);
  buffers->block_out = cut(rows, c.width);
  // Attention and FFN use the same bytes: neither needs the other's.
  const uint64_t shared = offset;
  ops::Matrix qkv = cut(rows, q_width + k_width + v_width);
  buffers->q = slice(qkv, 0, q_width);
  buffers->k = slice(qkv, q_width, k_width);
  buffers->v = slice(qkv, q_width + k_width, v_width);
  buffers->attention = cut(rows, int64_t{c.heads} * c.value_dim);
  const uint64_t attention_end = offset;
  offset = shared;
  ops::Matrix gate_up = cut(rows, int64_t{2} * c.ffn_width);
  buffers->gate = slice(gate_up, 0, c.ffn_width);
  buffers->up = slice(gate_up, c.ffn_width, c.ffn_width);
  const uint64_t ffn_end = offset;
  offset = shared;
  buffers->last = cut(logit_rows, c.width);
  buffers->logits = cut(logit_rows, c.vocab_size);
  return std::max({attention_end, ffn_end, offset});
}

uint64_t Decoder::WorkspaceBytes(int32_t rows, int32_t logit_rows) const {
  Buffers buffers;
  return Cut(rows, logit_rows, nullptr, &buffers);
}

// One forward pass: the state that its stages share.
class Decoder::Pass {
 public:
  Pass(const Decoder& decoder, const ForwardInput& input, ops::Backend& backend,
       WeightProvider& weights, const Buffers& buffers)
      : d_(decoder), c_(decoder.config_), in_(input), be_(backend), w_(weights), b_(buffers) {}

  absl::Status Embed() {
    RETURN_IF_ERROR(be_.EmbedRows(w_.Matrix(d_.embedding_), in_.tokens, c_.embedding_scale, b_.x));
    if (d_.rope_factors_ != kAbsent) rope_factors_ = w_.Vector(d_.rope_factors_);
    return absl::OkStatus();
  }

  absl::Status Attention(int32_t layer) {
    const LayerTensors& t = d_.layers_[static_cast<size_t>(layer)];
    const LayerConfig& layer_config = c_.layers[static_cast<size_t>(layer)];
    RETURN_IF_ERROR(be_.RmsNorm(b_.x, w_.Vector(t.attn_norm), c_.norm_epsilon, b_.normed));
    if (t.qkv != kAbsent) {
      ops::Matrix all = b_.q;
      all.cols = b_.q.cols + b_.k.cols + b_.v.cols;
      ops::MatMulTarget fused{w_.Matrix(t.qkv), {}, all};
      RETURN_IF_ERROR(be_.MatMul(b_.normed, {&fused, 1}));
    } else {
      const ops::MatMulTarget separate[] = {{w_.Matrix(t.q), Optional(t.q_bias), b_.q},
                                            {w_.Matrix(t.k), Optional(t.k_bias), b_.k},
                                            {w_.Matrix(t.v), Optional(t.v_bias), b_.v}};
      RETURN_IF_ERROR(be_.MatMul(b_.normed, separate));
    }
    if (t.q_norm != kAbsent) {
      RETURN_IF_ERROR(be_.RmsNormHeads(b_.q, c_.heads, w_.Vector(t.q_norm), c_.norm_epsilon));
      RETURN_IF_ERROR(be_.RmsNormHeads(b_.k, c_.kv_heads, w_.Vector(t.k_norm), c_.norm_epsilon));
    }
    ops::RopeParams rope = layer_config.rope;
    if (layer_config.window == 0) rope.frequency_factors = rope_factors_;
    RETURN_IF_ERROR(be_.Rope(b_.q, c_.heads, c_.key_dim, in_.batch, rope));
    RETURN_IF_ERROR(be_.Rope(b_.k, c_.kv_heads, c_.key_dim, in_.batch, rope));
    RETURN_IF_ERROR(be_.StoreKv(b_.k, b_.v, layer, in_.kv, in_.batch));
    ops::AttentionParams params;
    params.layer = layer;
    params.heads = c_.heads;
    params.scale = c_.attention_scale;
    params.window = layer_config.window;
    params.softcap = c_.attention_softcap;
    RETURN_IF_ERROR(be_.Attention(b_.q, params, in_.kv, in_.batch, b_.attention));
    ops::MatMulTarget out{w_.Matrix(t.attn_out), Optional(t.attn_out_bias), b_.block_out};
    RETURN_IF_ERROR(be_.MatMul(b_.attention, {&out, 1}));
    return AddBlock(t.attn_post_norm);
  }

  absl::Status Ffn(int32_t layer) {
    const LayerTensors& t = d_.layers_[static_cast<size_t>(layer)];
    RETURN_IF_ERROR(be_.RmsNorm(b_.x, w_.Vector(t.ffn_norm), c_.norm_epsilon, b_.normed));
    if (t.gate == kAbsent) {
      ops::Matrix all = b_.gate;
      all.cols = 2 * c_.ffn_width;
      ops::MatMulTarget fused{w_.Matrix(t.up), {}, all};
      RETURN_IF_ERROR(be_.MatMul(b_.normed, {&fused, 1}));
    } else {
      const ops::MatMulTarget separate[] = {{w_.Matrix(t.gate), {}, b_.gate},
                                            {w_.Matrix(t.up), {}, b_.up}};
      RETURN_IF_ERROR(be_.MatMul(b_.normed, separate));
    }
    RETURN_IF_ERROR(be_.Glu(c_.activation, b_.gate, b_.up, b_.gate));
    ops::MatMulTarget down{w_.Matrix(t.down), {}, b_.block_out};
    RETURN_IF_ERROR(be_.MatMul(b_.gate, {&down, 1}));
    return AddBlock(t.ffn_post_norm);
  }

  absl::Status Head() {
    RETURN_IF_ERROR(be_.GatherRows(b_.x, in_.logit_rows, b_.last));
    RETURN_IF_ERROR(be_.RmsNorm(b_.last, w_.Vector(d_.output_norm_), c_.norm_epsilon, b_.last));
    ops::MatMulTarget head{w_.Matrix(d_.head_), Optional(d_.head_bias_), b_.logits};
    RETURN_IF_ERROR(be_.MatMul(b_.last, {&head, 1}));
    if (c_.logit_scale != 1.0f) RETURN_IF_ERROR(be_.Scale(b_.logits, c_.logit_scale));
    if (c_.logit_softcap > 0) RETURN_IF_ERROR(be_.Softcap(b_.logits, c_.logit_softcap));
    return absl::OkStatus();
  }

 private:
  ops::Vector Optional(int32_t tensor) const {
    return tensor == kAbsent ? ops::Vector{} : w_.Vector(tensor);
  }
  // Adds block_out, normed if there is a norm for it, to the residual stream.
  absl::Status AddBlock(int32_t post_norm) {
    if (post_norm != kAbsent) {
      RETURN_IF_ERROR(
          be_.RmsNorm(b_.block_out, w_.Vector(post_norm), c_.norm_epsilon, b_.block_out));
    }
    if (c_.residual_scale != 1.0f) RETURN_IF_ERROR(be_.Scale(b_.block_out, c_.residual_scale));
    return be_.Add(b_.x, b_.block_out);
  }

  const Decoder& d_;
  const Config& c_;
  const ForwardInput& in_;
  ops::Backend& be_;
  WeightProvider& w_;
  const Buffers& b_;
  ops::Vector rope_factors_;
};

namespace {

// Enters a stage for the current scope. A failed Enter has nothing to leave.
class StageScope {
 public:
  static absl::StatusOr<StageScope> Enter(WeightProvider& weights, Stage stage, int32_t layer) {
    RETURN_IF_ERROR(weights.Enter(stage, layer));
    return StageScope(&weights, stage, layer);
  }
  StageScope(StageScope&& other) noexcept
      : weights_(std::exchange(other.weights_, nullptr)), stage_(other.stage_),
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
  const auto rows = static_cast<int32_t>(input.tokens.size());
  const auto logit_rows = static_cast<int32_t>(input.logit_rows.size());
  Buffers buffers;
  if (Cut(rows, logit_rows, workspace.data(), &buffers) > workspace.size()) {
    return absl::InternalError(fmt::format("a workspace of {} bytes is too small for {} rows",
                                           workspace.size(), rows));
  }
  Pass pass(*this, input, backend, weights, buffers);
  // The embedding's segment stays for the whole pass: it holds the rope factors, and a tied head.
  ASSIGN_OR_RETURN(StageScope embed, StageScope::Enter(weights, Stage::kEmbed, 0));
  std::vector<StageScope> head;
  const bool head_first = tensors_[static_cast<size_t>(embedding_)].stage == Stage::kHead;
  if (head_first) {
    ASSIGN_OR_RETURN(StageScope scope, StageScope::Enter(weights, Stage::kHead, 0));
    head.push_back(std::move(scope));
  }
  RETURN_IF_ERROR(pass.Embed());
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
  if (logit_rows > 0) {
    if (!head_first) {
      ASSIGN_OR_RETURN(StageScope scope, StageScope::Enter(weights, Stage::kHead, 0));
      head.push_back(std::move(scope));
    }
    RETURN_IF_ERROR(WithContext(pass.Head(), "head"));
  }
  RETURN_IF_ERROR(backend.Synchronize());
  return buffers.logits;
}

}  // namespace terrace::model
