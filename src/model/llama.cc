// LLaMA 1 to 3 (Touvron et al. 2023) and the models that share its graph (Mistral, SmolLM2, ...).
#include "base/status.h"
#include "model/registry.h"

namespace terrace::model {

absl::StatusOr<Config> ParseLlama(const Metadata& metadata) {
  ASSIGN_OR_RETURN(Config config, ParseCommon(metadata, ops::RopeKind::kAdjacent));
  RETURN_IF_ERROR(ParseExperts(metadata, &config));  // Mixtral (Jiang et al. 2024)
  config.uses_rope_factors = true;
  return config;
}

}  // namespace terrace::model
