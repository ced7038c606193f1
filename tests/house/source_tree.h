// What the house rules look at: the project's own text files, C++ without its comments and strings,
// and the functions and variables of a C++ file. A reader of formatted code, not a parser of C++.
#ifndef TERRACE_HOUSE_SOURCE_TREE_H_
#define TERRACE_HOUSE_SOURCE_TREE_H_

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace terrace::house {

struct SourceFile {
  std::string path;  // Relative to the project, with '/'.
  std::string text;
  std::vector<std::string> lines;  // Of `text`, without line ends.
  std::vector<std::string>
      code_lines;  // The same lines; comments and literals are blanks (C++ only).

  bool IsCpp() const { return path.ends_with(".cc") || path.ends_with(".h"); }
  bool In(std::string_view folder) const { return path.starts_with(folder); }
};

// All text files below src, tests (without data), bench, scripts, cmake, docs, deploy and web, and
// the ones at the top, ordered by path.
std::vector<SourceFile> ReadTree(const std::filesystem::path& root);

// `text` with comments, string and character literals replaced by blanks; line ends stay.
std::string BlankCommentsAndLiterals(std::string_view text);

struct Function {
  std::string name;  // What stands before the parameter list.
  int line = 0;      // Of the name, from 1.
  int length = 0;    // Lines from there to the closing brace.
};
struct Variable {
  std::string declaration;
  int line = 0;
};
struct Outline {
  std::vector<Function> functions;          // At namespace or class scope.
  std::vector<Variable> mutable_variables;  // At namespace scope, not constant.
};
// `code` is the result of BlankCommentsAndLiterals.
Outline OutlineOf(std::string_view code);

std::vector<std::string> SplitLines(std::string_view text);

}  // namespace terrace::house

#endif  // TERRACE_HOUSE_SOURCE_TREE_H_
