// terrace config: checks a configuration and explains it.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <ostream>

#include "base/status.h"
#include "cli/cli.h"
#include "cli/config_options.h"

namespace terrace::cli {
namespace {

std::string OriginOf(const server::LoadedConfig& loaded, std::string_view key) {
  auto found = loaded.origins.find(key);
  return found == loaded.origins.end() ? "default" : found->second;
}

void WriteJson(const server::LoadedConfig& loaded, const std::string& file, std::ostream& out) {
  boost::json::object keys;
  for (const server::ConfigKey& key : server::ConfigKeys()) {
    keys[std::string(key.name)] = {{"value", key.get(loaded.config)},
                                   {"from", OriginOf(loaded, key.name)}};
  }
  boost::json::array models;
  for (const server::ModelConfig& model : loaded.config.models) {
    boost::json::object entry;
    for (const server::ModelConfigKey& key : server::ModelConfigKeys()) {
      entry[std::string(key.name)] = key.get(model);
    }
    models.push_back(std::move(entry));
  }
  boost::json::array tenants;
  for (const server::TenantConfig& tenant : loaded.config.tenants) {
    boost::json::object entry;
    for (const server::TenantConfigKey& key : server::TenantConfigKeys()) {
      entry[std::string(key.name)] = key.get(tenant);
    }
    tenants.push_back(std::move(entry));
  }
  boost::json::object all = {
      {"file", file.empty() ? boost::json::value() : boost::json::value(file)},
      {"keys", std::move(keys)},
      {"tenants", std::move(tenants)},
      {"models", std::move(models)}};
  out << boost::json::serialize(all) << "\n";
}

void WriteText(const server::LoadedConfig& loaded, const std::string& file, std::ostream& out) {
  out << (file.empty() ? "No configuration file; " : fmt::format("{} is valid; ", file))
      << "in force:\n\n";
  size_t name_width = 0;
  size_t value_width = 0;
  for (const server::ConfigKey& key : server::ConfigKeys()) {
    name_width = std::max(name_width, key.name.size());
    value_width = std::max(value_width, key.get(loaded.config).size());
  }
  value_width = std::min<size_t>(value_width, 40);
  for (const server::ConfigKey& key : server::ConfigKeys()) {
    out << fmt::format("  {:<{}}  {:<{}}  {}\n", key.name, name_width, key.get(loaded.config),
                       value_width, OriginOf(loaded, key.name));
  }
  if (!loaded.config.tenants.empty()) out << "\ntenants:\n";
  for (const server::TenantConfig& tenant : loaded.config.tenants) {
    out << fmt::format("  {}\n", tenant.name);
    for (const server::TenantConfigKey& key : server::TenantConfigKeys()) {
      if (key.name != "name") out << fmt::format("    {:<13}  {}\n", key.name, key.get(tenant));
    }
  }
  out << (loaded.config.models.empty() ? "\nNo models.\n" : "\nmodels:\n");
  for (const server::ModelConfig& model : loaded.config.models) {
    out << fmt::format("  {}\n", model.name);
    for (const server::ModelConfigKey& key : server::ModelConfigKeys()) {
      if (key.name != "name") out << fmt::format("    {:<13}  {}\n", key.name, key.get(model));
    }
  }
}

}  // namespace

void AddConfigCommand(Command root, Invocation* invocation) {
  Command config = root.AddGroup("config", "Check a configuration, or import another one");
  auto options = std::make_shared<ConfigOptions>();  // lives as long as the parser's callbacks
  auto file = std::make_shared<std::string>();
  Command check = config.Add(
      "check",
      "Say what is wrong with a configuration, or the value of every key and where it came from",
      [invocation, options, file] {
        if (!file->empty()) options->set_file(*file);
        ASSIGN_OR_RETURN(server::LoadedConfig loaded, options->Load(*invocation->io));
        (invocation->json ? WriteJson : WriteText)(loaded, options->FileName(*invocation->io),
                                                   *invocation->io->out);
        return absl::OkStatus();
      });
  check.Argument("file", file.get(), {"FILE", "Configuration file, the same as --config"});
  options->AddTo(
      check, {"server", "auth", "tls", "memory", "storage", "scheduler", "kv", "device", "log"});
  options->AddModels(check);
  AddConfigImport(config, invocation);
}

}  // namespace terrace::cli
