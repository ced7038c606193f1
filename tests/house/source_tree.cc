#include "source_tree.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <regex>

namespace terrace::house {
namespace {

namespace fs = std::filesystem;

bool IsText(const fs::path& path) {
  static constexpr std::string_view kExtensions[] = {
      ".cc", ".h",  ".py", ".md", ".txt", ".cmake", ".json",  ".yaml",    ".yml",
      ".sh", ".cl", ".ts", ".js", ".css", ".html",  ".proto", ".service", ".toml"};
  static constexpr std::string_view kNames[] = {"LAYERS",     "dev",           "run",
                                                "Dockerfile", ".clang-format", ".clang-tidy"};
  std::string extension = path.extension(), name = path.filename();
  return std::find(std::begin(kExtensions), std::end(kExtensions), extension) !=
             std::end(kExtensions) ||
         std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

void AddFile(const fs::path& root, const fs::path& path, std::vector<SourceFile>& files) {
  std::ifstream in(path, std::ios::binary);
  SourceFile file;
  file.path = fs::relative(path, root).generic_string();
  file.text = std::string(std::istreambuf_iterator<char>(in), {});
  file.lines = SplitLines(file.text);
  if (file.IsCpp()) file.code_lines = SplitLines(BlankCommentsAndLiterals(file.text));
  files.push_back(std::move(file));
}

// Where the literal or comment that starts at `i` ends, or `i` if none starts there.
size_t EndOfBlank(std::string_view text, size_t i) {
  auto find = [&](std::string_view what, size_t from) {
    size_t at = text.find(what, from);
    return at == std::string_view::npos ? text.size() : at + what.size();
  };
  if (text.substr(i, 2) == "//") return find("\n", i) - 1;
  if (text.substr(i, 2) == "/*") return find("*/", i + 2);
  bool word_before =
      i > 0 && (std::isalnum(static_cast<unsigned char>(text[i - 1])) || text[i - 1] == '_');
  if (text.substr(i, 2) == "R\"" && !word_before) {
    size_t open = text.find('(', i);
    if (open == std::string_view::npos) return text.size();
    return find(")" + std::string(text.substr(i + 2, open - i - 2)) + "\"", open);
  }
  if (text[i] == '"' || (text[i] == '\'' && !word_before)) {
    size_t end = i + 1;
    while (end < text.size() && text[end] != text[i] && text[end] != '\n') {
      end += text[end] == '\\' ? 2 : 1;
    }
    return std::min(end + 1, text.size());
  }
  return i;
}

// Preprocessor lines, with their continuations, as blanks.
std::string BlankPreprocessor(std::string_view code) {
  std::string out;
  bool inside = false;
  for (const std::string& line : SplitLines(code)) {
    size_t first = line.find_first_not_of(' ');
    inside = inside || (first != std::string::npos && line[first] == '#');
    out += inside ? "\n" : line + "\n";
    inside = inside && line.ends_with('\\');
  }
  return out;
}

enum class Scope { kNamespace, kClass, kFunction, kOther };

Scope ScopeOf(const std::string& head) {
  static const std::regex kNamespace(R"(^\s*(inline\s+)?namespace\b|^\s*extern\s*$)");
  static const std::regex kClass(R"(\b(class|struct|union|enum)\b[^(]*$)");
  static const std::regex kMacroClass(R"(^\s*(template\s*<.*>\s*)?(class|struct)\b)");
  if (std::regex_search(head, kNamespace)) return Scope::kNamespace;
  if (std::regex_search(head, kMacroClass) || std::regex_search(head, kClass)) return Scope::kClass;
  size_t open = head.find('('), equals = head.find('=');
  bool is_operator = head.find("operator") < open;
  if (open != std::string::npos && (equals == std::string::npos || equals > open || is_operator)) {
    return Scope::kFunction;
  }
  return Scope::kOther;
}

std::string NameOf(const std::string& head) {
  static const std::regex kName(R"(([~\w:]+|operator[^\s(]+)\s*\()");
  std::smatch match;
  return std::regex_search(head, match, kName) ? match[1].str() : "?";
}

bool IsMutableVariable(const std::string& statement) {
  static const std::regex kOther(
      "^\\s*$|\\bconst\\b|\\bconstexpr\\b|\\brequires\\b|\\boperator\\b|"
      "^\\s*(using|typedef|template|class|struct|enum|union|friend|extern|namespace|static_assert|"
      "concept)\\b");
  static const std::regex kVariable(R"(^\s*[\w:<>,\s*&]+[\s*&]\w+\s*(\[[^\]]*\]\s*)*(=|$|\{))");
  if (std::regex_search(statement, kOther)) return false;
  return std::regex_search(statement, kVariable);
}

}  // namespace

std::vector<std::string> SplitLines(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    size_t end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

std::string BlankCommentsAndLiterals(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    size_t end = EndOfBlank(text, i);
    if (end == i) {
      out += text[i++];
      continue;
    }
    for (; i < end; ++i) out += text[i] == '\n' ? '\n' : ' ';
  }
  return out;
}

Outline OutlineOf(std::string_view code) {
  static const std::regex kAccess(R"(^\s*(public|protected|private)\s*:$)");
  Outline outline;
  struct Open {
    Scope scope;
    std::string head;
    int line;
  };
  std::vector<Open> stack;
  std::string head;  // The statement so far, at namespace or class scope.
  int line = 1, head_line = 1;
  auto inside_code = [&] {
    return !stack.empty() &&
           (stack.back().scope == Scope::kFunction || stack.back().scope == Scope::kOther);
  };
  for (char c : BlankPreprocessor(code)) {
    if (c == '{') {
      Scope scope = inside_code() ? Scope::kOther : ScopeOf(head);
      stack.push_back({scope, head, head_line});
      if (scope != Scope::kOther) head.clear();
    } else if (c == '}' && !stack.empty()) {
      Open open = stack.back();
      stack.pop_back();
      if (open.scope == Scope::kFunction) {
        outline.functions.push_back({NameOf(open.head), open.line, line - open.line + 1});
      }
      if (!inside_code()) head = open.scope == Scope::kOther ? open.head + "{}" : "";
    } else if (c == ';' && !inside_code()) {
      bool at_namespace = stack.empty() || stack.back().scope == Scope::kNamespace;
      if (at_namespace && IsMutableVariable(head)) {
        outline.mutable_variables.push_back({head, head_line});
      }
      head.clear();
    } else if (!inside_code()) {
      if (head.find_first_not_of(" \n") == std::string::npos) head_line = line;
      head += c == '\n' ? ' ' : c;
      if (c == ':' && std::regex_search(head, kAccess)) head.clear();
    }
    if (c == '\n') ++line;
  }
  return outline;
}

std::vector<SourceFile> ReadTree(const fs::path& root) {
  std::vector<SourceFile> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(root)) {
    if (entry.is_regular_file() && IsText(entry.path())) AddFile(root, entry.path(), files);
  }
  for (const char* folder :
       {"src", "tests", "bench", "scripts", "cmake", "docs", "deploy", "web"}) {
    if (!fs::is_directory(root / folder)) continue;
    for (auto it = fs::recursive_directory_iterator(root / folder);
         it != fs::recursive_directory_iterator(); ++it) {
      std::string name = it->path().filename();
      if (it->is_directory() && (name == "data" || name == "corpus" || name == "node_modules" ||
                                 name == "__pycache__" || name == "dist")) {
        it.disable_recursion_pending();
      } else if (it->is_regular_file() && IsText(it->path())) {
        AddFile(root, it->path(), files);
      }
    }
  }
  std::sort(files.begin(), files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  return files;
}

}  // namespace terrace::house
