#include "text/jinja/expr_parser.h"

namespace terrace::jinja {

std::string Describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kData:
      return "template text";
    case TokenKind::kVariableBegin:
      return "'{{'";
    case TokenKind::kVariableEnd:
      return "'}}'";
    case TokenKind::kBlockBegin:
      return "'{%'";
    case TokenKind::kBlockEnd:
      return "'%}'";
    case TokenKind::kString:
      return "a string";
    case TokenKind::kEnd:
      return "the end of the template";
    default:
      return fmt::format("'{}'", token.text.substr(0, 80));
  }
}

ExprPtr ExprParser::ParseExpression() {
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

ExprPtr ExprParser::ParseOr() {
  const int line = Peek().line;
  ExprPtr first = ParseAnd();
  if (!AtName("or")) return first;
  ExprPtr expr = Unary(ExprKind::kOr, line, std::move(first));
  while (SkipName("or")) AddKid(expr.get(), ParseAnd());
  return expr;
}

ExprPtr ExprParser::ParseAnd() {
  const int line = Peek().line;
  ExprPtr first = ParseNot();
  if (!AtName("and")) return first;
  ExprPtr expr = Unary(ExprKind::kAnd, line, std::move(first));
  while (SkipName("and")) AddKid(expr.get(), ParseNot());
  return expr;
}

ExprPtr ExprParser::ParseNot() {
  if (!AtName("not")) return ParseCompare();
  const DepthGuard guard(this);
  const int line = Next().line;
  return Unary(ExprKind::kNot, line, ParseNot());
}

bool ExprParser::NextCompareOp(Op* op) {
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

ExprPtr ExprParser::ParseCompare() {
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

ExprPtr ExprParser::Binary(Op op, ExprPtr left, ExprPtr right) const {
  ExprPtr expr = NewExpr(ExprKind::kBinary, left->line);
  expr->op = op;
  AddKid(expr.get(), std::move(left));
  AddKid(expr.get(), std::move(right));
  return expr;
}

ExprPtr ExprParser::ParseSum() {
  ExprPtr left = ParseConcat();
  while (AtOp("+") || AtOp("-")) {
    const Op op = Next().text == "+" ? Op::kAdd : Op::kSub;
    left = Binary(op, std::move(left), ParseConcat());
  }
  return left;
}

ExprPtr ExprParser::ParseConcat() {
  const int line = Peek().line;
  ExprPtr first = ParseProduct();
  if (!AtOp("~")) return first;
  ExprPtr expr = Unary(ExprKind::kConcat, line, std::move(first));
  while (SkipOp("~")) AddKid(expr.get(), ParseProduct());
  return expr;
}

ExprPtr ExprParser::ParseProduct() {
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

ExprPtr ExprParser::ParsePower() {
  ExprPtr left = ParseUnary(true);
  while (SkipOp("**")) left = Binary(Op::kPow, std::move(left), ParseUnary(true));
  return left;
}

ExprPtr ExprParser::ParseUnary(bool with_filters) {
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

ExprPtr ExprParser::ParsePrimary() {
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
    case TokenKind::kInt:
      return Const(token.int_value, token.line);
    case TokenKind::kFloat:
      return Const(token.float_value, token.line);
    default:
      break;
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

bool ExprParser::AtTupleEnd() const {
  return At(TokenKind::kVariableEnd) || At(TokenKind::kBlockEnd) || AtOp(")") ||
         AtName("recursive") || At(TokenKind::kEnd);
}

// One expression, or a tuple of several with commas between them.
ExprPtr ExprParser::ParseTuple(bool explicit_parens, bool with_cond) {
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

ExprPtr ExprParser::ParseListRest(int line) {
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

ExprPtr ExprParser::ParseDictRest(int line) {
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

ExprPtr ExprParser::ParsePostfix(ExprPtr expr) {
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

ExprPtr ExprParser::ParseAttribute(ExprPtr object) {
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

ExprPtr ExprParser::ParseSubscript(ExprPtr object) {
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

ExprPtr ExprParser::ParseCall(ExprPtr callee) {
  ExprPtr call = Unary(ExprKind::kCall, Peek().line, std::move(callee));
  ParseArgs(call.get());
  return call;
}

void ExprParser::ParseArgs(Expr* owner) {
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

std::string ExprParser::ParseDottedName() {
  std::string name = ExpectName();
  while (SkipOp(".")) name += "." + ExpectName();
  return name;
}

// `input` | name(args) | ...; `at_name` if the first name stands without its '|'.
ExprPtr ExprParser::ParseFilters(ExprPtr input, bool at_name) {
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

ExprPtr ExprParser::ParseFilterExpr(ExprPtr expr) {
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

bool ExprParser::AtTestArgument() const {
  const Token& token = Peek();
  if (token.kind == TokenKind::kOperator) return token.text == "[" || token.text == "{";
  if (token.kind == TokenKind::kName) {
    return token.text != "else" && token.text != "or" && token.text != "and";
  }
  return token.kind == TokenKind::kString || token.kind == TokenKind::kInt ||
         token.kind == TokenKind::kFloat;
}

ExprPtr ExprParser::ParseTest(ExprPtr input) {
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

}  // namespace terrace::jinja
