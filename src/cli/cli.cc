#include "cli/cli.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <ostream>

#include "base/status.h"
#include "cli/doctor.h"
#include "cli/pull.h"
#include "cli/replay.h"

namespace terrace::cli {
namespace {

void Describe(CLI::Option* option, const OptionText& text) {
  option->type_name(text.value);
  if (text.required) option->required();
  if (!text.group.empty()) option->group(text.group);
}

CLI::Option* AddTo(CLI::App* app, const std::string& names, Target target,
                   const std::string& help) {
  return std::visit(
      [&](auto& to) -> CLI::Option* {
        using T = std::decay_t<decltype(to)>;
        if constexpr (std::is_same_v<T, std::function<void(const std::string&)>>) {
          return app->add_option_function<std::string>(names, std::move(to), help);
        } else if constexpr (std::is_same_v<T, std::vector<std::string>*>) {
          // An option takes one value each time it is given, an argument all that are left.
          return app->add_option(names, *to, help)->allow_extra_args(!names.starts_with('-'));
        } else if constexpr (std::is_same_v<T, std::vector<int32_t>*>) {
          return app->add_option(names, *to, help)->allow_extra_args(false)->delimiter(',');
        } else {
          return app->add_option(names, *to, help);
        }
      },
      target);
}

const CLI::App* Named(const CLI::App& app) {
  const CLI::App* named = &app;
  while (!named->get_subcommands().empty()) named = named->get_subcommands().front();
  return named;
}

// CLI11 tells what is wrong, but not what to do next.
int UsageError(const CLI::App& app, const CLI::ParseError& error, std::ostream& err) {
  std::string command;
  for (const CLI::App* part = Named(app); part != nullptr && part != &app;
       part = part->get_parent()) {
    command = fmt::format(" {}{}", part->get_name(), command);
  }
  err << fmt::format("terrace: {}\nTry: terrace{} --help\n", error.what(), command);
  return 2;
}

}  // namespace

Command Command::AddGroup(const std::string& name, const std::string& help) {
  CLI::App* group = app_->add_subcommand(name, help);
  group->require_subcommand(1);
  return Command(group, invocation_);
}

Command Command::Add(const std::string& name, const std::string& help,
                     std::function<absl::Status()> action) {
  CLI::App* command = app_->add_subcommand(name, help);
  command->add_flag("--json", invocation_->json, "Write JSON");
  command->callback(
      [invocation = invocation_, action = std::move(action)] { invocation->action = action; });
  return Command(command, invocation_);
}

void Command::Argument(const std::string& name, Target target, const OptionText& text) {
  Describe(AddTo(app_, name, std::move(target), text.help), text);
}

void Command::Option(const std::string& flags, Target target, const OptionText& text) {
  Describe(AddTo(app_, flags, std::move(target), text.help), text);
}

void Command::Flag(const std::string& flags, bool* target, const std::string& help) {
  app_->add_flag(flags, *target, help);
}

std::string Io::Variable(std::string_view name) const {
  for (const auto& [key, value] : environment) {
    if (key == name) return value;
  }
  return "";
}

int RunCli(const std::vector<std::string>& arguments, Io* io) {
  Invocation invocation;
  invocation.io = io;
  CLI::App app("Serves many large language models from little memory.", "terrace");
  app.require_subcommand(1);
  app.set_version_flag("--version", fmt::format("terrace {}", TERRACE_VERSION));
  app.get_formatter()->column_width(36);
  Command root(&app, &invocation);
  AddServeCommand(root, &invocation);
  AddRunCommand(root, &invocation);
  AddPullCommand(root, &invocation);
  AddListCommand(root, &invocation);
  AddShowCommand(root, &invocation);
  AddConvertCommand(root, &invocation);
  AddStoreCommands(root, &invocation);
  AddPlanCommand(root, &invocation);
  AddTopCommand(root, &invocation);
  AddBenchCommand(root, &invocation);
  AddProfileCommand(root, &invocation);
  AddKeyCommand(root, &invocation);
  AddConfigCommand(root, &invocation);
  AddDoctorCommand(root, &invocation);
  AddReplayCommand(root, &invocation);
  AddDebugCommand(root, &invocation);
  AddVerifyCommand(root, &invocation);
  AddQuantizeCommand(root, &invocation);
  AddVersionCommand(root, &invocation);
  AddHelpCommand(root, &app, &invocation);

  // CLI11 reports by exceptions; none leaves this function.
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    *io->out << app.help();  // of the command that was named
    return 0;
  } catch (const CLI::CallForVersion& version) {
    *io->out << version.what() << "\n";
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

void AddDebugCommand(Command root, Invocation* invocation) {
  Command debug = root.AddGroup("debug", "Look at one part of the machinery at a time");
  AddDebugTokenize(debug, invocation);
  AddDebugRender(debug, invocation);
  AddDebugLogits(debug, invocation);
  AddDebugEmbed(debug, invocation);
  AddDebugVariants(debug, invocation);
  AddDebugDevices(debug, invocation);
}

void AddVersionCommand(Command root, Invocation* invocation) {
  root.Add("version", "Print the version", [invocation] {
    *invocation->io->out << (invocation->json
                                 ? fmt::format("{{\"version\":\"{}\"}}\n", TERRACE_VERSION)
                                 : fmt::format("terrace {}\n", TERRACE_VERSION));
    return absl::OkStatus();
  });
}

}  // namespace terrace::cli
