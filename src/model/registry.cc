#include "model/registry.h"

#include <cmath>
#include <string>

#include <fmt/format.h>

#include "base/status.h"

namespace terrace::model {
namespace {

constexpr ArchitectureEntry kEntries[] = {
    {"llama", ParseLlama},    {"qwen2", ParseQwen2},         {"qwen3", ParseQwen3},
    {"gemma3", ParseGemma3},  {"phi3", ParsePhi3},           {"qwen3moe", ParseQwen3Moe},
    {"gpt-oss", ParseGptOss}, {"deepseek2", ParseDeepseek2}, {"qwen2moe", ParseQwen2Moe},
    {"gemma2", ParseGemma2},  {"granite", ParseGranite},     {"olmo2", ParseOlmo2},
    {"glm4", ParseGlm4},      {"bert", ParseBert},
};

constexpr int64_t kMaxWidth = 1 << 20;
constexpr int64_t kMaxLayers = 4096;

// Reads "<arch>.rope.scaling.*" into `rope`.
absl::Status ParseRopeScaling(const Metadata& metadata, const std::string& prefix,
                              ops::RopeParams* rope) {
  ASSIGN_OR_RETURN(std::string type, metadata.GetString(prefix + "rope.scaling.type", ""));
  ASSIGN_OR_RETURN(double factor, metadata.GetDouble(prefix + "rope.scaling.factor", 0.0));
  ASSIGN_OR_RETURN(double attention_factor,
                   metadata.GetDouble(prefix + "rope.scaling.attn_factor", 1.0));
  if (!(attention_factor > 0) || !std::isfinite(attention_factor)) {
    return absl::InvalidArgumentError(
        fmt::format("rope scaling needs a magnitude above 0, not {}", attention_factor));
  }
  if (type.empty() || type == "longrope") {
    rope->yarn_attn_factor = static_cast<float>(attention_factor);
    // Older files give the linear factor alone.
    ASSIGN_OR_RETURN(factor, metadata.GetDouble(prefix + "rope.scale_linear", factor));
    if (factor > 0) rope->position_scale = static_cast<float>(1.0 / factor);
    return absl::OkStatus();
  }
  if (type == "none") return absl::OkStatus();
  if (type != "linear" && type != "yarn") {
    return absl::UnimplementedError(fmt::format(
        "rope scaling type '{}' is not known (none, linear, yarn and longrope are)", type));
  }
  if (!(factor > 0) || !std::isfinite(factor)) {
    return absl::InvalidArgumentError(
        fmt::format("rope scaling '{}' needs a factor above 0, not {}", type, factor));
  }
  rope->position_scale = static_cast<float>(1.0 / factor);
  if (type == "linear") return absl::OkStatus();
  ASSIGN_OR_RETURN(int64_t original,
                   metadata.GetInt(prefix + "rope.scaling.original_context_length", 1, 1 << 30));
  rope->yarn_ext_factor = 1.0f;
  rope->yarn_attn_factor = static_cast<float>(attention_factor);
  rope->yarn_original_context = static_cast<int32_t>(original);
  ASSIGN_OR_RETURN(double fast, metadata.GetDouble(prefix + "rope.scaling.yarn_beta_fast", 32.0));
  ASSIGN_OR_RETURN(double slow, metadata.GetDouble(prefix + "rope.scaling.yarn_beta_slow", 1.0));
  if (!(fast > 0) || !(slow > 0)) {
    return absl::InvalidArgumentError("YaRN needs betas above 0");
  }
  rope->yarn_beta_fast = static_cast<float>(fast);
  rope->yarn_beta_slow = static_cast<float>(slow);
  ASSIGN_OR_RETURN(rope->yarn_round_range,
                   metadata.GetBool(prefix + "rope.scaling.yarn_round_range", true));
  return absl::OkStatus();
}

// Models with rope factors for short and for long contexts (LongRoPE, Ding et al. 2024) say for how
// many tokens the short ones are, and scale by no other kind.
absl::Status ParseLongRope(const Metadata& metadata, const std::string& prefix, Config* config) {
  ASSIGN_OR_RETURN(const std::string type, metadata.GetString(prefix + "rope.scaling.type", ""));
  const std::string key = prefix + "rope.scaling.original_context_length";
  const bool phi3 = config->architecture == "phi3" && type.empty() && metadata.Has(key);
  if (type != "longrope" && !phi3) return absl::OkStatus();
  ASSIGN_OR_RETURN(const int64_t original, metadata.GetInt(key, 1, 1 << 30));
  config->original_context = static_cast<int32_t>(original);
  return absl::OkStatus();
}

}  // namespace

std::span<const ArchitectureEntry> Architectures() { return kEntries; }

absl::StatusOr<Config> ParseCommon(const Metadata& metadata, ops::RopeKind rope_kind) {
  Config config;
  ASSIGN_OR_RETURN(config.architecture, metadata.GetString("general.architecture"));
  const std::string prefix = config.architecture + ".";
  auto read = [&](const char* key, int64_t low, int64_t high) {
    return metadata.GetInt(prefix + key, low, high);
  };
  ASSIGN_OR_RETURN(int64_t width, read("embedding_length", 1, kMaxWidth));
  ASSIGN_OR_RETURN(int64_t layers, read("block_count", 1, kMaxLayers));
  ASSIGN_OR_RETURN(int64_t ffn, read("feed_forward_length", 1, kMaxWidth));
  ASSIGN_OR_RETURN(int64_t heads, read("attention.head_count", 1, 4096));
  ASSIGN_OR_RETURN(int64_t kv_heads,
                   metadata.GetInt(prefix + "attention.head_count_kv", 1, 4096, heads));
  ASSIGN_OR_RETURN(int64_t context, read("context_length", 1, 1 << 30));
  const int64_t default_dim = width / heads;
  ASSIGN_OR_RETURN(int64_t key_dim,
                   metadata.GetInt(prefix + "attention.key_length", 1, 4096, default_dim));
  ASSIGN_OR_RETURN(int64_t value_dim,
                   metadata.GetInt(prefix + "attention.value_length", 1, 4096, key_dim));
  ASSIGN_OR_RETURN(int64_t rope_dim,
                   metadata.GetInt(prefix + "rope.dimension_count", 0, 4096, key_dim));
  ASSIGN_OR_RETURN(double base, metadata.GetDouble(prefix + "rope.freq_base", 10000.0));
  ASSIGN_OR_RETURN(double epsilon, metadata.GetDouble(prefix + "attention.layer_norm_rms_epsilon"));
  if (heads % kv_heads != 0) {
    return absl::InvalidArgumentError(
        fmt::format("{} query heads do not divide among {} KV heads", heads, kv_heads));
  }
  if (rope_dim > key_dim || rope_dim % 2 != 0) {
    return absl::InvalidArgumentError(
        fmt::format("rope dimension {} does not fit heads of {}", rope_dim, key_dim));
  }
  if (!(base > 0) || !(epsilon >= 0)) {
    return absl::InvalidArgumentError("rope base and norm epsilon must be positive");
  }
  config.width = static_cast<int32_t>(width);
  config.ffn_width = static_cast<int32_t>(ffn);
  config.heads = static_cast<int32_t>(heads);
  config.kv_heads = static_cast<int32_t>(kv_heads);
  config.key_dim = static_cast<int32_t>(key_dim);
  config.value_dim = static_cast<int32_t>(value_dim);
  config.trained_context = static_cast<int32_t>(context);
  config.norm_epsilon = static_cast<float>(epsilon);
  config.attention_scale = 1.0f / std::sqrt(static_cast<float>(key_dim));
  ASSIGN_OR_RETURN(double scale, metadata.GetDouble(prefix + "attention.scale", 0.0));
  if (scale > 0) config.attention_scale = static_cast<float>(scale);
  LayerConfig layer;
  layer.rope.kind = rope_kind;
  layer.rope.dim = static_cast<int32_t>(rope_dim);
  layer.rope.base = static_cast<float>(base);
  RETURN_IF_ERROR(ParseRopeScaling(metadata, prefix, &layer.rope));
  RETURN_IF_ERROR(ParseLongRope(metadata, prefix, &config));
  config.layers.assign(static_cast<size_t>(layers), layer);
  return config;
}

}  // namespace terrace::model
