// Completion of the commands and their options in shells, made from what the parser knows: one
// walk over the commands, written down for bash, zsh and fish.
#ifndef TERRACE_CLI_COMPLETION_H_
#define TERRACE_CLI_COMPLETION_H_

#include <iosfwd>

namespace CLI {
class App;
}

namespace terrace::cli {

// `app` holds all commands. A script to source, or to put where the shell looks for such files.
void WriteBashCompletion(const CLI::App& app, std::ostream& out);
void WriteZshCompletion(const CLI::App& app, std::ostream& out);
void WriteFishCompletion(const CLI::App& app, std::ostream& out);

}  // namespace terrace::cli

#endif  // TERRACE_CLI_COMPLETION_H_
