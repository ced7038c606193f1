// BERT (Devlin et al. 2018) and the embedding models that share its graph (MiniLM, BGE, E5 in their
// English versions).
#include <cmath>

#include <fmt/format.h>

#include "base/status.h"
#include "model/registry.h"

namespace terrace::model {

absl::StatusOr<Config> ParseBert(const Metadata& metadata) {
  Config config;
  config.architecture = "bert";
  config.encoder = true;
  auto read = [&](const char* key, int64_t high) {
    return metadata.GetInt(fmt::format("bert.{}", key), 1, high);
  };
  ASSIGN_OR_RETURN(int64_t width, read("embedding_length", 1 << 20));
  ASSIGN_OR_RETURN(int64_t layers, read("block_count", 4096));
  ASSIGN_OR_RETURN(int64_t ffn, read("feed_forward_length", 1 << 20));
  ASSIGN_OR_RETURN(int64_t heads, read("attention.head_count", 4096));
  ASSIGN_OR_RETURN(int64_t context, read("context_length", 1 << 20));
  ASSIGN_OR_RETURN(double epsilon, metadata.GetDouble("bert.attention.layer_norm_epsilon", 1e-12));
  // 1: the mean of all tokens, 2: the first token.
  ASSIGN_OR_RETURN(int64_t pooling, metadata.GetInt("bert.pooling_type", 1, 2, 1));
  ASSIGN_OR_RETURN(config.normalize_pooled, metadata.GetBool("bert.normalize_embeddings", true));
  if (width % heads != 0 || !(epsilon >= 0)) {
    return absl::InvalidArgumentError(
        fmt::format("bert: {} dimensions do not divide among {} heads", width, heads));
  }
  config.width = static_cast<int32_t>(width);
  config.ffn_width = static_cast<int32_t>(ffn);
  config.heads = config.kv_heads = static_cast<int32_t>(heads);
  config.key_dim = config.value_dim = static_cast<int32_t>(width / heads);
  config.trained_context = static_cast<int32_t>(context);
  config.norm_epsilon = static_cast<float>(epsilon);
  config.attention_scale = 1.0f / std::sqrt(static_cast<float>(config.key_dim));
  config.pooling = pooling == 1 ? Pooling::kMean : Pooling::kFirst;
  config.layers.resize(static_cast<size_t>(layers));
  return config;
}

}  // namespace terrace::model
