#include "cli/cli.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <ostream>

#include "base/status.h"

namespace terrace::cli {
namespace {

// CLI11 tells what is wrong, but not what to do next.
int UsageError(const CLI::App& app, const CLI::ParseError& error, std::ostream& err) {
  const CLI::App* named = &app;
  while (!named->get_subcommands().empty()) named = named->get_subcommands().front();
  std::string command = "terrace";
  for (const CLI::App* part = named; part != nullptr && part != &app; part = part->get_parent()) {
    command.insert(7, " " + part->get_name());
  }
  err << fmt::format("terrace: {}\nTry: {} --help\n", error.what(), command);
  return 2;
}

}  // namespace

CLI::App* AddCommand(CLI::App* app, Invocation* invocation, const std::string& name,
                     const std::string& help, std::function<absl::Status()> action) {
  CLI::App* command = app->add_subcommand(name, help);
  command->add_flag("--json", invocation->json, "Write JSON");
  command->callback([invocation, action = std::move(action)] { invocation->action = action; });
  return command;
}

int RunCli(const std::vector<std::string>& arguments, Io* io) {
  Invocation invocation;
  invocation.io = io;
  CLI::App app("Serves many large language models from little memory.", "terrace");
  app.require_subcommand(1);
  app.get_formatter()->column_width(36);
  AddListCommand(&app, &invocation);
  AddShowCommand(&app, &invocation);
  AddConfigCommand(&app, &invocation);
  AddDebugCommand(&app, &invocation);
  AddVersionCommand(&app, &invocation);

  // CLI11 reports by exceptions; none leaves this function.
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    const CLI::App* named = &app;
    while (!named->get_subcommands().empty()) named = named->get_subcommands().front();
    *io->out << named->help();
    return 0;
  } catch (const CLI::ParseError& error) {
    return UsageError(app, error, *io->err);
  }
  absl::Status status = invocation.action();
  io->out->flush();
  if (status.ok() && io->out->good()) return 0;
  if (status.ok()) status = absl::UnavailableError("the output could not be written");
  io->err->flush();
  *io->err << fmt::format("terrace: {}\n", Message(status));
  return 1;
}

void AddVersionCommand(CLI::App* app, Invocation* invocation) {
  AddCommand(app, invocation, "version", "Print the version", [invocation] {
    *invocation->io->out << (invocation->json
                                 ? fmt::format("{{\"version\":\"{}\"}}\n", TERRACE_VERSION)
                                 : fmt::format("terrace {}\n", TERRACE_VERSION));
    return absl::OkStatus();
  });
}

}  // namespace terrace::cli
