#include "text/jinja/lexer.h"

#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "text/jinja/runtime.h"
#include "text/jinja/utf8.h"

namespace terrace::jinja {
namespace {

std::string NormalizeNewlines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      text.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      text.push_back(source[i]);
    }
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

int DigitValue(char c) {
  if (IsDigit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return 99;
}

class Lexer {
 public:
  Lexer(std::string_view source, const LexerOptions& options)
      : text_(NormalizeNewlines(source)), options_(options) {}

  std::vector<Token> Run() {
    while (pos_ < text_.size()) LexRoot();
    Add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void FailHere(std::string message) const {
    throw Error{absl::StatusCode::kInvalidArgument, std::move(message), line_};
  }

  bool LooksAt(std::string_view what) const { return LooksAt(what, pos_); }
  bool LooksAt(std::string_view what, size_t pos) const {
    return std::string_view(text_).substr(pos, what.size()) == what;
  }

  void Advance(size_t bytes) {
    for (size_t end = pos_ + bytes; pos_ < end; ++pos_) line_ += text_[pos_] == '\n';
  }

  void SkipSpace() { Advance(LeadingSpace(std::string_view(text_).substr(pos_))); }

  Token& Add(TokenKind kind, std::string text) {
    tokens_.push_back({kind, line_, std::move(text)});
    return tokens_.back();
  }

  // Text up to the next tag, and the tag's opening.
  void LexRoot() {
    const bool line_starting = pos_ == 0 || text_[pos_ - 1] == '\n';
    size_t open = pos_;
    while (true) {
      open = text_.find('{', open);
      if (open == std::string::npos || open + 1 >= text_.size()) {
        Add(TokenKind::kData, text_.substr(pos_));
        Advance(text_.size() - pos_);
        return;
      }
      const char next = text_[open + 1];
      if (next == '{' || next == '%' || next == '#') break;
      ++open;
    }
    const char kind = text_[open + 1];
    const char sign = open + 2 < text_.size() ? text_[open + 2] : '\0';
    AddData(std::string_view(text_).substr(pos_, open - pos_), kind, sign, line_starting);
    Advance(open - pos_ + 2);
    if (sign == '-' || sign == '+') Advance(1);
    if (kind == '#') {
      LexComment();
    } else if (kind == '{') {
      Add(TokenKind::kVariableBegin, "");
      LexTag(TokenKind::kVariableEnd);
    } else if (!LexRaw()) {
      Add(TokenKind::kBlockBegin, "");
      LexTag(TokenKind::kBlockEnd);
    }
  }

  void AddData(std::string_view data, char kind, char sign, bool line_starting) {
    if (sign == '-') {
      data.remove_suffix(TrailingSpace(data));
    } else if (sign != '+' && kind != '{' && options_.lstrip_blocks) {
      const size_t line_begin = data.rfind('\n') + 1;  // 0 if there is no newline.
      const std::string_view indent = data.substr(line_begin);
      if ((line_begin > 0 || line_starting) && LeadingSpace(indent) == indent.size()) {
        data = data.substr(0, line_begin);
      }
    }
    if (!data.empty()) Add(TokenKind::kData, std::string(data));
  }

  // Consumes what ends a block or comment: `close` is "%}" or "#}". False if it is not here.
  bool TryClose(std::string_view close) {
    if (LooksAt("-") && LooksAt(close, pos_ + 1)) {
      Advance(1 + close.size());
      SkipSpace();
      return true;
    }
    if (LooksAt("+") && LooksAt(close, pos_ + 1)) {
      Advance(1 + close.size());
      return true;
    }
    if (!LooksAt(close)) return false;
    Advance(close.size());
    if (options_.trim_blocks && close != "}}" && LooksAt("\n")) Advance(1);
    return true;
  }

  void LexComment() {
    const size_t close = text_.find("#}", pos_);
    if (close == std::string::npos) FailHere("Missing end of comment tag");
    const bool marked = close > pos_ && (text_[close - 1] == '-' || text_[close - 1] == '+');
    Advance(close - pos_ - (marked ? 1 : 0));
    TryClose("#}");
  }

  // After "{%" with its marker: a raw block, if this is one.
  bool LexRaw() {
    size_t p = pos_ + LeadingSpace(std::string_view(text_).substr(pos_));
    if (!LooksAt("raw", p)) return false;
    p += 3;
    p += LeadingSpace(std::string_view(text_).substr(p));
    const bool strip = LooksAt("-%}", p);
    if (!strip && !LooksAt("%}", p)) return false;
    Advance(p - pos_ + (strip ? 3 : 2));
    if (strip) SkipSpace();
    const bool line_starting = text_[pos_ - 1] == '\n';
    for (size_t open = text_.find("{%", pos_); open != std::string::npos;
         open = text_.find("{%", open + 1)) {
      size_t q = open + 2;
      const char sign = q < text_.size() ? text_[q] : '\0';
      if (sign == '-' || sign == '+') ++q;
      q += LeadingSpace(std::string_view(text_).substr(q));
      if (!LooksAt("endraw", q)) continue;
      q += 6;
      q += LeadingSpace(std::string_view(text_).substr(q));
      const bool marked = LooksAt("-%}", q) || LooksAt("+%}", q);
      if (!marked && !LooksAt("%}", q)) continue;
      AddData(std::string_view(text_).substr(pos_, open - pos_), '%', sign, line_starting);
      Advance(q - pos_);
      TryClose("%}");
      return true;
    }
    FailHere("Missing end of raw directive");
  }

  void LexTag(TokenKind end) {
    const std::string_view close = end == TokenKind::kBlockEnd ? "%}" : "}}";
    std::string open_brackets;
    const int begin_line = line_;
    while (true) {
      SkipSpace();
      if (pos_ >= text_.size()) {
        line_ = begin_line;
        FailHere(fmt::format("a tag is not closed: '{}' is missing", close));
      }
      if (open_brackets.empty()) {
        const int line = line_;
        // `+}}` is no marker: there it is the operator.
        if ((end == TokenKind::kBlockEnd || !LooksAt("+")) && TryClose(close)) {
          Add(end, "").line = line;
          return;
        }
      }
      LexInTag(&open_brackets);
    }
  }

  void LexInTag(std::string* open_brackets) {
    const char c = text_[pos_];
    if (IsDigit(c)) {
      LexNumber();
    } else if (c == '\'' || c == '"') {
      LexString(c);
    } else if (const size_t length = NameLength(); length > 0) {
      Add(TokenKind::kName, text_.substr(pos_, length));
      Advance(length);
    } else {
      LexOperator(open_brackets);
    }
  }

  size_t NameLength() const {
    size_t end = pos_;
    while (end < text_.size()) {
      const CodePoint c = DecodeAt(text_, end);
      const bool part = c.value == '_' || (c.valid && IsAlpha(c.value)) ||
                        (c.valid && end > pos_ && IsDecimal(c.value));
      if (!part) break;
      end += c.bytes;
    }
    return end - pos_;
  }

  // Digits of `base` with single underscores between them, from `pos`; returns the end.
  size_t DigitsEnd(size_t pos, int base) const {
    size_t end = pos;
    while (end < text_.size()) {
      if (DigitValue(text_[end]) < base) {
        ++end;
      } else if (text_[end] == '_' && end > pos && end + 1 < text_.size() &&
                 DigitValue(text_[end + 1]) < base) {
        end += 2;
      } else {
        break;
      }
    }
    return end;
  }

  void LexNumber() {
    int base = 10;
    size_t begin = pos_;
    if (text_[pos_] == '0' && pos_ + 2 < text_.size()) {
      const char marker = static_cast<char>(text_[pos_ + 1] | 0x20);
      const int other = marker == 'x' ? 16 : marker == 'o' ? 8 : marker == 'b' ? 2 : 0;
      if (other != 0 && DigitValue(text_[pos_ + 2]) < other) {
        base = other;
        begin = pos_ + 2;
      }
    }
    size_t end = DigitsEnd(begin, base);
    bool is_float = false;
    const bool after_dot = pos_ > 0 && text_[pos_ - 1] == '.';
    if (base == 10 && !after_dot) {
      if (end + 1 < text_.size() && text_[end] == '.' && IsDigit(text_[end + 1])) {
        end = DigitsEnd(end + 1, 10);
        is_float = true;
      }
      size_t exponent = end;
      if (exponent < text_.size() && (text_[exponent] | 0x20) == 'e') {
        ++exponent;
        if (exponent < text_.size() && (text_[exponent] == '+' || text_[exponent] == '-')) {
          ++exponent;
        }
        if (exponent < text_.size() && IsDigit(text_[exponent])) {
          end = DigitsEnd(exponent, 10);
          is_float = true;
        }
      }
    }
    AddNumber(begin, end, base, is_float);
    Advance(end - pos_);
  }

  void AddNumber(size_t begin, size_t end, int base, bool is_float) {
    std::string digits;
    for (size_t i = begin; i < end; ++i) {
      if (text_[i] != '_') digits.push_back(text_[i]);
    }
    const char* last = digits.data() + digits.size();
    Token& token = Add(is_float ? TokenKind::kFloat : TokenKind::kInt, digits);
    std::from_chars_result result{};
    if (is_float) {
      result = std::from_chars(digits.data(), last, token.float_value);
    } else {
      result = std::from_chars(digits.data(), last, token.int_value, base);
    }
    if (result.ec != std::errc() || result.ptr != last) {
      FailHere(fmt::format("the number {} is out of range", digits.substr(0, 40)));
    }
  }

  void LexString(char quote) {
    size_t end = pos_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) FailHere("a string is not closed");
    Add(TokenKind::kString, Unescape(pos_ + 1, end));
    Advance(end + 1 - pos_);
  }

  // Python's escapes. An unknown one stays as it is written.
  std::string Unescape(size_t begin, size_t end) const {
    std::string out;
    for (size_t i = begin; i < end; ++i) {
      if (text_[i] != '\\' || i + 1 >= end) {
        out.push_back(text_[i]);
        continue;
      }
      const char c = text_[++i];
      constexpr std::string_view kFrom = "abfnrtv\\'\"";
      constexpr std::string_view kTo = "\a\b\f\n\r\t\v\\'\"";
      const size_t simple = kFrom.find(c);
      const size_t hex_digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
      if (simple != std::string_view::npos) {
        out.push_back(kTo[simple]);
      } else if (hex_digits > 0) {
        i = UnescapeDigits(i + 1, end, hex_digits, 16, &out);
      } else if (DigitValue(c) < 8) {
        i = UnescapeDigits(i, end, 3, 8, &out);
      } else if (c != '\n') {
        out.push_back('\\');
        out.push_back(c);
      }
    }
    return out;
  }

  // Appends the code point written in up to `most` digits from `pos`; returns the last's position.
  size_t UnescapeDigits(size_t pos, size_t end, size_t most, int base, std::string* out) const {
    uint32_t value = 0;
    size_t count = 0;
    while (count < most && pos + count < end && DigitValue(text_[pos + count]) < base) {
      value = value * static_cast<uint32_t>(base) +
              static_cast<uint32_t>(DigitValue(text_[pos + count]));
      ++count;
    }
    const bool surrogate = value >= 0xd800 && value < 0xe000;
    if ((base == 16 && count != most) || value > 0x10ffff || surrogate) {
      FailHere("a string holds an escape that is no character");
    }
    AppendUtf8(value, out);
    return pos + count - 1;
  }

  void LexOperator(std::string* open_brackets) {
    constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
    constexpr std::string_view kOne = "+-/*%~[](){}><=.:|,;";
    for (std::string_view op : kTwo) {
      if (LooksAt(op)) {
        Add(TokenKind::kOperator, std::string(op));
        Advance(2);
        return;
      }
    }
    const char c = text_[pos_];
    if (kOne.find(c) == std::string_view::npos) {
      const CodePoint bad = DecodeAt(text_, pos_);
      FailHere(fmt::format("unexpected character '{}'", text_.substr(pos_, bad.bytes)));
    }
    if (c == '(' || c == '[' || c == '{') {
      open_brackets->push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    } else if (c == ')' || c == ']' || c == '}') {
      if (open_brackets->empty()) FailHere(fmt::format("unexpected '{}'", c));
      if (open_brackets->back() != c) {
        FailHere(fmt::format("unexpected '{}', expected '{}'", c, open_brackets->back()));
      }
      open_brackets->pop_back();
    }
    Add(TokenKind::kOperator, std::string(1, c));
    Advance(1);
  }

  const std::string text_;
  const LexerOptions options_;
  std::vector<Token> tokens_;
  size_t pos_ = 0;
  int line_ = 1;
};

}  // namespace

std::vector<Token> Tokenize(std::string_view source, const LexerOptions& options) {
  return Lexer(source, options).Run();
}

}  // namespace terrace::jinja
