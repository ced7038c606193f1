// The token cursor and the expression half of the parser. Parser (parser.cc) adds the statements.
#ifndef TERRACE_TEXT_JINJA_EXPR_PARSER_H_
#define TERRACE_TEXT_JINJA_EXPR_PARSER_H_

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"
#include "text/jinja/parser.h"
#include "text/jinja/runtime.h"

namespace terrace::jinja {

// `token` as an error message names it.
std::string Describe(const Token& token);

class ExprParser {
 protected:
  ExprParser(std::string_view source, const ParserOptions& options)
      : options_(options), tokens_(Tokenize(source, options.lexer)) {}

  class DepthGuard {
   public:
    explicit DepthGuard(ExprParser* parser) : parser_(parser) {
      parser_->CheckDepth(++parser_->depth_);
    }
    ~DepthGuard() { --parser_->depth_; }
    DepthGuard(const DepthGuard&) = delete;
    DepthGuard& operator=(const DepthGuard&) = delete;

   private:
    ExprParser* const parser_;
  };

  void CheckDepth(int depth) const {
    if (depth > options_.max_depth) {
      throw Error{
          absl::StatusCode::kResourceExhausted,
          fmt::format("the template is nested more than {} levels deep", options_.max_depth),
          Peek().line};
    }
  }

  [[noreturn]] void FailAt(int line, std::string message) const {
    throw Error{absl::StatusCode::kInvalidArgument, std::move(message), line};
  }
  [[noreturn]] void FailUnexpected(std::string_view wanted) const {
    FailAt(Peek().line, fmt::format("expected {}, got {}", wanted, Describe(Peek())));
  }

  // --- tokens ---
  const Token& Peek(size_t ahead = 0) const {
    return tokens_[std::min(next_ + ahead, tokens_.size() - 1)];
  }
  const Token& Next() {
    const Token& token = Peek();
    if (next_ + 1 < tokens_.size()) ++next_;
    return token;
  }
  bool At(TokenKind kind) const { return Peek().kind == kind; }
  bool AtOp(std::string_view op, size_t ahead = 0) const {
    return Peek(ahead).kind == TokenKind::kOperator && Peek(ahead).text == op;
  }
  bool AtName(std::string_view name, size_t ahead = 0) const {
    return Peek(ahead).kind == TokenKind::kName && Peek(ahead).text == name;
  }
  bool SkipOp(std::string_view op) {
    if (!AtOp(op)) return false;
    Next();
    return true;
  }
  bool SkipName(std::string_view name) {
    if (!AtName(name)) return false;
    Next();
    return true;
  }
  void ExpectOp(std::string_view op) {
    if (!SkipOp(op)) FailUnexpected(fmt::format("'{}'", op));
  }
  std::string ExpectName() {
    if (!At(TokenKind::kName)) FailUnexpected("a name");
    return Next().text;
  }
  void ExpectBlockEnd() {
    if (!At(TokenKind::kBlockEnd)) FailUnexpected("'%}'");
    Next();
  }

  int Symbol(const std::string& name) {
    const auto [it, added] = symbols_.emplace(name, static_cast<int>(symbol_names_.size()));
    if (added) symbol_names_.push_back(name);
    return it->second;
  }

  // --- nodes ---
  ExprPtr NewExpr(ExprKind kind, int line) const {
    auto expr = std::make_unique<Expr>();
    expr->kind = kind;
    expr->line = line;
    return expr;
  }
  void AddKid(Expr* parent, ExprPtr kid) const {
    if (kid != nullptr) Deepen(parent, *kid);
    parent->kids.push_back(std::move(kid));
  }
  void Deepen(Expr* parent, const Expr& kid) const {
    parent->depth = std::max(parent->depth, kid.depth + 1);
    CheckDepth(parent->depth);
  }
  ExprPtr Unary(ExprKind kind, int line, ExprPtr kid) const {
    ExprPtr expr = NewExpr(kind, line);
    AddKid(expr.get(), std::move(kid));
    return expr;
  }
  ExprPtr Const(Value value, int line) const {
    ExprPtr expr = NewExpr(ExprKind::kConst, line);
    expr->value = std::move(value);
    return expr;
  }

  ExprPtr NameExpr(const std::string& name, int line) {
    ExprPtr expr = NewExpr(ExprKind::kName, line);
    expr->symbol = Symbol(name);
    expr->value = Undefined{std::make_shared<const std::string>(name), {}};
    for (MacroDef* macro : macros_) {
      macro->uses_varargs |= name == "varargs";
      macro->uses_kwargs |= name == "kwargs";
      macro->uses_caller |= name == "caller";
    }
    return expr;
  }

  // --- expressions, loosest first; all throw Error ---
  ExprPtr ParseExpression();
  ExprPtr ParseOr();
  ExprPtr ParseAnd();
  ExprPtr ParseNot();
  bool NextCompareOp(Op* op);
  ExprPtr ParseCompare();
  ExprPtr Binary(Op op, ExprPtr left, ExprPtr right) const;
  ExprPtr ParseSum();
  ExprPtr ParseConcat();
  ExprPtr ParseProduct();
  ExprPtr ParsePower();
  ExprPtr ParseUnary(bool with_filters);
  ExprPtr ParsePrimary();
  bool AtTupleEnd() const;
  ExprPtr ParseTuple(bool explicit_parens, bool with_cond);
  ExprPtr ParseListRest(int line);
  ExprPtr ParseDictRest(int line);
  ExprPtr ParsePostfix(ExprPtr expr);
  ExprPtr ParseAttribute(ExprPtr object);
  ExprPtr ParseSubscript(ExprPtr object);
  ExprPtr ParseCall(ExprPtr callee);
  void ParseArgs(Expr* owner);
  std::string ParseDottedName();
  ExprPtr ParseFilters(ExprPtr input, bool at_name = false);
  ExprPtr ParseFilterExpr(ExprPtr expr);
  bool AtTestArgument() const;
  ExprPtr ParseTest(ExprPtr input);

  const ParserOptions options_;
  const std::vector<Token> tokens_;
  size_t next_ = 0;
  int depth_ = 0;
  std::vector<MacroDef*> macros_;  // That are being parsed, outermost first.
  std::unordered_map<std::string, int> symbols_;
  std::vector<std::string> symbol_names_;
};

}  // namespace terrace::jinja

#endif  // TERRACE_TEXT_JINJA_EXPR_PARSER_H_
