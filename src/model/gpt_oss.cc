// gpt-oss (OpenAI 2025): experts with biases and a clamped GLU, attention sinks, a sliding window
// in every other layer from the first on.
#include "base/status.h"
#include "model/registry.h"

namespace terrace::model {

absl::StatusOr<Config> ParseGptOss(const Metadata& metadata) {
  ASSIGN_OR_RETURN(Config config, ParseCommon(metadata, ops::RopeKind::kHalves));
  config.qkv_bias = true;
  config.sinks = true;
  // GGUF names the norm before the FFN after where it stands: after attention.
  config.ffn_norm_name = "post_attention_norm.weight";
  config.glu_clamp = {.alpha = 1.702f, .limit = 7.0f};
  RETURN_IF_ERROR(ParseExperts(metadata, &config));
  config.experts.biases = true;
  // Published with a YaRN range that is not rounded to whole pairs.
  ASSIGN_OR_RETURN(bool round, metadata.GetBool("gpt-oss.rope.scaling.yarn_round_range", false));
  for (LayerConfig& layer : config.layers) layer.rope.yarn_round_range = round;
  ASSIGN_OR_RETURN(int64_t window,
                   metadata.GetInt("gpt-oss.attention.sliding_window", 0, 1 << 30, 0));
  for (size_t i = 0; i < config.layers.size(); i += 2) {
    config.layers[i].window = static_cast<int32_t>(window);
  }
  return config;
}

}  // namespace terrace::model
