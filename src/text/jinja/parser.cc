#include "text/jinja/parser.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>

#include <fmt/format.h>

#include "text/jinja/expr_parser.h"

namespace terrace::jinja {
namespace {

using EndTags = std::initializer_list<std::string_view>;

class Parser : private ExprParser {
 public:
  Parser(std::string_view source, const ParserOptions& options) : ExprParser(source, options) {}

  Ast Run() {
    Ast ast;
    ast.body = ParseBody({});
    ast.symbols = std::move(symbol_names_);
    return ast;
  }

 private:
  // Statements up to a tag of `ends`, which is left at its name; up to the end if there are none.
  Body ParseBody(EndTags ends) {
    const DepthGuard guard(this);
    Body body;
    const int begin_line = open_line_;
    while (true) {
      const Token& token = Peek();
      if (token.kind == TokenKind::kEnd) {
        if (ends.size() == 0) return body;
        FailAt(begin_line, fmt::format("the template ends before the tag '{}' that closes this",
                                       std::data(ends)[ends.size() - 1]));
      }
      if (token.kind == TokenKind::kData) {
        StmtPtr stmt = NewStmt(StmtKind::kText);
        stmt->text = Str(token.text, /*trusted=*/true);
        body.push_back(std::move(stmt));
        Next();
      } else if (token.kind == TokenKind::kVariableBegin) {
        Next();
        StmtPtr stmt = NewStmt(StmtKind::kOutput);
        stmt->expr = ParseTuple(/*explicit_parens=*/false, /*with_cond=*/true);
        if (!At(TokenKind::kVariableEnd)) FailUnexpected("'}}'");
        Next();
        body.push_back(std::move(stmt));
      } else {
        Next();  // kBlockBegin
        if (AtAnyName(ends)) return body;
        body.push_back(ParseStatement());
        ExpectBlockEnd();
      }
    }
  }

  bool AtAnyName(EndTags names) const {
    return At(TokenKind::kName) &&
           std::find(names.begin(), names.end(), Peek().text) != names.end();
  }

  // A body that one tag closes; consumes the tag's name.
  Body ParseBlock(std::string_view end) {
    ExpectBlockEnd();
    Body body = ParseBody({end});
    Next();
    return body;
  }

  StmtPtr NewStmt(StmtKind kind) const {
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = kind;
    stmt->line = Peek().line;
    return stmt;
  }

  StmtPtr ParseStatement() {
    const int outer = std::exchange(open_line_, Peek().line);
    StmtPtr stmt = ParseTag();
    open_line_ = outer;
    return stmt;
  }

  StmtPtr ParseTag() {
    if (!At(TokenKind::kName)) FailUnexpected("a tag name");
    const std::string& tag = Peek().text;
    if (tag == "if") return ParseIf();
    if (tag == "for") return ParseFor();
    if (tag == "set") return ParseSet();
    if (tag == "macro") return ParseMacro();
    if (tag == "call") return ParseCallBlock();
    if (tag == "filter") return ParseFilterBlock();
    if (tag == "with") return ParseWith();
    if (tag == "break" || tag == "continue") return ParseLoopControl(tag == "break");
    if (tag == "block") return ParseNamedBlock();
    if (tag == "generation" && options_.generation_tag) return ParseGeneration();
    FailAt(Peek().line, fmt::format("unknown tag '{}'", tag.substr(0, 80)));
  }

  StmtPtr ParseIf() {
    StmtPtr stmt = NewStmt(StmtKind::kIf);
    Next();
    while (true) {
      Branch branch;
      branch.condition = ParseTuple(/*explicit_parens=*/false, /*with_cond=*/false);
      ExpectBlockEnd();
      branch.body = ParseBody({"elif", "else", "endif"});
      stmt->branches.push_back(std::move(branch));
      const std::string tag = Next().text;
      if (tag == "elif") continue;
      if (tag == "else") stmt->other = ParseBlock("endif");
      return stmt;
    }
  }

  StmtPtr ParseFor() {
    StmtPtr stmt = NewStmt(StmtKind::kFor);
    Next();
    stmt->target = ParseTarget(/*with_attr=*/false);
    if (!SkipName("in")) FailUnexpected("'in'");
    stmt->expr = ParseTuple(/*explicit_parens=*/false, /*with_cond=*/false);
    if (SkipName("if")) stmt->test = ParseExpression();
    stmt->recursive = SkipName("recursive");
    ExpectBlockEnd();
    ++loops_;
    stmt->body = ParseBody({"else", "endfor"});
    --loops_;
    if (Next().text == "else") stmt->other = ParseBlock("endfor");
    Symbol("loop");
    return stmt;
  }

  StmtPtr ParseLoopControl(bool is_break) {
    StmtPtr stmt = NewStmt(is_break ? StmtKind::kBreak : StmtKind::kContinue);
    Next();
    if (loops_ == 0) {
      FailAt(stmt->line, fmt::format("'{}' outside a loop", is_break ? "break" : "continue"));
    }
    return stmt;
  }

