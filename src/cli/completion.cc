#include "cli/completion.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace terrace::cli {
namespace {

// What may follow a command's words.
struct Choice {
  std::string word;  // a command's name, or an option with its dashes
  std::string about;
  bool takes_value = false;
};

struct Place {
  std::string words;  // the commands before it, with spaces between; empty: none yet
  bool is_group = false;
  std::vector<Choice> choices;
};

void Walk(const CLI::App& app, const std::string& words, std::vector<Place>* places) {
  Place place{.words = words, .choices = {}};
  const std::vector<const CLI::App*> below =
      app.get_subcommands([](const CLI::App*) { return true; });
  place.is_group = !below.empty();
  for (const CLI::App* each : below) {
    place.choices.push_back({each->get_name(), each->get_description()});
  }
  for (const CLI::Option* option : app.get_options([](const CLI::Option*) { return true; })) {
    for (const std::string& name : option->get_lnames()) {
      place.choices.push_back(
          {"--" + name, option->get_description(), option->get_expected_min() > 0});
    }
  }
  places->push_back(std::move(place));
  for (const CLI::App* each : below) {
    Walk(*each, words + (words.empty() ? "" : " ") + each->get_name(), places);
  }
}

std::vector<Place> Places(const CLI::App& app) {
  std::vector<Place> places;
  Walk(app, "", &places);
  return places;
}

// Its first sentence, as one line that is not too long for a list of choices.
std::string Brief(std::string_view about) {
  constexpr size_t kMost = 76;
  about = about.substr(0, about.find_first_of(";\n"));
  about = about.substr(0, about.find(". "));
  if (about.ends_with('.')) about.remove_suffix(1);
  if (about.size() <= kMost) return std::string(about);
  return std::string(about.substr(0, about.rfind(' ', kMost))) + " ...";
}

// In single quotes of sh and zsh; fish takes a quote with a backslash instead.
std::string Quoted(std::string_view text, std::string_view quote = "'\\''") {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += quote;
    } else {
      out += c;
    }
  }
  return out + "'";
}

// A choice as zsh's _describe takes it: word:about.
std::string Described(const Choice& choice) {
  std::string word;
  for (const char c : choice.word) word += c == ':' ? std::string("\\:") : std::string(1, c);
  return Quoted(word + ":" + Brief(choice.about));
}

}  // namespace

// The words before the cursor that are no options name the command; where nothing fits, files do.
void WriteBashCompletion(const CLI::App& app, std::ostream& out) {
  out << "# Completion of terrace for bash: source it, or put it into\n"
         "# /usr/share/bash-completion/completions/terrace\n"
         "_terrace() {\n"
         "  local words='' choices='' i\n"
         "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
         "    case ${COMP_WORDS[i]} in\n"
         "      -*) ;;\n"
         "      *) words+=\"${words:+ }${COMP_WORDS[i]}\" ;;\n"
         "    esac\n"
         "  done\n"
         "  while :; do\n"
         "    case $words in\n";
  for (const Place& place : Places(app)) {
    std::string choices;
    for (const Choice& choice : place.choices) choices += " " + choice.word;
    out << fmt::format("    '{}') choices='{}' ;;\n", place.words,
                       choices.substr(!choices.empty()));
  }
  out << "    esac\n"
         "    [[ -n $choices || $words != *' '* ]] && break\n"
         "    words=${words% *}\n"
         "  done\n"
         "  COMPREPLY=($(compgen -W \"$choices\" -- \"${COMP_WORDS[COMP_CWORD]}\"))\n"
         "}\n"
         "complete -o default -F _terrace terrace\n";
}

void WriteZshCompletion(const CLI::App& app, std::ostream& out) {
  out << "#compdef terrace\n"
         "# Completion of terrace for zsh: source it after compinit, or put it as _terrace into a\n"
         "# folder of $fpath, such as /usr/share/zsh/vendor-completions\n"
         "_terrace() {\n"
         "  local line='' i\n"
         "  local -a choices\n"
         "  for ((i = 2; i < CURRENT; ++i)); do\n"
         "    [[ ${words[i]} == -* ]] || line+=\"${line:+ }${words[i]}\"\n"
         "  done\n"
         "  while :; do\n"
         "    case $line in\n";
  for (const Place& place : Places(app)) {
    out << fmt::format("    ({})\n      choices=(\n", Quoted(place.words));
    for (const Choice& choice : place.choices) out << "        " << Described(choice) << "\n";
    out << "      ) ;;\n";
  }
  out << "    esac\n"
         "    [[ $#choices -gt 0 || $line != *' '* ]] && break\n"
         "    line=${line% *}\n"
         "  done\n"
         "  _describe -o 'terrace' choices || _files\n"
         "}\n"
         "if [[ ${funcstack[1]} == _terrace ]]; then _terrace \"$@\"; else compdef _terrace "
         "terrace; "
         "fi\n";
}

void WriteFishCompletion(const CLI::App& app, std::ostream& out) {
  const std::vector<Place> places = Places(app);
  out << "# Completion of terrace for fish: source it, or put it into\n"
         "# /usr/share/fish/vendor_completions.d/terrace.fish\n"
         "set -g __terrace_commands";
  for (const Place& place : places) {
    if (!place.words.empty()) out << " \\\n    " << Quoted(place.words, "\\'");
  }
  out << "\n"
         "# True if the words before the cursor name this command.\n"
         "function __terrace_at\n"
         "    set -l at\n"
         "    for word in (commandline -opc)[2..-1]\n"
         "        string match -q -- '-*' $word; and continue\n"
         "        set -l next (string join ' ' -- $at $word)\n"
         "        contains -- \"$next\" $__terrace_commands; or break\n"
         "        set at $next\n"
         "    end\n"
         "    test \"$at\" = \"$argv[1]\"\n"
         "end\n"
         "complete -c terrace -f\n";
  for (const Place& place : places) {
    const std::string at = fmt::format("complete -c terrace -n '__terrace_at \"{}\"'", place.words);
    if (!place.is_group) out << at << " -F\n";
    for (const Choice& choice : place.choices) {
      const bool option = choice.word.starts_with("--");
      out << at << (option ? " -l " : " -a ") << (option ? choice.word.substr(2) : choice.word)
          << (choice.takes_value ? " -r" : "") << " -d " << Quoted(Brief(choice.about), "\\'")
          << "\n";
    }
  }
}

}  // namespace terrace::cli
