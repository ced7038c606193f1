// The `terrace` command as a function, so that tests run it in process. Each command lives in a
// file of its own, which adds it to the parser and sets what it does.
#ifndef TERRACE_CLI_CLI_H_
#define TERRACE_CLI_CLI_H_

#include <functional>
#include <iosfwd>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cli/command.h"

namespace terrace::cli {

// Where a command reads and writes. The streams must outlive the call.
struct Io {
  std::istream* in = nullptr;
  std::ostream* out = nullptr;  // results only
  std::ostream* err = nullptr;  // progress, statistics, errors
  bool in_is_terminal = false;
  bool err_is_terminal = false;
  std::vector<std::pair<std::string, std::string>> environment;

  std::string Variable(std::string_view name) const;  // of the environment; empty if there is none
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

// Each adds its command to `root`.
void AddServeCommand(Command root, Invocation* invocation);
void AddRunCommand(Command root, Invocation* invocation);
void AddListCommand(Command root, Invocation* invocation);
void AddShowCommand(Command root, Invocation* invocation);
void AddConvertCommand(Command root, Invocation* invocation);
void AddStoreCommands(Command root, Invocation* invocation);  // rm, rollback, import
void AddPlanCommand(Command root, Invocation* invocation);
void AddTopCommand(Command root, Invocation* invocation);
void AddBenchCommand(Command root, Invocation* invocation);
void AddProfileCommand(Command root, Invocation* invocation);
void AddKeyCommand(Command root, Invocation* invocation);
void AddConfigCommand(Command root, Invocation* invocation);
void AddDebugCommand(Command root, Invocation* invocation);
void AddVerifyCommand(Command root, Invocation* invocation);
void AddQuantizeCommand(Command root, Invocation* invocation);
void AddVersionCommand(Command root, Invocation* invocation);
// `app`: what holds all commands.
void AddHelpCommand(Command root, CLI::App* app, Invocation* invocation);

// The parts of `terrace debug`.
void AddDebugTokenize(Command debug, Invocation* invocation);
void AddDebugRender(Command debug, Invocation* invocation);
void AddDebugEmbed(Command debug, Invocation* invocation);
void AddDebugLogits(Command debug, Invocation* invocation);
void AddDebugVariants(Command debug, Invocation* invocation);
void AddDebugDevices(Command debug, Invocation* invocation);

// A part of `terrace profile`.
void AddProfilePages(Command profile, Invocation* invocation);

// A part of `terrace config`.
void AddConfigImport(Command config, Invocation* invocation);

// Parts of `terrace verify`.
void AddVerifyPerplexity(Command verify, Invocation* invocation);
void AddVerifyParallel(Command verify, Invocation* invocation);
void AddVerifyStability(Command verify, Invocation* invocation);
void AddVerifyContext(Command verify, Invocation* invocation);

}  // namespace terrace::cli

#endif  // TERRACE_CLI_CLI_H_
