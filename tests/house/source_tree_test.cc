// The house rules rest on this reader, so it is tested on code that is meant to fool it.
#include "source_tree.h"

#include <gtest/gtest.h>

namespace terrace::house {
namespace {

TEST(SourceTree, CommentsAndLiteralsAreBlankedAndLinesKept) {
  std::string code =
      "int a; // rand(\nauto s = \"rand( \\\" \"; char c = '\"';\n/* rand(\n */ int b = 1'000;\n"
      "auto r = R\"x(rand( \" )\" )x\"; int d;";
  std::string blank = BlankCommentsAndLiterals(code);
  EXPECT_EQ(blank.size(), code.size());
  EXPECT_EQ(SplitLines(blank).size(), SplitLines(code).size());
  EXPECT_EQ(blank.find("rand"), std::string::npos);
  for (const char* kept : {"int a;", "char c =", "int b = 1'000;", "int d;"}) {
    EXPECT_NE(blank.find(kept), std::string::npos) << kept << "\n" << blank;
  }
}

TEST(SourceTree, FunctionsAreMeasuredFromTheirNameToTheirBrace) {
  Outline outline = OutlineOf(
      "namespace n {\nclass C {\n public:\n  int Get() const {\n    return 1;\n  }\n};\n"
      "void Long(int a,\n          int b) {\n  auto f = [&](int x) {\n    return x;\n  };\n  if "
      "(a) {\n  }\n}\n"
      "}  \n#define M(x) {\n");
  ASSERT_EQ(outline.functions.size(), 2u);
  EXPECT_EQ(outline.functions[0].name, "Get");
  EXPECT_EQ(outline.functions[0].length, 3);
  EXPECT_EQ(outline.functions[1].name, "Long");
  EXPECT_EQ(outline.functions[1].line, 8);
  EXPECT_EQ(outline.functions[1].length, 8);
}

TEST(SourceTree, OnlyMutableVariablesAtNamespaceScopeAreReported) {
  Outline outline = OutlineOf(
      "using X = int;\nconstexpr int kA = 1;\nconst char* const kNames[] = {a, b};\nint F(int x);\n"
      "struct S {\n  int member = 0;\n};\nnamespace {\nstd::map<int, int> cache;\nint counter = "
      "0;\n"
      "static int table[] = {1, 2};\nthread_local X slot{3};\n}\nvoid G() { int local = 0; local = "
      "1; }\n"
      "template <typename T> bool kIs = false;\nextern int other;\nenum class E { kA, kB };\n");
  ASSERT_EQ(outline.mutable_variables.size(), 4u);
  EXPECT_EQ(outline.mutable_variables[0].line, 9);
  EXPECT_EQ(outline.mutable_variables[1].line, 10);
  EXPECT_EQ(outline.mutable_variables[2].line, 11);
  EXPECT_EQ(outline.mutable_variables[3].line, 12);
}

}  // namespace
}  // namespace terrace::house
