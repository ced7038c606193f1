// Builds the syntax tree of a template: Jinja2's grammar without what needs a loader (include,
// import, extends).
#ifndef TERRACE_TEXT_JINJA_PARSER_H_
#define TERRACE_TEXT_JINJA_PARSER_H_

#include <string_view>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace terrace::jinja {

struct ParserOptions {
  LexerOptions lexer;
  // Accept {% generation %} ... {% endgeneration %} around what the assistant says. Plain Jinja2
  // does not know it; templates of training tool kits use it.
  bool generation_tag = true;
  // Nesting of tags, brackets and operators.
  int max_depth = 200;
};

// Throws Error: InvalidArgument with the line, or ResourceExhausted if nested too deeply.
Ast Parse(std::string_view source, const ParserOptions& options);

}  // namespace terrace::jinja

#endif  // TERRACE_TEXT_JINJA_PARSER_H_
