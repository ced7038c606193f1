#include "text/grammar/gbnf.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/grammar/scanner.h"

namespace terrace::grammar {
namespace {

constexpr int kMaxDepth = 200;
constexpr size_t kMaxRules = 20'000;
constexpr int32_t kMaxRepeat = 100'000;

bool IsNameByte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_';
}

class Parser {
 public:
  Parser(std::string_view text, Grammar* grammar) : text_(text), in_(text), grammar_(*grammar) {}

  absl::StatusOr<ExprId> Parse() {
    SkipSpace();
    while (status_.ok() && !in_.AtEnd()) ParseRule();
    RETURN_IF_ERROR(status_);
    for (const auto& [name, place] : named_at_) {
      if (grammar_.rules()[static_cast<size_t>(rules_[name])].body < 0) {
        return absl::InvalidArgumentError(
            fmt::format("the grammar has no rule \"{}\", which line {} names", name, Line(place)));
      }
    }
    const auto root = rules_.find("root");
    if (root == rules_.end()) {
      return absl::InvalidArgumentError("the grammar has no rule \"root\", with which it begins");
    }
    return grammar_.Call(root->second);
  }

 private:
  void Fail(std::string_view what) {
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(
          fmt::format("the grammar has {} in line {}", what, Line(in_.position())));
    }
  }
  int64_t Line(size_t place) const {
    const std::string_view before = text_.substr(0, place);
    return std::count(before.begin(), before.end(), '\n') + 1;
  }

