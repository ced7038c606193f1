#include "model/architecture.h"

#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/status.h"
#include "model/decoder.h"
#include "model/encoder.h"
#include "model/registry.h"
#include "model/share.h"

namespace terrace::model {

absl::StatusOr<std::unique_ptr<Architecture>> Architecture::Create(const Metadata& metadata,
                                                                   const TensorCatalog& catalog,
                                                                   int32_t served_context) {
  ASSIGN_OR_RETURN(Config config, ParseConfig(metadata));
  RETURN_IF_ERROR(ApplyShare(metadata, &config));
  if (served_context == 0) served_context = config.trained_context;
  config.long_rope = config.original_context > 0 && served_context > config.original_context;
  if (config.encoder) {
    ASSIGN_OR_RETURN(std::unique_ptr<Encoder> encoder, Encoder::Create(std::move(config), catalog));
    return encoder;
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Decoder> decoder, Decoder::Create(std::move(config), catalog));
  return decoder;
}

absl::StatusOr<Config> ParseConfig(const Metadata& metadata) {
  ASSIGN_OR_RETURN(std::string name, metadata.GetString("general.architecture"));
  for (const ArchitectureEntry& entry : Architectures()) {
    if (entry.name == name) return entry.parse(metadata);
  }
  return absl::UnimplementedError(fmt::format("architecture '{}' is not known; this build runs {}",
                                              name, fmt::join(Architecture::KnownNames(), ", ")));
}

std::vector<std::string> Architecture::KnownNames() {
  std::vector<std::string> names;
  for (const ArchitectureEntry& entry : Architectures()) names.emplace_back(entry.name);
  return names;
}

}  // namespace terrace::model
