// LLaMA 1 to 3 (Touvron et al. 2023) and the models that share its graph (Mistral, SmolLM2, ...).
#include "base/status.h"
#include "model/registry.h"

namespace terrace::model {

absl::StatusOr<Config> ParseLlama(const Metadata& metadata) {
  ASSIGN_OR_RETURN(Config config, ParseCommon(metadata, ops::RopeKind::kAdjacent));
  ASSIGN_OR_RETURN(int64_t experts, metadata.GetInt("llama.expert_count", 0, 1 << 16, 0));
  if (experts > 0) {
    return absl::UnimplementedError("llama with experts (Mixtral) is not read by this build");
  }
  config.uses_rope_factors = true;
  return config;
}

}  // namespace terrace::model