  void SkipSpace() {
    while (!in_.AtEnd()) {
      const char c = in_.Peek();
      if (c == '#') {
        while (!in_.AtEnd() && in_.Peek() != '\n') in_.Byte();
      } else if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
        in_.Byte();
      } else {
        break;
      }
    }
  }

  std::string Name() {
    std::string name;
    while (IsNameByte(in_.Peek())) name += in_.Byte();
    SkipSpace();
    return name;
  }

  // True at `name ::=`; the place stays.
  bool AtRule() {
    const size_t begin = in_.position();
    const bool named = !Name().empty();
    const bool rule = named && in_.StartsWith("::=");
    in_.Seek(begin);
    return rule;
  }

  int32_t RuleIndex(const std::string& name) {
    const auto [it, fresh] = rules_.try_emplace(name, 0);
    if (fresh) {
      if (rules_.size() > kMaxRules) Fail(fmt::format("more than {} rules", kMaxRules));
      it->second = grammar_.AddRule(name, true);
    }
    return it->second;
  }

  void ParseRule() {
    const std::string name = Name();
    if (name.empty() || !in_.Take("::=")) return Fail("something else than `name ::=`");
    SkipSpace();
    const int32_t rule = RuleIndex(name);
    if (grammar_.rules()[static_cast<size_t>(rule)].body >= 0) {
      return Fail(fmt::format("a second rule \"{}\"", name));
    }
    const ExprId body = Choice(0);
    if (!status_.ok()) return;
    grammar_.SetRule(rule, body);
    if (!in_.AtEnd() && !AtRule()) Fail("a part that cannot stand there");
  }

  ExprId Choice(int depth) {
    if (depth > kMaxDepth) {
      Fail(fmt::format("groups nested deeper than {}", kMaxDepth));
      return 0;
    }
    std::vector<ExprId> kids;
    for (;;) {
      kids.push_back(Sequence(depth));
      if (!status_.ok() || !in_.Take("|")) break;
      SkipSpace();
    }
    return grammar_.Choice(std::move(kids));
  }

  ExprId Sequence(int depth) {
    std::vector<ExprId> kids;
    while (status_.ok() && !in_.AtEnd()) {
      const std::optional<ExprId> item = Item(depth);
      if (!item || !status_.ok()) break;
      kids.push_back(Repeats(*item));
    }
    return grammar_.Sequence(std::move(kids));
  }

  // Nothing at the end of the sequence.
  std::optional<ExprId> Item(int depth) {
    const char c = in_.Peek();
    ExprId item = 0;
    if (in_.Take("\"")) {
      item = Literal();
    } else if (in_.Take("[")) {
      item = Class();
    } else if (in_.Take("(")) {
      SkipSpace();
      item = Choice(depth + 1);
      if (status_.ok() && !in_.Take(")")) Fail("a ( without its )");
    } else if (in_.Take(".")) {
      item = grammar_.Class({{0, kLastCodePoint}});
    } else if (IsNameByte(c)) {
      if (AtRule()) return std::nullopt;
      const size_t place = in_.position();
      const std::string name = Name();
      named_at_.try_emplace(name, place);
      item = grammar_.Call(RuleIndex(name));
    } else {
      return std::nullopt;
    }
    SkipSpace();
    return item;
  }

  ExprId Repeats(ExprId item) {
    while (status_.ok()) {
      if (in_.Take("*")) {
        item = grammar_.Repeat(item, 0, kUnbounded);
      } else if (in_.Take("+")) {
        item = grammar_.Repeat(item, 1, kUnbounded);
      } else if (in_.Take("?")) {
        item = grammar_.Repeat(item, 0, 1);
      } else if (in_.Take("{")) {
        item = Counted(item);
      } else {
        break;
      }
      SkipSpace();
    }
    return item;
  }

  ExprId Counted(ExprId item) {
    SkipSpace();
    const auto low = in_.Number();
    SkipSpace();
    std::optional<int32_t> high = low;
    if (in_.Take(",")) {
      SkipSpace();
      high = in_.Number();
      SkipSpace();
    }
    if (!low || !in_.Take("}") || *low > kMaxRepeat || high.value_or(0) > kMaxRepeat ||
        (high && *high < *low)) {
      Fail(fmt::format("a repeat that is not {{m}}, {{m,}} or {{m,n}} with counts up to {}",
                       kMaxRepeat));
      return item;
    }
    return grammar_.Repeat(item, *low, high.value_or(kUnbounded));
  }

  // One character of a literal or class, escapes resolved.
  uint32_t Character() {
    if (!in_.Take("\\")) return in_.Character();
    if (in_.AtEnd()) {
      Fail("a backslash at its end");
      return 0;
    }
    const char c = in_.Byte();
    std::optional<uint32_t> code;
    switch (c) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'x':
        code = in_.Hex(2);
        break;
      case 'u':
        code = in_.Hex(4);
        break;
      case 'U':
        code = in_.Hex(8);
        break;
      case '"':
      case '[':
      case ']':
      case '\\':
      case '-':
      case '/':
      case '^':
      case '\'':
        return static_cast<uint8_t>(c);
      default:
        break;
    }
    if (!code || *code > kLastCodePoint || (*code >= 0xD800 && *code < 0xE000)) {
      Fail("an escape that is none");
      return 0;
    }
    return *code;
  }

  ExprId Literal() {
    std::vector<ExprId> kids;
    while (status_.ok() && !in_.Take("\"")) {
      if (in_.AtEnd() || in_.Peek() == '\n') {
        Fail("a \" without its end");
        break;
      }
      const uint32_t c = Character();
      kids.push_back(grammar_.Class({{c, c}}));
    }
    return grammar_.Sequence(std::move(kids));
  }

  ExprId Class() {
    const bool negated = in_.Take("^");
    Ranges ranges;
    while (status_.ok() && !in_.Take("]")) {
      if (in_.AtEnd()) {
        Fail("a [ without its ]");
        break;
      }
      Range range;
      range.low = range.high = Character();
      if (in_.Peek() == '-' && in_.Peek(1) != ']') {
        in_.Take("-");
        if (!in_.AtEnd()) range.high = Character();
        if (range.high < range.low) Fail("a range in the wrong order");
      }
      ranges.push_back(range);
    }
    return grammar_.Class(negated ? Complement(ranges) : std::move(ranges));
  }

  const std::string_view text_;
  Scanner in_;
  absl::Status status_;
  Grammar& grammar_;
  std::map<std::string, int32_t> rules_;
  std::map<std::string, size_t> named_at_;  // where each rule is first used
};

}  // namespace

absl::StatusOr<ExprId> AddGbnf(std::string_view text, Grammar* grammar) {
  return Parser(text, grammar).Parse();
}

}  // namespace terrace::grammar
