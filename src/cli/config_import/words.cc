#include "cli/config_import/words.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <fstream>
#include <iterator>

#include "base/status.h"
#include "base/text.h"

namespace terrace::cli {
namespace {

bool IsNegativeNumber(std::string_view word) {
  return word.size() > 1 && word[0] == '-' && (std::isdigit(word[1]) != 0 || word[1] == '.');
}

bool IsOption(std::string_view word) {
  return word.size() > 1 && word[0] == '-' && !IsNegativeNumber(word);
}

// NAME=value, with a name as variables have it.
bool IsAssignment(std::string_view word) {
  const size_t equals = word.find('=');
  if (equals == std::string_view::npos || equals == 0) return false;
  return std::all_of(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(equals), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
  });
}

Setting Assignment(std::string_view word, const std::string& where) {
  const size_t equals = word.find('=');
  return {std::string(word.substr(0, equals)), std::string(word.substr(equals + 1)), where};
}

// Takes one word's text from `at` on, or a quoted part of it. False: a quote does not end.
bool TakeQuoted(std::string_view text, size_t* at, std::string* word) {
  const char quote = text[(*at)++];
  for (; *at < text.size(); ++*at) {
    const char c = text[*at];
    if (c == quote) {
      ++*at;
      return true;
    }
    if (c == '\\' && quote == '"' && *at + 1 < text.size() &&
        std::string_view("\"\\$`\n").find(text[*at + 1]) != std::string_view::npos) {
      ++*at;
      if (text[*at] == '\n') continue;
    }
    word->push_back(text[*at]);
  }
  return false;
}

// Lines with those that a backslash joins made one; each with the number of its first.
std::vector<std::pair<int, std::string>> JoinedLines(std::string_view text) {
  std::vector<std::pair<int, std::string>> out;
  int number = 0;
  bool goes_on = false;
  for (std::string_view line : Split(text, '\n')) {
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    const bool more = line.ends_with('\\');
    if (more) line.remove_suffix(1);
    if (goes_on) {
      out.back().second += fmt::format(" {}", line);
    } else {
      out.emplace_back(number, line);
    }
    goes_on = more;
  }
  return out;
}

// Where in `words` the program begins; their number if none of them is it.
size_t ProgramAt(const std::vector<std::string>& words, const std::vector<std::string>& programs) {
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string name = words[i].substr(words[i].rfind('/') + 1);
    const bool module = i > 0 && words[i - 1] == "-m";
    for (const std::string& program : programs) {
      const bool image = program.find(':') != std::string::npos && name.starts_with(program);
      if (name != program && !image && !(module && words[i] == program)) continue;
      const bool serves = i + 1 < words.size() && words[i + 1] == "serve";
      if ((program == "vllm" || program == "ollama") && !serves) continue;
      return i;
    }
  }
  return words.size();
}

std::string Joined(const std::vector<std::string>& words, size_t begin, size_t end) {
  std::string out;
  for (size_t i = begin; i < end; ++i) out += (out.empty() ? "" : " ") + words[i];
  return out;
}

}  // namespace

absl::StatusOr<std::string> ReadSmallFile(const std::string& path) {
  constexpr size_t kMost = 4 << 20;
  std::ifstream in(path, std::ios::binary);
  if (!in) return ErrnoStatus(errno, fmt::format("opening {}", path));
  std::string text(std::istreambuf_iterator<char>(in), {});
  if (in.bad()) return ErrnoStatus(errno, fmt::format("reading {}", path));
  if (text.size() > kMost)
    return absl::InvalidArgumentError(path + " is no configuration: too long");
  return text;
}

std::optional<int> WholeNumber(std::string_view text) {
  int number = 0;
  if (text.empty() || text.size() > 9 || std::isdigit(static_cast<unsigned char>(text[0])) == 0) {
    return std::nullopt;
  }
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

absl::StatusOr<std::vector<std::string>> ShellWords(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  bool open = false;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '\\' && at + 1 < text.size()) {
      if (text[at + 1] != '\n') word.push_back(text[at + 1]), open = true;
      at += 2;
    } else if (c == '\'' || c == '"') {
      open = true;
      if (!TakeQuoted(text, &at, &word)) {
        return absl::InvalidArgumentError(fmt::format("a quote {} does not end", c));
      }
    } else if (std::isspace(static_cast<unsigned char>(c)) != 0) {
      if (open) words.push_back(std::move(word));
      word.clear();
      open = false;
      ++at;
    } else if (c == '#' && !open) {
      while (at < text.size() && text[at] != '\n') ++at;
    } else {
      word.push_back(c);
      open = true;
      ++at;
    }
  }
  if (open) words.push_back(std::move(word));
  return words;
}

