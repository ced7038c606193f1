#include "text/jinja/parser.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "text/jinja/runtime.h"

namespace terrace::jinja {
namespace {

using EndTags = std::initializer_list<std::string_view>;

std::string Describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kData: return "template text";
    case TokenKind::kVariableBegin: return "'{{'";
    case TokenKind::kVariableEnd: return "'}}'";
    case TokenKind::kBlockBegin: return "'{%'";
    case TokenKind::kBlockEnd: return "'%}'";
    case TokenKind::kString: return "a string";
    case TokenKind::kEnd: return "the end of the template";
    default: return fmt::format("'{}'", token.text.substr(0, 80));
  }
}

class Parser {
 public:
  Parser(std::string_view source, const ParserOptions& options)
      : options_(options), tokens_(Tokenize(source, options.lexer)) {}

  Ast Run() {
    Ast ast;
    ast.body = ParseBody({});
    ast.symbols = std::move(symbol_names_);
    return ast;
  }

 private:
  class DepthGuard {
   public:
    explicit DepthGuard(Parser* parser) : parser_(parser) {
      parser_->CheckDepth(++parser_->depth_);
    }
    ~DepthGuard() { --parser_->depth_; }
    DepthGuard(const DepthGuard&) = delete;
    DepthGuard& operator=(const DepthGuard&) = delete;

   private:
    Parser* const parser_;
  };

