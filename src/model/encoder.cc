#include "model/encoder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/status.h"
#include "base/units.h"

namespace terrace::model {

using Stage = WeightProvider::Stage;

absl::StatusOr<std::unique_ptr<Encoder>> Encoder::Create(Config config,
                                                         const TensorCatalog& catalog) {
  std::unique_ptr<Encoder> encoder(new Encoder(std::move(config)));
  RETURN_IF_ERROR(encoder->Bind(catalog));
  return encoder;
}

absl::StatusOr<int32_t> Encoder::Need(const TensorCatalog& catalog, const std::string& name,
                                      std::vector<int64_t> shape, Stage stage, int32_t layer) {
  const std::vector<int64_t>* stored = catalog.Shape(name);
  if (stored == nullptr) {
    return absl::InvalidArgumentError(fmt::format(
        "{} needs tensor '{}', which the model does not hold", config_.architecture, name));
  }
  // A leading -1 takes any number of rows.
  if (shape[0] < 0 && stored->size() == shape.size()) shape[0] = (*stored)[0];
  if (*stored != shape || shape[0] < 1 || shape[0] > (int64_t{1} << 24)) {
    return absl::InvalidArgumentError(fmt::format("tensor '{}' has shape [{}], but {} needs [{}]",
                                                  name, fmt::join(*stored, ", "),
                                                  config_.architecture, fmt::join(shape, ", ")));
  }
  tensors_.push_back({name, stage, layer});
  return static_cast<int32_t>(tensors_.size()) - 1;
}

absl::Status Encoder::NeedLinear(const TensorCatalog& catalog, const std::string& name,
                                 std::vector<int64_t> shape, Stage stage, int32_t layer,
                                 Linear* linear) {
  const int64_t out = shape[0];
  ASSIGN_OR_RETURN(linear->weight, Need(catalog, name + ".weight", std::move(shape), stage, layer));
  ASSIGN_OR_RETURN(linear->bias, Need(catalog, name + ".bias", {out}, stage, layer));
  return absl::OkStatus();
}

absl::Status Encoder::Bind(const TensorCatalog& catalog) {
  const int64_t width = config_.width, ffn = config_.ffn_width;
  ASSIGN_OR_RETURN(words_, Need(catalog, "token_embd.weight", {-1, width}, Stage::kEmbed, 0));
  ASSIGN_OR_RETURN(places_, Need(catalog, "position_embd.weight", {-1, width}, Stage::kEmbed, 0));
  ASSIGN_OR_RETURN(types_, Need(catalog, "token_types.weight", {-1, width}, Stage::kEmbed, 0));
  RETURN_IF_ERROR(NeedLinear(catalog, "token_embd_norm", {width}, Stage::kEmbed, 0, &norm_));
  config_.vocab_size = static_cast<int32_t>((*catalog.Shape("token_embd.weight"))[0]);
  config_.trained_context = std::min(
      config_.trained_context, static_cast<int32_t>((*catalog.Shape("position_embd.weight"))[0]));
  for (int32_t i = 0; i < config_.layer_count(); ++i) {
    Layer layer;
    auto need = [&](const char* name, std::vector<int64_t> shape, Stage stage, Linear* linear) {
      return NeedLinear(catalog, fmt::format("blk.{}.{}", i, name), std::move(shape), stage, i,
                        linear);
    };
    RETURN_IF_ERROR(need("attn_q", {width, width}, Stage::kAttention, &layer.q));
    RETURN_IF_ERROR(need("attn_k", {width, width}, Stage::kAttention, &layer.k));
    RETURN_IF_ERROR(need("attn_v", {width, width}, Stage::kAttention, &layer.v));
    RETURN_IF_ERROR(need("attn_output", {width, width}, Stage::kAttention, &layer.out));
    RETURN_IF_ERROR(need("attn_output_norm", {width}, Stage::kAttention, &layer.out_norm));
    RETURN_IF_ERROR(need("ffn_up", {ffn, width}, Stage::kFfn, &layer.up));
    RETURN_IF_ERROR(need("ffn_down", {width, ffn}, Stage::kFfn, &layer.down));
    RETURN_IF_ERROR(need("layer_output_norm", {width}, Stage::kFfn, &layer.end_norm));
    layers_.push_back(layer);
  }
  return absl::OkStatus();
}

uint64_t Encoder::Cut(int32_t rows, int32_t pooled, std::byte* base, Buffers* b) const {
  uint64_t offset = 0;
  auto cut = [&](int32_t count, int32_t cols) {
    ops::Matrix m;
    m.rows = count;
    m.cols = cols;
    m.stride = static_cast<int64_t>(AlignUp(static_cast<uint64_t>(cols), 16));
    m.data = base == nullptr ? nullptr : reinterpret_cast<float*>(base + offset);
    offset += static_cast<uint64_t>(count) * static_cast<uint64_t>(m.stride) * sizeof(float);
    return m;
  };
  b->x = cut(rows, config_.width);
  b->other = cut(rows, config_.width);
  b->q = cut(rows, config_.width);
  b->k = cut(rows, config_.width);
  b->v = cut(rows, config_.width);
  b->attention = cut(rows, config_.width);
  b->inner = cut(rows, config_.ffn_width);
  b->pooled = cut(pooled, config_.width);
  return offset;
}

uint64_t Encoder::WorkspaceBytes(int32_t rows, int32_t logit_rows, int32_t) const {
  Buffers buffers;
  return Cut(rows, logit_rows, nullptr, &buffers);
}

absl::Status Encoder::Embed(const ForwardInput& input, ops::Backend& backend,
                            WeightProvider& weights, const Buffers& b) const {
  RETURN_IF_ERROR(backend.EmbedRows(weights.Matrix(words_), input.tokens, 1.0f, b.x));
  RETURN_IF_ERROR(backend.EmbedRows(weights.Matrix(places_), input.batch.positions, 1.0f, b.other));
  RETURN_IF_ERROR(backend.Add(b.x, b.other));
  const std::vector<int32_t> first(input.tokens.size(), 0);  // all tokens are of the first type
  RETURN_IF_ERROR(backend.EmbedRows(weights.Matrix(types_), first, 1.0f, b.other));
  RETURN_IF_ERROR(backend.Add(b.x, b.other));
  return backend.LayerNorm(b.x, weights.Vector(norm_.weight), weights.Vector(norm_.bias),
                           config_.norm_epsilon);
}

absl::Status Encoder::Attend(const Layer& layer, const ForwardInput& input, ops::Backend& backend,
                             WeightProvider& weights, const Buffers& b) const {
  auto target = [&](const Linear& linear, ops::Matrix out) {
    return ops::MatMulTarget{weights.Matrix(linear.weight), weights.Vector(linear.bias), out};
  };
  const ops::MatMulTarget qkv[] = {target(layer.q, b.q), target(layer.k, b.k),
                                   target(layer.v, b.v)};
  RETURN_IF_ERROR(backend.MatMul(b.x, qkv));
  RETURN_IF_ERROR(backend.AttendAll(b.q, b.k, b.v, config_.heads, config_.attention_scale,
                                    input.batch, b.attention));
  const ops::MatMulTarget out = target(layer.out, b.other);
  RETURN_IF_ERROR(backend.MatMul(b.attention, {&out, 1}));
  RETURN_IF_ERROR(backend.Add(b.x, b.other));
  return backend.LayerNorm(b.x, weights.Vector(layer.out_norm.weight),
                           weights.Vector(layer.out_norm.bias), config_.norm_epsilon);
}

absl::Status Encoder::Ffn(const Layer& layer, ops::Backend& backend, WeightProvider& weights,
                          const Buffers& b) const {
  const ops::MatMulTarget up{weights.Matrix(layer.up.weight), weights.Vector(layer.up.bias),
                             b.inner};
  RETURN_IF_ERROR(backend.MatMul(b.x, {&up, 1}));
  RETURN_IF_ERROR(backend.GeluErf(b.inner));
  const ops::MatMulTarget down{weights.Matrix(layer.down.weight), weights.Vector(layer.down.bias),
                               b.other};
  RETURN_IF_ERROR(backend.MatMul(b.inner, {&down, 1}));
  RETURN_IF_ERROR(backend.Add(b.x, b.other));
  return backend.LayerNorm(b.x, weights.Vector(layer.end_norm.weight),
                           weights.Vector(layer.end_norm.bias), config_.norm_epsilon);
}

absl::StatusOr<ops::Matrix> Encoder::Forward(const ForwardInput& input, ops::Backend& backend,
                                             WeightProvider& weights,
                                             std::span<std::byte> workspace) const {
  const auto rows = static_cast<int32_t>(input.tokens.size());
  const auto pooled = static_cast<int32_t>(input.logit_rows.size());
  for (const ops::SequenceRows& sequence : input.batch.sequences) {
    if (sequence.start != 0) {
      return absl::InvalidArgumentError("an encoder needs each text as a whole");
    }
  }
  Buffers b;
  if (Cut(rows, pooled, workspace.data(), &b) > workspace.size()) {
    return absl::InternalError(
        fmt::format("a workspace of {} bytes is too small for {} rows", workspace.size(), rows));
  }
  // Runs `work` with the stage's weights at hand.
  auto with = [&](Stage stage, int32_t layer, const auto& work) -> absl::Status {
    RETURN_IF_ERROR(weights.Enter(stage, layer));
    absl::Status status = work();
    if (status.ok()) status = backend.Synchronize();
    weights.Leave(stage, layer);
    return status;
  };
  RETURN_IF_ERROR(with(Stage::kEmbed, 0, [&] { return Embed(input, backend, weights, b); }));
  for (int32_t i = 0; i < config_.layer_count(); ++i) {
    const Layer& layer = layers_[static_cast<size_t>(i)];
    RETURN_IF_ERROR(
        with(Stage::kAttention, i, [&] { return Attend(layer, input, backend, weights, b); }));
    RETURN_IF_ERROR(with(Stage::kFfn, i, [&] { return Ffn(layer, backend, weights, b); }));
  }
  if (pooled == 0) return b.x;
  RETURN_IF_ERROR(backend.Pool(b.x, input.batch, config_.pooling == Pooling::kMean,
                               config_.normalize_pooled, b.pooled));
  return b.pooled;
}

}  // namespace terrace::model