absl::StatusOr<CommandLine> FindCommand(std::string_view text, const std::string& where,
                                        const std::vector<std::string>& programs) {
  CommandLine found;
  for (const auto& [number, line] : JoinedLines(text)) {
    std::string_view rest = StripSpace(line);
    const std::string place = fmt::format("{}:{}", where, number);
    for (std::string_view prefix : {"ExecStart=", "Environment=", "export ", "exec "}) {
      if (rest.starts_with(prefix)) rest.remove_prefix(prefix.size());
    }
    absl::StatusOr<std::vector<std::string>> words = ShellWords(rest);
    if (!words.ok()) return WithContext(words.status(), place);
    size_t first = 0;
    std::vector<Setting> variables;
    for (; first < words->size() && IsAssignment((*words)[first]); ++first) {
      variables.push_back(Assignment((*words)[first], place));
    }
    const size_t program = ProgramAt(*words, programs);
    // Variables alone on their line hold for the command below; those before another command do
    // not.
    if (program < words->size() || first == words->size()) {
      found.variables.insert(found.variables.end(), variables.begin(), variables.end());
    }
    if (program == words->size()) continue;
    found.words.assign(words->begin() + static_cast<std::ptrdiff_t>(program), words->end());
    found.where = place;
    // What a shell does with a command's end is no argument of it.
    const auto end = std::find_if(found.words.begin(), found.words.end(), [](const auto& word) {
      return word == "&" || word == "&&" || word == "|" || word == ";" || word.starts_with('>') ||
             word.starts_with("2>");
    });
    if (program > first) {
      found.around.push_back({"before", Joined(*words, first, program), place});
    }
    if (end != found.words.end()) {
      const auto kept = static_cast<size_t>(end - found.words.begin());
      found.around.push_back({"behind", Joined(found.words, kept, found.words.size()), place});
    }
    found.words.erase(end, found.words.end());
    return found;
  }
  return absl::NotFoundError(where + " has no command that is known here");
}

std::vector<Setting> ParseOptions(const std::vector<std::string>& words, const std::string& where,
                                  const std::set<std::string, std::less<>>& switches,
                                  const std::set<std::string, std::less<>>& lists) {
  std::vector<Setting> out;
  for (size_t i = 0; i < words.size(); ++i) {
    if (!IsOption(words[i])) {
      out.push_back({"", words[i], where});
      continue;
    }
    std::string name = words[i].substr(words[i].find_first_not_of('-'));
    const size_t equals = name.find('=');
    if (equals != std::string::npos) {
      out.push_back({name.substr(0, equals), name.substr(equals + 1), where});
      continue;
    }
    const bool has_value = i + 1 < words.size() && !IsOption(words[i + 1]);
    if (switches.contains(name) || !has_value) {
      out.push_back({name, "", where});
      continue;
    }
    out.push_back({name, words[++i], where});
    while (lists.contains(name) && i + 1 < words.size() && !IsOption(words[i + 1])) {
      out.push_back({name, words[++i], where});
    }
  }
  return out;
}

absl::StatusOr<std::vector<IniSection>> ParseIni(std::string_view text, const std::string& where) {
  std::vector<IniSection> sections(1);
  int number = 0;
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  for (std::string_view line : Split(text, '\n')) {
    ++number;
    line = StripSpace(line);
    const std::string place = fmt::format("{}:{}", where, number);
    if (line.empty() || line[0] == '#' || line[0] == ';') continue;
    if (line[0] == '[') {
      if (line.back() != ']') {
        return absl::InvalidArgumentError(place + ": a section's name ends with ]");
      }
      sections.push_back({std::string(StripSpace(line.substr(1, line.size() - 2))), {}});
      continue;
    }
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      return absl::InvalidArgumentError(place + ": neither a [section] nor key = value");
    }
    std::string_view value = StripSpace(line.substr(equals + 1));
    if (value.size() > 1 && (value[0] == '"' || value[0] == '\'') && value.back() == value[0]) {
      value = value.substr(1, value.size() - 2);
    }
    sections.back().settings.push_back(
        {std::string(StripSpace(line.substr(0, equals))), std::string(value), place});
  }
  return sections;
}

}  // namespace terrace::cli
