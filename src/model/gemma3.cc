// Gemma 3 text models (Gemma team 2025): five local layers to one global, norms before and after
// each block, GeGLU, scaled embeddings. GGUF stores norm weights with the 1 already added.
#include <cmath>
#include <string>

#include <fmt/format.h>

#include "base/status.h"
#include "model/registry.h"

namespace terrace::model {

absl::StatusOr<Config> ParseGemma3(const Metadata& metadata) {
  ASSIGN_OR_RETURN(Config config, ParseCommon(metadata, ops::RopeKind::kHalves));
  config.qk_norm = true;
  config.post_norms = true;
  config.activation = ops::Activation::kGeluTanh;
  config.embedding_scale = std::sqrt(static_cast<float>(config.width));
  if (config.layer_count() == 62 && !metadata.Has("gemma3.attention.scale")) {
    // The 27B model scales queries by its width a head, not by the head's dimension.
    config.attention_scale =
        1.0f / std::sqrt(static_cast<float>(config.width) / static_cast<float>(config.heads));
  }
  ASSIGN_OR_RETURN(double softcap, metadata.GetDouble("gemma3.final_logit_softcapping", 0.0));
  config.logit_softcap = static_cast<float>(softcap);
  ASSIGN_OR_RETURN(int64_t window,
                   metadata.GetInt("gemma3.attention.sliding_window", 0, 1 << 30, 0));
  ASSIGN_OR_RETURN(double local_base, metadata.GetDouble("gemma3.rope.freq_base_swa", 10000.0));
  ASSIGN_OR_RETURN(int64_t pattern,
                   metadata.GetInt("gemma3.attention.sliding_window_pattern", 1, 1 << 20, 6));
  if (!(local_base > 0))
    return absl::InvalidArgumentError("gemma3.rope.freq_base_swa is not above 0");
  for (int32_t i = 0; i < config.layer_count(); ++i) {
    if (window == 0 || i % pattern == pattern - 1) continue;
    LayerConfig& layer = config.layers[static_cast<size_t>(i)];
    layer.window = static_cast<int32_t>(window);
    layer.rope.base = static_cast<float>(local_base);
    layer.rope.position_scale = 1.0f;  // scaling is for the global layers only
  }
  return config;
}

}  // namespace terrace::model
