// GLM-4-0414 (Z.ai 2025): norms before and after each block, half of a head's dimensions rotated in
// adjacent pairs, gate and up in one matrix.
#include "base/status.h"
#include "model/registry.h"

namespace terrace::model {

absl::StatusOr<Config> ParseGlm4(const Metadata& metadata) {
  ASSIGN_OR_RETURN(Config config, ParseCommon(metadata, ops::RopeKind::kAdjacent));
  config.post_norms = true;
  config.fused_gate_up = true;
  return config;
}

}  // namespace terrace::model
