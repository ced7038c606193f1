// Granite 3 (IBM 2024): LLaMA's graph with four constants that scale embeddings, scores, what
// blocks add, and (as a divisor) logits.
#include <cmath>

#include "base/status.h"
#include "model/registry.h"

namespace terrace::model {

absl::StatusOr<Config> ParseGranite(const Metadata& metadata) {
  ASSIGN_OR_RETURN(Config config, ParseCommon(metadata, ops::RopeKind::kAdjacent));
  config.uses_rope_factors = true;
  ASSIGN_OR_RETURN(double embedding, metadata.GetDouble("granite.embedding_scale", 1.0));
  ASSIGN_OR_RETURN(double residual, metadata.GetDouble("granite.residual_scale", 1.0));
  ASSIGN_OR_RETURN(double divisor, metadata.GetDouble("granite.logit_scale", 1.0));
  if (!std::isfinite(embedding) || !std::isfinite(residual) || !(divisor > 0)) {
    return absl::InvalidArgumentError("granite needs finite scales and a logit_scale above 0");
  }
  config.embedding_scale = static_cast<float>(embedding);
  config.residual_scale = static_cast<float>(residual);
  config.logit_scale = static_cast<float>(1.0 / divisor);
  return config;
}

}  // namespace terrace::model
