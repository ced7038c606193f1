#include "engine/engine_model.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/status.h"
#include "kv/sequence.h"

namespace terrace::engine {
namespace {

using Stage = model::WeightProvider::Stage;

// embed, head, then attention and FFN of each layer.
size_t StageIndex(Stage stage, int32_t layer) {
  switch (stage) {
    case Stage::kEmbed:
      return 0;
    case Stage::kHead:
      return 1;
    case Stage::kAttention:
      return 2 + 2 * static_cast<size_t>(layer);
    case Stage::kFfn:
      return 3 + 2 * static_cast<size_t>(layer);
  }
  return 0;
}

class WeightsCatalog final : public model::TensorCatalog {
 public:
  explicit WeightsCatalog(const weights::ModelWeights& weights) : weights_(weights) {}
  const std::vector<int64_t>* Shape(std::string_view name) const override {
    const weights::TensorPlace* place = weights_.Find(name);
    return place == nullptr ? nullptr : &place->shape;
  }

 private:
  const weights::ModelWeights& weights_;
};

}  // namespace

std::string_view KvDTypeName(ops::KvDType dtype) {
  switch (dtype) {
    case ops::KvDType::kF16:
      return "f16";
    case ops::KvDType::kI8:
      return "i8";
    case ops::KvDType::kF32:
      return "f32";
  }
  return "";
}

absl::StatusOr<std::shared_ptr<EngineModel>> EngineModel::Create(
    EngineModelOptions options, std::unique_ptr<weights::ModelWeights> weights) {
  std::shared_ptr<EngineModel> out(new EngineModel());
  out->name_ = options.name;
  WeightsCatalog catalog(*weights);
  ASSIGN_OR_RETURN(out->architecture_,
                   model::Architecture::Create(weights->metadata(), catalog, options.max_context));
  const model::Config& config = out->architecture_->config();
  if (options.max_context > config.trained_context) {
    return absl::InvalidArgumentError(
        fmt::format("max_context {} is above the {} tokens that the model was trained for",
                    options.max_context, config.trained_context));
  }
  out->max_context_ = options.max_context > 0 ? options.max_context : config.trained_context;
  static_assert(kv::kBlockTokens == ops::kKvBlockTokens);
  const SpeculationOptions& speculation = options.speculation;
  if (speculation.kind == SpeculationOptions::Kind::kDraft &&
      (speculation.draft == nullptr || speculation.draft->vocab_size() != config.vocab_size)) {
    return absl::InvalidArgumentError(
        fmt::format("the draft model of '{}' must have its vocabulary of {} tokens", options.name,
                    config.vocab_size));
  }
  out->speculation_ = speculation;
  out->seat_ = std::move(options.seat);
  out->kv_geometry_.dtype = options.kv_dtype;
  out->kv_geometry_.layers = config.encoder ? 0 : config.layer_count();  // encoders keep none
  out->kv_geometry_.kv_heads = config.kv_heads;
  out->kv_geometry_.key_dim = config.key_dim;
  out->kv_geometry_.value_dim = config.value_dim;
  for (const model::LayerConfig& layer : config.layers) {
    if (layer.window == 0) {
      out->kv_window_ = 0;
      break;
    }
    out->kv_window_ = std::max(out->kv_window_, layer.window);
  }
  out->stage_segments_.resize(2 + 2 * static_cast<size_t>(config.layer_count()));
  out->first_expert_.resize(static_cast<size_t>(config.layer_count()));
  for (const model::TensorNeed& need : out->architecture_->tensors()) {
    const weights::TensorPlace* place = weights->Find(need.name);
    Binding binding;
    binding.segment = place->segment;
    binding.offset = place->offset;
    binding.weight.dtype = place->dtype;
    binding.weight.layout = place->layout;
    const std::vector<int64_t>& shape = place->shape;
    const size_t rank = shape.size();
    binding.weight.rows = static_cast<int32_t>(shape[rank > 1 ? rank - 2 : 0]);
    binding.weight.cols = rank > 1 ? static_cast<int32_t>(shape[rank - 1]) : 1;
    binding.count = rank > 2 ? static_cast<int32_t>(shape[0]) : 1;
    binding.stride = place->bytes / static_cast<uint64_t>(std::max(1, binding.count));
    binding.spread = place->spread;
    // Matrices may hold more than fits; only vectors are asked for it.
    const int64_t elements = int64_t{binding.weight.rows} * binding.weight.cols;
    binding.elements =
        static_cast<int32_t>(std::min<int64_t>(elements, std::numeric_limits<int32_t>::max()));
    out->bindings_.push_back(binding);
    if (place->spread) {
      out->first_expert_[static_cast<size_t>(need.layer)] = place->segment;
      continue;
    }
    std::vector<uint32_t>& segments = out->stage_segments_[StageIndex(need.stage, need.layer)];
    if (std::find(segments.begin(), segments.end(), place->segment) == segments.end()) {
      segments.push_back(place->segment);
    }
  }
  out->weights_ = std::move(weights);
  return out;
}

std::string EngineModel::kv_form() const {
  std::string form(KvDTypeName(kv_geometry_.dtype));
  // Keys are rotated by other angles.
  if (architecture_->config().long_rope) form += "+long-rope";
  return form;
}

std::span<const uint32_t> EngineModel::StageSegments(Stage stage, int32_t layer) const {
  return stage_segments_[StageIndex(stage, layer)];
}

uint64_t EngineModel::KvBytes(int32_t tokens) const {
  const int64_t blocks = (int64_t{tokens} + kv::kBlockTokens - 1) / kv::kBlockTokens;
  return static_cast<uint64_t>(blocks) * kv_geometry_.block_bytes();
}

}  // namespace terrace::engine