  void CheckDepth(int depth) const {
    if (depth > options_.max_depth) {
      throw Error{absl::StatusCode::kResourceExhausted,
                  fmt::format("the template is nested more than {} levels deep",
                              options_.max_depth),
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

  // --- statements ---
  // Statements up to a tag of `ends`, which is left at its name; up to the end if there are none.
  Body ParseBody(EndTags ends) {
    const DepthGuard guard(this);
    Body body;
    const int begin_line = Peek().line;
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

  // --- expressions, loosest first ---
  ExprPtr ParseExpression() {
    const DepthGuard guard(this);
    const int line = Peek().line;
    ExprPtr expr = ParseOr();
    while (SkipName("if")) {
      ExprPtr cond = NewExpr(ExprKind::kCond, line);
      AddKid(cond.get(), std::move(expr));
      AddKid(cond.get(), ParseOr());
      AddKid(cond.get(), SkipName("else") ? ParseExpression() : nullptr);
      expr = std::move(cond);
    }
    return expr;
  }

  ExprPtr ParseOr() {
    const int line = Peek().line;
    ExprPtr first = ParseAnd();
    if (!AtName("or")) return first;
    ExprPtr expr = Unary(ExprKind::kOr, line, std::move(first));
    while (SkipName("or")) AddKid(expr.get(), ParseAnd());
    return expr;
  }

  ExprPtr ParseAnd() {
    const int line = Peek().line;
    ExprPtr first = ParseNot();
    if (!AtName("and")) return first;
    ExprPtr expr = Unary(ExprKind::kAnd, line, std::move(first));
    while (SkipName("and")) AddKid(expr.get(), ParseNot());
    return expr;
  }

  ExprPtr ParseNot() {
    if (!AtName("not")) return ParseCompare();
    const DepthGuard guard(this);
    const int line = Next().line;
    return Unary(ExprKind::kNot, line, ParseNot());
  }

  bool NextCompareOp(Op* op) {
    constexpr std::pair<std::string_view, Op> kOps[] = {{"==", Op::kEq}, {"!=", Op::kNe},
                                                        {"<", Op::kLt},  {"<=", Op::kLe},
                                                        {">", Op::kGt},  {">=", Op::kGe}};
    for (const auto& [text, value] : kOps) {
      if (SkipOp(text)) {
        *op = value;
        return true;
      }
    }
    if (SkipName("in")) {
      *op = Op::kIn;
      return true;
    }
    if (AtName("not") && AtName("in", 1)) {
      Next();
      Next();
      *op = Op::kNotIn;
      return true;
    }
    return false;
  }

  ExprPtr ParseCompare() {
    const int line = Peek().line;
    ExprPtr expr = ParseSum();
    Op op;
    if (!NextCompareOp(&op)) return expr;
    ExprPtr compare = Unary(ExprKind::kCompare, line, std::move(expr));
    do {
      compare->ops.push_back(op);
      AddKid(compare.get(), ParseSum());
    } while (NextCompareOp(&op));
    return compare;
  }

  ExprPtr Binary(Op op, ExprPtr left, ExprPtr right) const {
    ExprPtr expr = NewExpr(ExprKind::kBinary, left->line);
    expr->op = op;
    AddKid(expr.get(), std::move(left));
    AddKid(expr.get(), std::move(right));
    return expr;
  }

  ExprPtr ParseSum() {
    ExprPtr left = ParseConcat();
    while (AtOp("+") || AtOp("-")) {
      const Op op = Next().text == "+" ? Op::kAdd : Op::kSub;
      left = Binary(op, std::move(left), ParseConcat());
    }
    return left;
  }

  ExprPtr ParseConcat() {
    const int line = Peek().line;
    ExprPtr first = ParseProduct();
    if (!AtOp("~")) return first;
    ExprPtr expr = Unary(ExprKind::kConcat, line, std::move(first));
    while (SkipOp("~")) AddKid(expr.get(), ParseProduct());
    return expr;
  }

  ExprPtr ParseProduct() {
    ExprPtr left = ParsePower();
    while (AtOp("*") || AtOp("/") || AtOp("//") || AtOp("%")) {
      const std::string& text = Next().text;
      const Op op = text == "*"    ? Op::kMul
                    : text == "/"  ? Op::kDiv
                    : text == "//" ? Op::kFloorDiv
                                   : Op::kMod;
      left = Binary(op, std::move(left), ParsePower());
    }
    return left;
  }

  ExprPtr ParsePower() {
    ExprPtr left = ParseUnary(true);
    while (SkipOp("**")) left = Binary(Op::kPow, std::move(left), ParseUnary(true));
    return left;
  }

  ExprPtr ParseUnary(bool with_filters) {
    ExprPtr expr;
    const int line = Peek().line;
    if (AtOp("-") || AtOp("+")) {
      const DepthGuard guard(this);
      const ExprKind kind = Next().text == "-" ? ExprKind::kNeg : ExprKind::kPos;
      expr = Unary(kind, line, ParseUnary(false));
    } else {
      expr = ParsePrimary();
    }
    expr = ParsePostfix(std::move(expr));
    return with_filters ? ParseFilterExpr(std::move(expr)) : std::move(expr);
  }

  ExprPtr ParsePrimary() {
    const Token& token = Next();
    switch (token.kind) {
      case TokenKind::kName:
        if (token.text == "true" || token.text == "True") return Const(true, token.line);
        if (token.text == "false" || token.text == "False") return Const(false, token.line);
        if (token.text == "none" || token.text == "None") return Const(None{}, token.line);
        return NameExpr(token.text, token.line);
      case TokenKind::kString: {
        std::string text = token.text;
        while (At(TokenKind::kString)) text += Next().text;
        return Const(Str(std::move(text), /*trusted=*/true), token.line);
      }
      case TokenKind::kInt: return Const(token.int_value, token.line);
      case TokenKind::kFloat: return Const(token.float_value, token.line);
      default: break;
    }
    if (token.kind == TokenKind::kOperator) {
      if (token.text == "(") {
        ExprPtr expr = ParseTuple(/*explicit_parens=*/true, /*with_cond=*/true);
        ExpectOp(")");
        return expr;
      }
      if (token.text == "[") return ParseListRest(token.line);
      if (token.text == "{") return ParseDictRest(token.line);
    }
    FailAt(token.line, fmt::format("unexpected {}", Describe(token)));
  }

  bool AtTupleEnd() const {
    return At(TokenKind::kVariableEnd) || At(TokenKind::kBlockEnd) || AtOp(")") ||
           AtName("recursive") || At(TokenKind::kEnd);
  }

  // One expression, or a tuple of several with commas between them.
  ExprPtr ParseTuple(bool explicit_parens, bool with_cond) {
    const DepthGuard guard(this);
    const int line = Peek().line;
    if (AtTupleEnd()) {
      if (explicit_parens) return NewExpr(ExprKind::kTuple, line);
      FailUnexpected("an expression");
    }
    ExprPtr first = with_cond ? ParseExpression() : ParseOr();
    if (!AtOp(",")) return first;
    ExprPtr tuple = Unary(ExprKind::kTuple, line, std::move(first));
    while (SkipOp(",")) {
      if (AtTupleEnd()) break;
      AddKid(tuple.get(), with_cond ? ParseExpression() : ParseOr());
    }
    return tuple;
  }

  ExprPtr ParseListRest(int line) {
    ExprPtr list = NewExpr(ExprKind::kList, line);
    while (!AtOp("]")) {
      if (!list->kids.empty()) {
        ExpectOp(",");
        if (AtOp("]")) break;
      }
      AddKid(list.get(), ParseExpression());
    }
    Next();
    return list;
  }

  ExprPtr ParseDictRest(int line) {
    ExprPtr dict = NewExpr(ExprKind::kDict, line);
    while (!AtOp("}")) {
      if (!dict->kids.empty()) {
        ExpectOp(",");
        if (AtOp("}")) break;
      }
      AddKid(dict.get(), ParseExpression());
      ExpectOp(":");
      AddKid(dict.get(), ParseExpression());
    }
    Next();
    return dict;
  }

  ExprPtr ParsePostfix(ExprPtr expr) {
    while (true) {
      if (AtOp(".")) {
        expr = ParseAttribute(std::move(expr));
      } else if (AtOp("[")) {
        expr = ParseSubscript(std::move(expr));
      } else if (AtOp("(")) {
        expr = ParseCall(std::move(expr));
      } else {
        return expr;
      }
    }
  }

  ExprPtr ParseAttribute(ExprPtr object) {
    const int line = Next().line;
    if (At(TokenKind::kInt)) {
      ExprPtr item = Unary(ExprKind::kGetItem, line, std::move(object));
      AddKid(item.get(), Const(Peek().int_value, line));
      Next();
      return item;
    }
    ExprPtr attr = Unary(ExprKind::kGetAttr, line, std::move(object));
    attr->name = ExpectName();
    attr->value = Undefined{std::make_shared<const std::string>(attr->name), {}};
    return attr;
  }

  ExprPtr ParseSubscript(ExprPtr object) {
    const int line = Next().line;
    ExprPtr lower = AtOp(":") ? nullptr : ParseExpression();
    if (!AtOp(":")) {
      if (AtOp(",")) {
        ExprPtr tuple = Unary(ExprKind::kTuple, line, std::move(lower));
        while (SkipOp(",")) AddKid(tuple.get(), ParseExpression());
        lower = std::move(tuple);
      }
      ExpectOp("]");
      ExprPtr item = Unary(ExprKind::kGetItem, line, std::move(object));
      AddKid(item.get(), std::move(lower));
      return item;
    }
    Next();
    ExprPtr slice = Unary(ExprKind::kSlice, line, std::move(object));
    AddKid(slice.get(), std::move(lower));
    AddKid(slice.get(), AtOp(":") || AtOp("]") ? nullptr : ParseExpression());
    AddKid(slice.get(), SkipOp(":") && !AtOp("]") ? ParseExpression() : nullptr);
    ExpectOp("]");
    return slice;
  }

  ExprPtr ParseCall(ExprPtr callee) {
    ExprPtr call = Unary(ExprKind::kCall, Peek().line, std::move(callee));
    ParseArgs(call.get());
    return call;
  }

  void ParseArgs(Expr* owner) {
    owner->args = std::make_unique<ArgList>();
    ArgList& args = *owner->args;
    ExpectOp("(");
    bool first = true;
    while (!AtOp(")")) {
      if (!first) {
        ExpectOp(",");
        if (AtOp(")")) break;
      }
      first = false;
      const int line = Peek().line;
      const Expr* added = nullptr;
      if (SkipOp("**")) {
        if (args.star_star != nullptr) FailAt(line, "more than one '**' in a call");
        added = (args.star_star = ParseExpression()).get();
      } else if (SkipOp("*")) {
        if (args.star != nullptr || args.star_star != nullptr) {
          FailAt(line, "misplaced '*' in a call");
        }
        added = (args.star = ParseExpression()).get();
      } else if (At(TokenKind::kName) && AtOp("=", 1)) {
        std::string name = Next().text;
        Next();
        args.named.emplace_back(std::move(name), ParseExpression());
        added = args.named.back().second.get();
      } else {
        if (!args.named.empty() || args.star != nullptr || args.star_star != nullptr) {
          FailAt(line, "a positional argument follows a named one");
        }
        args.positional.push_back(ParseExpression());
        added = args.positional.back().get();
      }
      Deepen(owner, *added);
    }
    Next();
  }

  std::string ParseDottedName() {
    std::string name = ExpectName();
    while (SkipOp(".")) name += "." + ExpectName();
    return name;
  }

  // `input` | name(args) | ...; `at_name` if the first name stands without its '|'.
  ExprPtr ParseFilters(ExprPtr input, bool at_name = false) {
    while (at_name || AtOp("|")) {
      if (!at_name) Next();
      at_name = false;
      ExprPtr filter = NewExpr(ExprKind::kFilter, Peek().line);
      AddKid(filter.get(), std::move(input));
      filter->name = ParseDottedName();
      filter->filter = FindFilter(filter->name);
      if (AtOp("(")) ParseArgs(filter.get());
      input = std::move(filter);
    }
    return input;
  }

  ExprPtr ParseFilterExpr(ExprPtr expr) {
    while (true) {
      if (AtOp("|")) {
        expr = ParseFilters(std::move(expr));
      } else if (AtName("is")) {
        expr = ParseTest(std::move(expr));
      } else if (AtOp("(")) {
        expr = ParseCall(std::move(expr));
      } else {
        return expr;
      }
    }
  }

  bool AtTestArgument() const {
    const Token& token = Peek();
    if (token.kind == TokenKind::kOperator) return token.text == "[" || token.text == "{";
    if (token.kind == TokenKind::kName) {
      return token.text != "else" && token.text != "or" && token.text != "and";
    }
    return token.kind == TokenKind::kString || token.kind == TokenKind::kInt ||
           token.kind == TokenKind::kFloat;
  }

  ExprPtr ParseTest(ExprPtr input) {
    const int line = Next().line;
    const bool negated = SkipName("not");
    ExprPtr test = Unary(ExprKind::kTest, line, std::move(input));
    test->name = ParseDottedName();
    test->test = FindTest(test->name);
    if (AtOp("(")) {
      ParseArgs(test.get());
    } else if (AtTestArgument()) {
      if (AtName("is")) FailAt(line, "tests can't be chained with 'is'");
      test->args = std::make_unique<ArgList>();
      test->args->positional.push_back(ParsePostfix(ParsePrimary()));
      Deepen(test.get(), *test->args->positional.back());
    }
    return negated ? Unary(ExprKind::kNot, line, std::move(test)) : std::move(test);
  }

  const ParserOptions options_;
  const std::vector<Token> tokens_;
  size_t next_ = 0;
  int depth_ = 0;
  int loops_ = 0;
  std::vector<MacroDef*> macros_;
  std::unordered_map<std::string, int> symbols_;
  std::vector<std::string> symbol_names_;
};

}  // namespace

Ast Parse(std::string_view source, const ParserOptions& options) {
  return Parser(source, options).Run();
}

}  // namespace terrace::jinja
