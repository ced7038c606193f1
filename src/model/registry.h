// The architectures of this build. One file each fills a Config from metadata; registering one is
// one line in registry.cc.
#ifndef TERRACE_MODEL_REGISTRY_H_
#define TERRACE_MODEL_REGISTRY_H_

#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/metadata.h"
#include "model/config.h"

namespace terrace::model {

struct ArchitectureEntry {
  std::string_view name;
  absl::StatusOr<Config> (*parse)(const Metadata& metadata);
};

std::span<const ArchitectureEntry> Architectures();
// By the one that "general.architecture" names; Unimplemented if none is known by that name.
absl::StatusOr<Config> ParseConfig(const Metadata& metadata);

// One parser a file.
absl::StatusOr<Config> ParseLlama(const Metadata& metadata);
absl::StatusOr<Config> ParseQwen2(const Metadata& metadata);
absl::StatusOr<Config> ParseQwen3(const Metadata& metadata);
absl::StatusOr<Config> ParseGemma3(const Metadata& metadata);
absl::StatusOr<Config> ParsePhi3(const Metadata& metadata);
absl::StatusOr<Config> ParseQwen3Moe(const Metadata& metadata);
absl::StatusOr<Config> ParseGptOss(const Metadata& metadata);
absl::StatusOr<Config> ParseDeepseek2(const Metadata& metadata);
absl::StatusOr<Config> ParseQwen2Moe(const Metadata& metadata);
absl::StatusOr<Config> ParseGemma2(const Metadata& metadata);
absl::StatusOr<Config> ParseGranite(const Metadata& metadata);
absl::StatusOr<Config> ParseOlmo2(const Metadata& metadata);
absl::StatusOr<Config> ParseGlm4(const Metadata& metadata);
absl::StatusOr<Config> ParseBert(const Metadata& metadata);

// The values that all of them share, read from "<architecture>.…" keys with the documented
// defaults; every layer gets the same rope with scaling as the metadata says. A rope scaling kind
// that is not known is refused.
absl::StatusOr<Config> ParseCommon(const Metadata& metadata, ops::RopeKind rope_kind);

// Reads "<architecture>.expert_…" into config->experts and gives every layer experts, if the model
// has any. Defaults: shares are a softmax over all experts, normalised over the chosen; an expert
// is as wide as feed_forward_length says.
absl::Status ParseExperts(const Metadata& metadata, Config* config);

}  // namespace terrace::model

#endif  // TERRACE_MODEL_REGISTRY_H_
