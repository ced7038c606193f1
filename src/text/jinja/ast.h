// The syntax tree of a template. Built once by the parser and then only read, by many threads.
// `depth` is the height of the tree below a node: the parser bounds it, so that evaluation and
// destruction recurse no deeper.
#ifndef TERRACE_TEXT_JINJA_AST_H_
#define TERRACE_TEXT_JINJA_AST_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/builtins.h"
#include "text/jinja/value.h"

namespace terrace::jinja {

enum class ExprKind : uint8_t {
  kConst,    // value
  kName,     // symbol; value: the Undefined to give if it is not set
  kList,     // kids
  kTuple,    // kids
  kDict,     // kids: key, value, key, value ...
  kGetAttr,  // kids[0], name; value: Undefined with the name
  kGetItem,  // kids[0], kids[1]
  kSlice,    // kids[0] [kids[1] : kids[2] : kids[3]], any of the last three may be null
  kCall,     // kids[0], args
  kFilter,   // kids[0] (null at the start of a filter block), name, filter, args
  kTest,     // kids[0], name, test, args
  kNot,
  kNeg,
  kPos,
  kBinary,   // kids[0] op kids[1]
  kCompare,  // kids[0] ops[0] kids[1] ops[1] kids[2] ...
  kAnd,      // kids
  kOr,       // kids
  kConcat,   // kids
  kCond,     // kids[0] if kids[1] else kids[2] (may be null)
};

enum class Op : uint8_t {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFloorDiv,
  kMod,
  kPow,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kIn,
  kNotIn,
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct ArgList {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star;       // *args
  ExprPtr star_star;  // **kwargs
};

struct Expr {
  ExprKind kind = ExprKind::kConst;
  Op op = Op::kAdd;
  int line = 0;
  int depth = 1;
  int symbol = -1;
  std::string name;
  Value value;
  std::vector<ExprPtr> kids;
  std::vector<Op> ops;
  std::unique_ptr<ArgList> args;
  Filter filter = nullptr;  // Null if there is no filter of that name: an error when it runs.
  Test test = nullptr;
};

// What a value may be assigned to.
struct Target {
  enum class Kind : uint8_t { kName, kAttr, kTuple } kind = Kind::kName;
  int line = 0;
  int symbol = -1;
  std::string name;           // Of the variable.
  std::string attr;           // kAttr: {% set name.attr = ... %}
  std::vector<Target> parts;  // kTuple
};

enum class StmtKind : uint8_t {
  kText,         // text
  kOutput,       // expr
  kFor,          // target, expr (iterable), test, body, other (else), recursive
  kIf,           // branches, other
  kSet,          // target, expr
  kSetBlock,     // target, expr (filters, or null), body
  kMacro,        // macro, target
  kCallBlock,    // expr (the call), macro (the caller)
  kFilterBlock,  // expr, body
  kWith,         // targets, values, body
  kScope,        // body (block, generation)
  kBreak,
  kContinue,
};

struct Stmt;
using StmtPtr = std::unique_ptr<Stmt>;
using Body = std::vector<StmtPtr>;

struct MacroDef {
  std::string name;
  std::vector<int> parameters;  // Symbols.
  std::vector<std::string> parameter_names;
  std::vector<ExprPtr> defaults;  // Of the last parameters.
  Body body;
  bool uses_varargs = false;
  bool uses_kwargs = false;
  bool uses_caller = false;
};

struct Branch {
  ExprPtr condition;
  Body body;
};

struct Stmt {
  StmtKind kind = StmtKind::kText;
  int line = 0;
  bool recursive = false;
  Str text;
  ExprPtr expr;
  ExprPtr test;
  Target target;
  std::vector<Target> targets;
  std::vector<ExprPtr> values;
  Body body;
  Body other;
  std::vector<Branch> branches;
  std::unique_ptr<MacroDef> macro;
};

struct Ast {
  Body body;
  std::vector<std::string> symbols;  // Variable names by symbol.
};

}  // namespace terrace::jinja

#endif  // TERRACE_TEXT_JINJA_AST_H_
