// The `terrace` command as a function, so that tests run it in process. Each command lives in a
// file of its own, which adds it to the parser (Add...Command below) and sets what it does.
#ifndef TERRACE_CLI_CLI_H_
#define TERRACE_CLI_CLI_H_

#include <functional>
#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace CLI {
class App;
}

namespace terrace::cli {

// Where a command reads and writes. The streams must outlive the call.
struct Io {
  std::istream* in = nullptr;
  std::ostream* out = nullptr;  // results only
  std::ostream* err = nullptr;  // progress, statistics, errors
  bool in_is_terminal = false;
  bool err_is_terminal = false;
  std::vector<std::pair<std::string, std::string>> environment;
};

// Runs `terrace ARGUMENTS`. Returns the exit status: 0, 1 after an error, 2 if the arguments are
// wrong.
int RunCli(const std::vector<std::string>& arguments, Io* io);

// What the parser found to do.
struct Invocation {
  Io* io = nullptr;
  bool json = false;  // --json, which every command takes
  std::function<absl::Status()> action;
};

void AddConfigCommand(CLI::App* app, Invocation* invocation);
void AddDebugCommand(CLI::App* app, Invocation* invocation);
void AddListCommand(CLI::App* app, Invocation* invocation);
void AddShowCommand(CLI::App* app, Invocation* invocation);
void AddVersionCommand(CLI::App* app, Invocation* invocation);

// Adds a subcommand with --json, whose `action` runs if it is the one that was named.
CLI::App* AddCommand(CLI::App* app, Invocation* invocation, const std::string& name,
                     const std::string& help, std::function<absl::Status()> action);

}  // namespace terrace::cli

#endif  // TERRACE_CLI_CLI_H_
