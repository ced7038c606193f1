// DeepSeek-V2 and V3 (2024), and models that share their graph: latent attention, some dense layers
// first, then experts with a shared one, chosen within the best groups.
#include <cmath>

#include <fmt/format.h>

#include "base/status.h"
#include "model/registry.h"

namespace terrace::model {
namespace {

absl::Status ParseLatent(const Metadata& metadata, Config* config) {
  if (!metadata.Has("deepseek2.attention.key_length_mla")) {
    return absl::UnimplementedError(
        "deepseek2 files without separate key and value matrices (attention.key_length_mla) are "
        "not read by this build");
  }
  auto read = [&](const char* key, int64_t low) {
    return metadata.GetInt(fmt::format("deepseek2.attention.{}", key), low, 1 << 16);
  };
  ASSIGN_OR_RETURN(int64_t kv_rank, read("kv_lora_rank", 1));
  ASSIGN_OR_RETURN(int64_t query_rank,
                   metadata.GetInt("deepseek2.attention.q_lora_rank", 0, 1 << 16, 0));
  ASSIGN_OR_RETURN(int64_t head_dim, read("key_length_mla", 1));
  ASSIGN_OR_RETURN(int64_t value_dim, read("value_length_mla", 1));
  ASSIGN_OR_RETURN(int64_t rope_dim, metadata.GetInt("deepseek2.rope.dimension_count", 2, 1 << 16));
  if (head_dim <= rope_dim || config->key_dim != kv_rank + rope_dim ||
      config->value_dim != kv_rank || config->kv_heads != 1) {
    return absl::InvalidArgumentError(fmt::format(
        "latent attention of rank {} with {} rotated of {} dimensions does not fit {} "
        "KV heads of {} and {}",
        kv_rank, rope_dim, head_dim, config->kv_heads, config->key_dim, config->value_dim));
  }
  LatentConfig& latent = config->latent;
  latent.kv_rank = static_cast<int32_t>(kv_rank);
  latent.query_rank = static_cast<int32_t>(query_rank);
  latent.rope_dim = static_cast<int32_t>(rope_dim);
  latent.nope_dim = static_cast<int32_t>(head_dim - rope_dim);
  latent.value_dim = static_cast<int32_t>(value_dim);
  config->attention_scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  return absl::OkStatus();
}

// YaRN's magnitude goes into the scores alone here: the rotated part must not get it twice.
absl::Status ParseMagnitude(const Metadata& metadata, Config* config) {
  const ops::RopeParams& rope = config->layers.front().rope;
  if (rope.yarn_ext_factor == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(double multiplier,
                   metadata.GetDouble("deepseek2.rope.scaling.yarn_log_multiplier", 0.0));
  const double log_factor = -std::log(static_cast<double>(rope.position_scale));
  const double magnitude = 1.0 + multiplier * log_factor;
  config->attention_scale *= static_cast<float>(magnitude * magnitude);
  for (LayerConfig& layer : config->layers) {
    layer.rope.yarn_attn_factor *= static_cast<float>(1.0 / (1.0 + 0.1 * log_factor));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Config> ParseDeepseek2(const Metadata& metadata) {
  ASSIGN_OR_RETURN(Config config, ParseCommon(metadata, ops::RopeKind::kAdjacent));
  RETURN_IF_ERROR(ParseLatent(metadata, &config));
  RETURN_IF_ERROR(ParseMagnitude(metadata, &config));
  RETURN_IF_ERROR(ParseExperts(metadata, &config));
  config.experts.selection_bias = true;
  ASSIGN_OR_RETURN(int64_t dense, metadata.GetInt("deepseek2.leading_dense_block_count", 0,
                                                  config.layer_count(), 0));
  for (int64_t i = 0; i < dense; ++i) config.layers[static_cast<size_t>(i)].experts = false;
  return config;
}

}  // namespace terrace::model
