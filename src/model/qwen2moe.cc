// Qwen1.5-MoE and Qwen2-MoE (Qwen team 2024): Qwen2's attention, experts whose shares are not
// normalised, and a shared expert of which each token takes a share.
#include "base/status.h"
#include "model/registry.h"

namespace terrace::model {

absl::StatusOr<Config> ParseQwen2Moe(const Metadata& metadata) {
  ASSIGN_OR_RETURN(Config config, ParseCommon(metadata, ops::RopeKind::kHalves));
  config.qkv_bias = true;
  RETURN_IF_ERROR(ParseExperts(metadata, &config));
  ASSIGN_OR_RETURN(config.experts.router.normalize,
                   metadata.GetBool("qwen2moe.expert_weights_norm", false));
  ASSIGN_OR_RETURN(int64_t shared,
                   metadata.GetInt("qwen2moe.expert_shared_feed_forward_length", 1, 1 << 20));
  config.experts.shared_width = static_cast<int32_t>(shared);
  config.experts.shared_gate = true;
  return config;
}

}  // namespace terrace::model
