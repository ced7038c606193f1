// Qwen3 models with experts (Yang et al. 2025): Qwen3's attention, every FFN one of experts.
#include "base/status.h"
#include "model/registry.h"

namespace terrace::model {

absl::StatusOr<Config> ParseQwen3Moe(const Metadata& metadata) {
  ASSIGN_OR_RETURN(Config config, ParseCommon(metadata, ops::RopeKind::kHalves));
  config.qk_norm = true;
  RETURN_IF_ERROR(ParseExperts(metadata, &config));
  return config;
}

}  // namespace terrace::model
