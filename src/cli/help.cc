// `terrace help`: the commands' help, their man page and their completion in shells, all made from
// what the parser knows.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status.h"
#include "cli/cli.h"
#include "cli/completion.h"

namespace terrace::cli {
namespace {

struct HelpOptions {
  std::vector<std::string> words;
  std::optional<std::string> form;
};

std::vector<const CLI::App*> Subcommands(const CLI::App& app) {
  std::vector<const CLI::App*> out;
  for (const CLI::App* each : app.get_subcommands([](const CLI::App*) { return true; })) {
    out.push_back(each);
  }
  return out;
}

std::vector<const CLI::Option*> Options(const CLI::App& app) {
  return app.get_options([](const CLI::Option*) { return true; });
}

// Text as roff takes it: nothing in it is a command.
std::string Roff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else if (out.empty() && (c == '.' || c == '\'')) {
      out += fmt::format("\\&{}", c);
    } else {
      out += c;
    }
  }
  return out;
}

std::string Flags(const CLI::Option& option) {
  std::string out = option.get_name(/*positional=*/true, /*all_options=*/true);
  const std::string type = option.get_type_name();
  if (!option.get_positional() && !type.empty() && option.get_expected_min() > 0) out += " " + type;
  return out;
}

void WriteOptions(const CLI::App& app, std::ostream& out) {
  for (const CLI::Option* option : Options(app)) {
    const std::string value = option->get_default_str();
    out << fmt::format(".TP\n.B {}\n{}{}\n", Roff(Flags(*option)), Roff(option->get_description()),
                       value.empty() ? "" : Roff(fmt::format(" (default {})", value)));
  }
}

// With the commands below it, each under its full name.
void WriteCommands(const CLI::App& app, const std::string& name, std::ostream& out) {
  for (const CLI::App* each : Subcommands(app)) {
    const std::string full = fmt::format("{} {}", name, each->get_name());
    out << fmt::format(".SS {}\n{}.\n", Roff(full), Roff(each->get_description()));
    WriteOptions(*each, out);
    WriteCommands(*each, full, out);
  }
}

void WriteMan(const CLI::App& app, const std::string& name, std::ostream& out) {
  std::string title = name;
  std::replace(title.begin(), title.end(), ' ', '-');
  out << fmt::format(".TH \"{}\" 1 \"\" \"terrace {}\" \"User Commands\"\n", title,
                     TERRACE_VERSION);
  out << fmt::format(".SH NAME\n{} \\- {}\n", Roff(title), Roff(app.get_description()));
  const bool group = !Subcommands(app).empty();
  out << fmt::format(".SH SYNOPSIS\n.B {}\n[OPTIONS]{}\n", Roff(name), group ? " COMMAND ..." : "");
  for (const CLI::Option* option : Options(app)) {
    if (!option->get_positional()) continue;
    out << (option->get_required() ? "" : "[") << Roff(option->get_name())
        << (option->get_required() ? "\n" : "]\n");
  }
  out << ".SH OPTIONS\n";
  WriteOptions(app, out);
  if (!group) return;
  out << ".SH COMMANDS\n";
  WriteCommands(app, name, out);
}

absl::StatusOr<const CLI::App*> Find(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* found = &app;
  for (const std::string& word : words) {
    const std::vector<const CLI::App*> below = Subcommands(*found);
    const auto next = std::find_if(below.begin(), below.end(),
                                   [&](const CLI::App* each) { return each->get_name() == word; });
    if (next == below.end()) {
      return absl::NotFoundError(fmt::format("there is no command '{}'; `terrace help` lists them",
                                             fmt::join(words, " ")));
    }
    found = *next;
  }
  return found;
}

absl::Status Write(const CLI::App& app, const HelpOptions& options, std::ostream& out) {
  ASSIGN_OR_RETURN(const CLI::App* found, Find(app, options.words));
  const std::string name =
      options.words.empty() ? "terrace" : fmt::format("terrace {}", fmt::join(options.words, " "));
  const std::string form = options.form.value_or("text");
  if (form == "text") {
    out << found->get_formatter()->make_help(found, name, CLI::AppFormatMode::Normal);
  } else if (form == "man") {
    WriteMan(*found, name, out);
  } else if (form == "bash") {
    WriteBashCompletion(app, out);
  } else if (form == "zsh") {
    WriteZshCompletion(app, out);
  } else if (form == "fish") {
    WriteFishCompletion(app, out);
  } else {
    return absl::InvalidArgumentError(
        fmt::format("'{}' is none of the forms text, man, bash, zsh and fish", form));
  }
  return absl::OkStatus();
}

}  // namespace

void AddHelpCommand(Command root, CLI::App* app, Invocation* invocation) {
  auto options = std::make_shared<HelpOptions>();
  Command help =
      root.Add("help", "Show the help of a command, or of all as a man page",
               [app, options, invocation] { return Write(*app, *options, *invocation->io->out); });
  help.Argument("command", &options->words, {"COMMAND", "Of which command; else of all"});
  help.Option(
      "--form", &options->form,
      {"FORM",
       "text, man (a man page), or bash, zsh or fish (completion for that shell) (default text)"});
}

}  // namespace terrace::cli
