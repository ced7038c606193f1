// The metadata that all architectures with experts share.
#include <cmath>
#include <string>

#include <fmt/format.h>

#include "base/status.h"
#include "model/registry.h"

namespace terrace::model {

absl::Status ParseExperts(const Metadata& metadata, Config* config) {
  const std::string prefix = config->architecture + ".expert_";
  auto read = [&](const char* key, int64_t low, int64_t high, int64_t otherwise) {
    return metadata.GetInt(prefix + key, low, high, otherwise);
  };
  ASSIGN_OR_RETURN(int64_t count, read("count", 0, 1 << 16, 0));
  if (count == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(int64_t used, read("used_count", 1, count, 0));
  ASSIGN_OR_RETURN(int64_t ffn, read("feed_forward_length", 1, 1 << 20, config->ffn_width));
  ASSIGN_OR_RETURN(int64_t shared, read("shared_count", 0, 1024, 0));
  ASSIGN_OR_RETURN(int64_t groups, read("group_count", 0, count, 1));
  ASSIGN_OR_RETURN(int64_t groups_used, read("group_used_count", 0, count, 1));
  ASSIGN_OR_RETURN(int64_t gate, read("gating_func", 0, 3, 1));
  ASSIGN_OR_RETURN(double scale, metadata.GetDouble(prefix + "weights_scale", 1.0));
  ASSIGN_OR_RETURN(bool normalize, metadata.GetBool(prefix + "weights_norm", true));
  if (!std::isfinite(scale)) {
    return absl::InvalidArgumentError(fmt::format("{}weights_scale is {}", prefix, scale));
  }
  ExpertConfig& experts = config->experts;
  experts.count = static_cast<int32_t>(count);
  experts.ffn_width = static_cast<int32_t>(ffn);
  experts.shared_width = static_cast<int32_t>(shared * ffn);
  ops::RouterParams& router = experts.router;
  // 0: not said; 1: softmax; 2: sigmoid; 3: softmax over the chosen experts.
  router.gate = gate == 2 ? ops::RouterParams::Gate::kSigmoid : ops::RouterParams::Gate::kSoftmax;
  router.used = static_cast<int32_t>(used);
  router.groups = groups > 1 ? static_cast<int32_t>(groups) : 1;
  router.groups_used = router.groups > 1 ? static_cast<int32_t>(groups_used) : 1;
  router.normalize = normalize || gate == 3;
  router.scale = scale != 0.0 ? static_cast<float>(scale) : 1.0f;  // files write 0 for "none"
  RETURN_IF_ERROR(ops::CheckRouter(router, experts.count));
  for (LayerConfig& layer : config->layers) layer.experts = true;
  return absl::OkStatus();
}

}  // namespace terrace::model
