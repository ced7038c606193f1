// Splits a template into tokens with Jinja2's whitespace rules (trim_blocks, lstrip_blocks, `-` and
// `+` markers, raw blocks, one trailing newline dropped, CR LF read as LF).
#ifndef TERRACE_TEXT_JINJA_LEXER_H_
#define TERRACE_TEXT_JINJA_LEXER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace terrace::jinja {

enum class TokenKind : uint8_t {
  kData,
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInt,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 0;
  std::string text;  // Data, name, string value, operator.
  int64_t int_value = 0;
  double float_value = 0;
};

struct LexerOptions {
  bool trim_blocks = true;
  bool lstrip_blocks = true;
};

// Throws Error (InvalidArgument) with the line on text that is not a template. The last token is
// kEnd.
std::vector<Token> Tokenize(std::string_view source, const LexerOptions& options);

}  // namespace terrace::jinja

#endif  // TERRACE_TEXT_JINJA_LEXER_H_
