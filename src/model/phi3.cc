// Phi-3 (Abdin et al. 2024): LLaMA's graph with q, k, v in one matrix and gate, up in another.
#include "base/status.h"
#include "model/registry.h"

namespace terrace::model {

absl::StatusOr<Config> ParsePhi3(const Metadata& metadata) {
  ASSIGN_OR_RETURN(Config config, ParseCommon(metadata, ops::RopeKind::kHalves));
  config.fused_qkv = true;
  config.fused_gate_up = true;
  ASSIGN_OR_RETURN(int64_t window, metadata.GetInt("phi3.attention.sliding_window", 0, 1 << 30, 0));
  for (LayerConfig& layer : config.layers) layer.window = static_cast<int32_t>(window);
  return config;
}

}  // namespace terrace::model