  StmtPtr ParseSet() {
    StmtPtr stmt = NewStmt(StmtKind::kSet);
    Next();
    stmt->target = ParseTarget(/*with_attr=*/true);
    if (SkipOp("=")) {
      stmt->expr = ParseTuple(/*explicit_parens=*/false, /*with_cond=*/true);
      return stmt;
    }
    stmt->kind = StmtKind::kSetBlock;
    if (AtOp("|")) stmt->expr = ParseFilters(nullptr);
    stmt->body = ParseBlock("endset");
    return stmt;
  }

  StmtPtr ParseMacro() {
    StmtPtr stmt = NewStmt(StmtKind::kMacro);
    Next();
    stmt->macro = std::make_unique<MacroDef>();
    stmt->macro->name = ExpectName();
    stmt->target.symbol = Symbol(stmt->macro->name);
    if (!AtOp("(")) FailUnexpected("'('");
    ParseParameters(stmt->macro.get());
    ParseMacroBody(stmt->macro.get(), "endmacro");
    return stmt;
  }

  void ParseParameters(MacroDef* macro) {
    ExpectOp("(");
    while (!AtOp(")")) {
      if (!macro->parameters.empty()) {
        ExpectOp(",");
        if (AtOp(")")) break;
      }
      const int line = Peek().line;
      const std::string name = ExpectName();
      macro->parameters.push_back(Symbol(name));
      macro->parameter_names.push_back(name);
      if (SkipOp("=")) {
        macro->defaults.push_back(ParseExpression());
      } else if (!macro->defaults.empty()) {
        FailAt(line, "a parameter without a default follows one with a default");
      }
    }
    Next();
  }

  void ParseMacroBody(MacroDef* macro, std::string_view end) {
    macros_.push_back(macro);
    const int loops = std::exchange(loops_, 0);
    macro->body = ParseBlock(end);
    loops_ = loops;
    macros_.pop_back();
    for (const char* name : {"varargs", "kwargs", "caller"}) Symbol(name);
  }

  StmtPtr ParseCallBlock() {
    StmtPtr stmt = NewStmt(StmtKind::kCallBlock);
    Next();
    stmt->macro = std::make_unique<MacroDef>();
    stmt->macro->name = "caller";
    if (AtOp("(")) ParseParameters(stmt->macro.get());
    stmt->expr = ParseExpression();
    if (stmt->expr->kind != ExprKind::kCall) FailAt(stmt->line, "'call' needs a call");
    ParseMacroBody(stmt->macro.get(), "endcall");
    return stmt;
  }

  StmtPtr ParseFilterBlock() {
    StmtPtr stmt = NewStmt(StmtKind::kFilterBlock);
    Next();
    stmt->expr = ParseFilters(nullptr, /*at_name=*/true);
    stmt->body = ParseBlock("endfilter");
    return stmt;
  }

  StmtPtr ParseWith() {
    StmtPtr stmt = NewStmt(StmtKind::kWith);
    Next();
    while (!At(TokenKind::kBlockEnd)) {
      if (!stmt->targets.empty()) ExpectOp(",");
      stmt->targets.push_back(ParseTarget(/*with_attr=*/false));
      ExpectOp("=");
      stmt->values.push_back(ParseExpression());
    }
    stmt->body = ParseBlock("endwith");
    return stmt;
  }

  StmtPtr ParseNamedBlock() {
    StmtPtr stmt = NewStmt(StmtKind::kScope);
    Next();
    ExpectName();
    while (AtName("scoped") || AtName("required")) Next();
    stmt->body = ParseBlock("endblock");
    if (At(TokenKind::kName)) Next();
    return stmt;
  }

  StmtPtr ParseGeneration() {
    StmtPtr stmt = NewStmt(StmtKind::kScope);
    Next();
    stmt->body = ParseBlock("endgeneration");
    return stmt;
  }

  Target ParseTargetPart(bool with_attr) {
    const DepthGuard guard(this);
    if (SkipOp("(")) {
      Target target = ParseTarget(with_attr);
      ExpectOp(")");
      return target;
    }
    Target target;
    target.line = Peek().line;
    target.name = ExpectName();
    constexpr std::array<std::string_view, 6> kConstants = {"true", "false", "none",
                                                            "True", "False", "None"};
    if (std::find(kConstants.begin(), kConstants.end(), target.name) != kConstants.end()) {
      FailAt(target.line, fmt::format("can't assign to '{}'", target.name));
    }
    target.symbol = Symbol(target.name);
    if (with_attr && SkipOp(".")) {
      target.kind = Target::Kind::kAttr;
      target.attr = ExpectName();
    }
    return target;
  }

  Target ParseTarget(bool with_attr) {
    Target first = ParseTargetPart(with_attr);
    if (!AtOp(",")) return first;
    Target tuple;
    tuple.kind = Target::Kind::kTuple;
    tuple.line = first.line;
    tuple.parts.push_back(std::move(first));
    while (SkipOp(",")) {
      if (AtOp("=") || AtOp(")") || AtName("in")) break;
      tuple.parts.push_back(ParseTargetPart(with_attr));
    }
    return tuple;
  }

  int open_line_ = 1;  // Of the tag whose body is being parsed.
  int loops_ = 0;      // That enclose what is being parsed.
};

}  // namespace

Ast Parse(std::string_view source, const ParserOptions& options) {
  return Parser(source, options).Run();
}

}  // namespace terrace::jinja
