// The configuration as commands take it: --config, the flags of some sections, --model, and the
// environment, read together.
#ifndef TERRACE_CLI_CONFIG_OPTIONS_H_
#define TERRACE_CLI_CONFIG_OPTIONS_H_

#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/cli.h"
#include "server/config.h"

namespace terrace::cli {

// What the parser writes to; read by Load when the command runs.
class ConfigOptions {
 public:
  // Adds --config and the flags of every key below these sections ("server", "memory" ...) to
  // `command`. `this` must stay where it is until the parser is gone.
  void AddTo(Command command, std::initializer_list<std::string_view> sections);
  // Adds --model NAME=SOURCE.
  void AddModels(Command command);

  // Reads the file and the environment. Warnings go to `io.err`.
  absl::StatusOr<server::LoadedConfig> Load(const Io& io) const;
  // The file that Load reads: --config, else TERRACE_CONFIG, else terrace.yaml or
  // /etc/terrace/terrace.yaml where there is one; empty for none.
  std::string FileName(const Io& io) const;

  void set_file(std::string file) { file_ = std::move(file); }

 private:
  std::string file_;
  std::vector<std::pair<std::string, std::string>> flags_;
  std::vector<std::string> models_;
};

// storage.disk.path, or where Terrace keeps its files without it.
std::string DataFolder(const server::Config& config);

// A variable by its name; "" for one that is not set.
using Environment = std::function<std::string(std::string_view)>;
// `environment` with what storage.object sets before the variables that say the same.
Environment ObjectEnvironment(const server::Config& config, Environment environment);

// auth.keys, or where API keys are kept without it.
std::string KeysFile(const server::Config& config);

}  // namespace terrace::cli

#endif  // TERRACE_CLI_CONFIG_OPTIONS_H_
