#include "cli/config_options.h"

#include <fmt/format.h>

#include <filesystem>
#include <ostream>

#include "base/status.h"

namespace terrace::cli {

void ConfigOptions::AddTo(Command command, std::initializer_list<std::string_view> sections) {
  command.Option("--config", &file_,
                 {"FILE", "Configuration file (default: terrace.yaml if there is one)"});
  for (const server::ConfigKey& key : server::ConfigKeys()) {
    const std::string name(key.name);
    bool wanted = false;
    for (std::string_view section : sections)
      wanted |= name.starts_with(fmt::format("{}.", section));
    if (!wanted) continue;
    std::string flags = fmt::format("--{}", name);
    if (name == "server.host") flags += ",--host";
    if (name == "server.port") flags += ",--port";
    command.Option(
        flags, [this, name](const std::string& value) { flags_.emplace_back(name, value); },
        {std::string(key.kind), fmt::format("{} (default {})", key.help, key.default_text), false,
         "Keys of the configuration"});
  }
}

void ConfigOptions::AddModels(Command command) {
  command.Option("--model", &models_, {"NAME=SOURCE", "A model to serve; may be given often"});
}

std::string ConfigOptions::FileName(const Io& io) const {
  if (!file_.empty()) return file_;
  if (std::string file = io.Variable("TERRACE_CONFIG"); !file.empty()) return file;
  for (const char* path : {"terrace.yaml", "/etc/terrace/terrace.yaml"}) {
    std::error_code error;
    if (std::filesystem::exists(path, error)) return path;
  }
  return "";
}

absl::StatusOr<server::LoadedConfig> ConfigOptions::Load(const Io& io) const {
  server::ConfigInputs inputs;
  inputs.file = FileName(io);
  if (!inputs.file.empty()) {
    ASSIGN_OR_RETURN(inputs.yaml, server::ReadConfigFile(inputs.file));
  }
  inputs.environment = io.environment;
  inputs.flags = flags_;
  inputs.models = models_;
  ASSIGN_OR_RETURN(server::LoadedConfig loaded, server::LoadConfig(inputs));
  for (const std::string& warning : loaded.warnings)
    *io.err << fmt::format("terrace: {}\n", warning);
  return loaded;
}

std::string DataFolder(const server::Config& config) {
  return config.storage.disk_path.empty() ? server::DefaultDataFolder() : config.storage.disk_path;
}

Environment ObjectEnvironment(const server::Config& config, Environment environment) {
  const std::map<std::string, std::string, std::less<>> set = {
      {"AWS_ENDPOINT_URL_S3", config.storage.object_endpoint},
      {"AWS_REGION", config.storage.object_region},
      {"AWS_S3_ADDRESSING_STYLE", config.storage.object_addressing},
      {"AWS_CA_BUNDLE", config.storage.object_ca}};
  return [set, environment = std::move(environment)](std::string_view name) {
    const auto found = set.find(name);
    return found != set.end() && !found->second.empty() ? found->second : environment(name);
  };
}

std::string KeysFile(const server::Config& config) {
  return config.auth.keys.empty() ? DataFolder(config) + "/keys.json" : config.auth.keys;
}

}  // namespace terrace::cli
