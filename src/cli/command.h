// The parser of arguments as commands see it: subcommands, arguments, options and flags that write
// to variables. CLI11 does the work, behind this header because it is slow to compile.
#ifndef TERRACE_CLI_COMMAND_H_
#define TERRACE_CLI_COMMAND_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"

namespace CLI {
class App;
}

namespace terrace::cli {

struct Invocation;

// Where an option's value goes; must live as long as the parser. Vectors take an option given
// often; one of numbers also takes a list with commas. Functions are called with each value.
using Target = std::variant<std::string*, std::optional<std::string>*, int32_t*, int64_t*,
                            std::optional<int32_t>*, std::optional<int64_t>*,
                            std::optional<double>*, std::vector<std::string>*,
                            std::vector<int32_t>*, std::function<void(const std::string&)>>;

struct OptionText {
  std::string value;  // what stands for the value in help: "FILE"
  std::string help;
  bool required = false;
  std::string group;  // heading in help; empty: the common one
};

// One command or group of commands. A copyable reference into the parser.
class Command {
 public:
  Command(CLI::App* app, Invocation* invocation) : app_(app), invocation_(invocation) {}

  // A command that only holds others.
  Command AddGroup(const std::string& name, const std::string& help);
  // A command with --json, whose `action` runs if it is the one that was named.
  Command Add(const std::string& name, const std::string& help,
              std::function<absl::Status()> action);

  // A positional argument.
  void Argument(const std::string& name, Target target, const OptionText& text);
  // `flags` such as "--port,--server.port".
  void Option(const std::string& flags, Target target, const OptionText& text);
  void Flag(const std::string& flags, bool* target, const std::string& help);

 private:
  CLI::App* app_;
  Invocation* invocation_;
};

}  // namespace terrace::cli

#endif  // TERRACE_CLI_COMMAND_H_
