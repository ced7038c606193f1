// Qwen2 and Qwen2.5 (Yang et al. 2024): LLaMA's graph with biases on q, k and v.
#include "base/status.h"
#include "model/registry.h"

namespace terrace::model {

absl::StatusOr<Config> ParseQwen2(const Metadata& metadata) {
  ASSIGN_OR_RETURN(Config config, ParseCommon(metadata, ops::RopeKind::kHalves));
  config.qkv_bias = true;
  return config;
}

}  // namespace terrace::model
