// OLMo 2 (OLMo team 2024): norms after the blocks only, and over all query heads and all key heads
// together.
#include "base/status.h"
#include "model/registry.h"

namespace terrace::model {

absl::StatusOr<Config> ParseOlmo2(const Metadata& metadata) {
  ASSIGN_OR_RETURN(Config config, ParseCommon(metadata, ops::RopeKind::kHalves));
  config.pre_norms = false;
  config.post_norms = true;
  config.qk_norm_whole = true;
  return config;
}

}  // namespace terrace::model
