// Gemma 2 (Gemma team 2024): every other layer local from the first on, norms before and after each
// block, capped scores and logits. GGUF stores norm weights with the 1 already added.
#include <cmath>

#include "base/status.h"
#include "model/registry.h"

namespace terrace::model {

absl::StatusOr<Config> ParseGemma2(const Metadata& metadata) {
  ASSIGN_OR_RETURN(Config config, ParseCommon(metadata, ops::RopeKind::kHalves));
  config.post_norms = true;
  config.activation = ops::Activation::kGeluTanh;
  config.embedding_scale = std::sqrt(static_cast<float>(config.width));
  if (config.layer_count() == 46 && !metadata.Has("gemma2.attention.scale")) {
    // The 27B model scales queries by its width a head, not by the head's dimension.
    config.attention_scale =
        1.0f / std::sqrt(static_cast<float>(config.width) / static_cast<float>(config.heads));
  }
  ASSIGN_OR_RETURN(double scores, metadata.GetDouble("gemma2.attn_logit_softcapping", 50.0));
  ASSIGN_OR_RETURN(double logits, metadata.GetDouble("gemma2.final_logit_softcapping", 30.0));
  config.attention_softcap = static_cast<float>(scores);
  config.logit_softcap = static_cast<float>(logits);
  ASSIGN_OR_RETURN(int64_t window,
                   metadata.GetInt("gemma2.attention.sliding_window", 0, 1 << 30, 4096));
  for (size_t i = 0; i < config.layers.size(); i += 2) {
    config.layers[i].window = static_cast<int32_t>(window);
  }
  return config;
}

}  // namespace terrace::model
