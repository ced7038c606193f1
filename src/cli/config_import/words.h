// Reading the forms that other servers' configurations come in: command lines as a shell takes
// them, INI files, text of protocol buffers.
#ifndef TERRACE_CLI_CONFIG_IMPORT_WORDS_H_
#define TERRACE_CLI_CONFIG_IMPORT_WORDS_H_

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/config_import/imported.h"

namespace terrace::cli {

// A file of at most 4 MiB.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path);

// A whole number of at most nine digits without a sign.
std::optional<int> WholeNumber(std::string_view text);

// The words of a command line: quotes, backslashes and lines that go on as in a shell, without
// substitutions. InvalidArgument for a quote that does not end.
absl::StatusOr<std::vector<std::string>> ShellWords(std::string_view text);

// A command with the variables set before it.
struct CommandLine {
  std::vector<Setting> variables;
  std::vector<std::string> words;  // from the program on
  // What stands before the program (docker run ..., sudo) and behind its arguments (> log).
  std::vector<Setting> around;
  std::string where;
};
// The command in a script, a unit file (ExecStart=, Environment=) or a single line whose program
// is one of `programs`, as the end of its path; `python -m MODULE` counts by its module, and an
// image of a container as what its name begins with. `vllm` and `ollama` do other things, too, and
// count with `serve` behind them. NotFound if there is none.
absl::StatusOr<CommandLine> FindCommand(std::string_view text, const std::string& where,
                                        const std::vector<std::string>& programs);

// Options of a command: --name=value, --name value, -n value; their names without dashes.
// `switches` take no value, `lists` all words up to the next option (given once for each). What is
// no option is named "".
std::vector<Setting> ParseOptions(const std::vector<std::string>& words, const std::string& where,
                                  const std::set<std::string, std::less<>>& switches,
                                  const std::set<std::string, std::less<>>& lists);

struct IniSection {
  std::string name;  // empty: before the first
  std::vector<Setting> settings;
};
// Lines of `key = value` in [sections]; # and ; begin comments. InvalidArgument names the line of
// anything else.
absl::StatusOr<std::vector<IniSection>> ParseIni(std::string_view text, const std::string& where);

// A field of a message in the text form of protocol buffers.
struct TextField {
  std::string name;
  std::string value;              // of a scalar, without quotes
  std::vector<TextField> fields;  // of a message
  bool is_message = false;
  int line = 0;
};
// Lists are repeated fields. InvalidArgument names the line.
absl::StatusOr<std::vector<TextField>> ParseProtoText(std::string_view text);

}  // namespace terrace::cli

#endif  // TERRACE_CLI_CONFIG_IMPORT_WORDS_H_
