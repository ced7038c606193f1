// Qwen3 dense models (Yang et al. 2025): RMS norm of query and key heads, no biases.
#include "base/status.h"
#include "model/registry.h"

namespace terrace::model {

absl::StatusOr<Config> ParseQwen3(const Metadata& metadata) {
  ASSIGN_OR_RETURN(Config config, ParseCommon(metadata, ops::RopeKind::kHalves));
  config.qk_norm = true;
  return config;
}

}  // namespace terrace::model
