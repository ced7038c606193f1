// Rope scaling of a config.json ("rope_scaling" or "rope_parameters") as GGUF's keys.
#ifndef TERRACE_FORMAT_FOLDER_HF_ROPE_H_
#define TERRACE_FORMAT_FOLDER_HF_ROPE_H_

#include <string>

#include "absl/status/status.h"
#include "base/json_node.h"
#include "format/folder/hf_config.h"

namespace terrace::format {

// Sets "<prefix>rope.scaling.*" in out->metadata, and out->rope_factors for the per-frequency kind
// ("llama3"). "dynamic" scales nothing within the trained context, which is all that is served.
// Unimplemented names a kind that is not known.
absl::Status ReadRope(const JsonNode& text, const std::string& prefix, CheckpointConfig* out);

}  // namespace terrace::format

#endif  // TERRACE_FORMAT_FOLDER_HF_ROPE_H_
