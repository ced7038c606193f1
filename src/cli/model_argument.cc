#include "cli/model_argument.h"

#include <fmt/format.h>

#include <filesystem>
#include <vector>

#include "base/status.h"
#include "base/text.h"
#include "cli/config_options.h"
#include "format/model_set.h"
#include "weights/model_store.h"
#include "weights/object_source.h"

namespace terrace::cli {

std::string StoreFolder(const server::Config& config) { return DataFolder(config) + "/models"; }
std::string ImageFolder(const server::Config& config) { return DataFolder(config) + "/images"; }
std::string KernelFolder(const server::Config& config) { return DataFolder(config) + "/kernels"; }

absl::StatusOr<std::string> FindModel(const server::Config& config, const std::string& model) {
  std::string source = model;
  std::vector<std::string> names;
  for (const server::ModelConfig& known : config.models) {
    names.push_back(known.name);
    if (known.name == model) source = known.source;
  }
  std::error_code error;
  if (weights::IsObject(source)) return source;
  if (server::IsPath(source) || std::filesystem::is_regular_file(source, error) ||
      std::filesystem::is_regular_file(source + "/config.json", error)) {
    return source;
  }
  if (source.starts_with("hf:")) {
    return absl::InvalidArgumentError(fmt::format(
        "'{}' is not on this machine; fetch it first: terrace pull {}", source, source));
  }
  const std::string folder = StoreFolder(config);
  weights::ModelStore store(folder);
  absl::StatusOr<weights::StoredVersion> stored = store.Resolve(source);
  if (stored.ok()) return stored->path;
  ASSIGN_OR_RETURN(std::vector<weights::StoredModel> models, store.List());
  for (const weights::StoredModel& known : models) {
    // The model is there, but not this version, or it cannot be opened.
    if (known.name == source.substr(0, source.find('@'))) return stored.status();
    names.push_back(known.name);
  }
  if (std::filesystem::is_directory(folder, error)) {
    ASSIGN_OR_RETURN(std::vector<format::ModelFileEntry> files, format::ListModelFiles(folder));
    for (const format::ModelFileEntry& file : files) {
      if (file.name == source) return file.path;
      names.push_back(file.name);
    }
  }
  std::string nearest = NearestName(source, names);
  return absl::NotFoundError(fmt::format(
      "no model '{}': there is no such file, and none of that name in {} or in the configuration{}",
      model, folder,
      !nearest.empty() ? fmt::format("; did you mean '{}'?", nearest)
      : names.empty()  ? "; `terrace pull` fetches one"
                       : fmt::format("; there are {}", fmt::join(names, ", "))));
}

}  // namespace terrace::cli
