// LLaMA 1 to 3 (Touvron et al. 2023) and the models that share its graph (Mistral, SmolLM2, ...).
#include "base/status.h"
#include "model/registry.h"

namespace terrace::model {

absl::StatusOr<Config> ParseLlama(const Metadata& metadata) {
  ASSIGN_OR_RETURN(Config config, ParseCommon(metadata, ops::RopeKind::kAdjacent));
  RETURN_IF_ERROR(ParseExperts(metadata, &config));  // Mixtral (Jiang et al. 2024)
  config.uses_rope_factors = true;
  // Mistral 7B v0.1 (Jiang et al. 2023) looks back a window in every layer.
  ASSIGN_OR_RETURN(int64_t window,
                   metadata.GetInt("llama.attention.sliding_window", 0, 1 << 30, 0));
  for (LayerConfig& layer : config.layers) layer.window = static_cast<int32_t>(window);
  return config;
}

}  // namespace terrace::model
