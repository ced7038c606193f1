#include "text/grammar/regex.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/grammar/scanner.h"

namespace terrace::grammar {
namespace {

constexpr int kMaxDepth = 200;
constexpr size_t kMaxPatternBytes = 64 << 10;
constexpr int32_t kMaxRepeat = 100'000;

const Ranges kDigits = {{'0', '9'}};
const Ranges kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const Ranges kSpace = {{'\t', '\r'}, {' ', ' '}};
// All that any dialect takes for white space: what \S must leave out.
const Ranges kAnySpace = {{'\t', '\r'},     {0x1C, ' '},      {0x85, 0x85},     {0xA0, 0xA0},
                          {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
                          {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const Ranges kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

struct Node {
  enum class Kind : uint8_t { kClass, kSequence, kChoice, kRepeat, kBegin, kEnd };
  Kind kind = Kind::kSequence;
  Ranges ranges;
  int32_t min = 0;
  int32_t max = 0;
  std::vector<Node> kids;
};
using Kind = Node::Kind;

class Parser {
 public:
  explicit Parser(std::string_view pattern) : in_(pattern) {}

  absl::StatusOr<Node> Parse() {
    Node node = Choice(0);
    if (status_.ok() && !in_.AtEnd()) Fail("a ) without its (");
    if (!status_.ok()) return status_;
    return node;
  }

 private:
  void Fail(std::string_view what) {
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(
          fmt::format("the pattern has {} at byte {}", what, in_.position()));
    }
  }

  Node Choice(int depth) {
    Node choice{.kind = Kind::kChoice};
    if (depth > kMaxDepth) {
      Fail(fmt::format("groups nested deeper than {}", kMaxDepth));
      return choice;
    }
    do {
      choice.kids.push_back(Sequence(depth));
    } while (status_.ok() && in_.Take("|"));
    if (choice.kids.size() == 1) return std::move(choice.kids[0]);
    return choice;
  }

  Node Sequence(int depth) {
    Node sequence;
    while (status_.ok() && !in_.AtEnd() && in_.Peek() != '|' && in_.Peek() != ')') {
      Node atom = Atom(depth);
      if (!status_.ok()) break;
      Quantify(&atom);
      sequence.kids.push_back(std::move(atom));
    }
    return sequence;
  }

  void Quantify(Node* atom) {
    int32_t min = 0, max = kUnbounded;
    if (in_.Take("*")) {
    } else if (in_.Take("+")) {
      min = 1;
    } else if (in_.Take("?")) {
      max = 1;
    } else if (in_.Peek() != '{' || !Counts(&min, &max)) {
      return;
    }
    if (in_.Peek() == '+') return Fail("a possessive quantifier, which is not supported,");
    in_.Take("?");  // lazy: the same texts
    if (in_.Peek() == '*' || in_.Peek() == '+' || in_.Peek() == '?') {
      return Fail("a quantifier behind a quantifier");
    }
    if (atom->kind == Kind::kBegin || atom->kind == Kind::kEnd) {
      return Fail("a quantifier behind an anchor");
    }
    Node repeat{.kind = Kind::kRepeat, .min = min, .max = max};
    repeat.kids.push_back(std::move(*atom));
    *atom = std::move(repeat);
  }

  // {m}, {m,} or {m,n}; anything else is an ordinary brace.
  bool Counts(int32_t* min, int32_t* max) {
    const size_t begin = in_.position();
    in_.Take("{");
    const auto low = in_.Number();
    std::optional<int32_t> high = low;
    const bool comma = low && in_.Take(",");
    if (comma) high = in_.Number();
    if (!low || !in_.Take("}")) {
      in_.Seek(begin);
      return false;
    }
    *min = *low;
    *max = high.value_or(kUnbounded);
    if (*min > kMaxRepeat || *max > kMaxRepeat) {
      Fail(fmt::format("a count above {}", kMaxRepeat));
    } else if (high && *high < *low) {
      Fail("a count whose limits are in the wrong order");
    }
    return true;
  }

  Node Atom(int depth) {
    if (in_.Take("(")) return Group(depth);
    if (in_.Take("^")) return {.kind = Kind::kBegin};
    if (in_.Take("$")) return {.kind = Kind::kEnd};
    Node node{.kind = Kind::kClass};
    if (in_.Take(".")) {
      node.ranges = Complement(kLineEnds);
    } else if (in_.Take("[")) {
      node.ranges = Class();
    } else if (in_.Take("\\")) {
      node.ranges = Escape(false);
    } else if (in_.Peek() == '*' || in_.Peek() == '+' || in_.Peek() == '?') {
      Fail("a quantifier with nothing before it");
    } else {
      const uint32_t c = in_.Character();
      node.ranges = {{c, c}};
    }
    return node;
  }

  Node Group(int depth) {
    if (in_.Take("?")) {
      const bool named = in_.Take("P<") || (in_.Peek() == '<' && in_.Peek(1) != '=' &&
                                            in_.Peek(1) != '!' && in_.Take("<"));
      if (named) {
        while (!in_.AtEnd() && in_.Peek() != '>') in_.Byte();
        if (!in_.Take(">")) Fail("a group name without its >");
      } else if (!in_.Take(":")) {
        Fail("look-around or a flag, which is not supported,");
      }
    }
    Node node;
    if (status_.ok()) node = Choice(depth + 1);
    if (status_.ok() && !in_.Take(")")) Fail("a ( without its )");
    // Kept as one part, so that what follows does not run into it.
    Node group;
    group.kids.push_back(std::move(node));
    return group;
  }

  // Behind a backslash. In a class some mean other things.
  Ranges Escape(bool in_class) {
    if (in_.AtEnd()) {
      Fail("a backslash at its end");
      return {};
    }
    const uint32_t c = in_.Character();
    auto one = [](uint32_t point) { return Ranges{{point, point}}; };
    switch (c) {
      case 'd':
        return kDigits;
      case 'D':
        return Complement(kDigits);
      case 'w':
        return kWord;
      case 'W':
        return Complement(kWord);
      case 's':
        return kSpace;
      case 'S':
        return Complement(kAnySpace);
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 't':
        return one('\t');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case 'x':
        return Code(2);
      case 'u':
        return Code(4);
      case '0':
        if (in_.Peek() < '0' || in_.Peek() > '9') return one(0);
        break;
      case 'b':
        if (in_class) return one('\b');
        break;
      default:
        break;
    }
    const bool letter = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
    if (c < 0x80 && letter) {
      Fail(fmt::format("\\{}, which is not supported,", static_cast<char>(c)));
    }
    return one(c);
  }

  Ranges Code(int digits) {
    std::optional<uint32_t> code;
    if (digits == 4 && in_.Take("{")) {
      for (int n = 6; n > 0 && !code; --n) {
        const size_t begin = in_.position();
        code = in_.Hex(n);
        if (code && !in_.Take("}")) {
          code.reset();
          in_.Seek(begin);
        }
      }
    } else {
      code = in_.Hex(digits);
      if (code && *code >= 0xD800 && *code < 0xDC00 && in_.StartsWith("\\u")) {
        in_.Take("\\u");
        const auto low = in_.Hex(4);
        if (low && *low >= 0xDC00 && *low < 0xE000) {
          code = 0x10000 + ((*code - 0xD800) << 10) + (*low - 0xDC00);
        }
      }
    }
    if (!code || *code > kLastCodePoint || (*code >= 0xD800 && *code < 0xE000)) {
      Fail("a character code that is none");
      return {};
    }
    return {{*code, *code}};
  }

  Ranges Class() {
    const bool negated = in_.Take("^");
    Ranges ranges;
    while (status_.ok() && in_.Peek() != ']') {
      if (in_.AtEnd()) {
        Fail("a [ without its ]");
        break;
      }
      Ranges part = ClassPart();
      // A range, unless the dash stands at the end.
      if (in_.Peek() == '-' && in_.Peek(1) != ']' && in_.Peek(1) != '\0') {
        in_.Take("-");
        const Ranges last = ClassPart();
        if (status_.ok() && (part.size() != 1 || part[0].low != part[0].high || last.size() != 1 ||
                             last[0].low != last[0].high || part[0].low > last[0].low)) {
          Fail("a range that is none");
          break;
        }
        if (status_.ok()) part[0].high = last[0].low;
      }
      ranges.insert(ranges.end(), part.begin(), part.end());
    }
    in_.Take("]");
    if (status_.ok() && ranges.empty()) Fail("an empty class");
    return negated ? Complement(ranges) : Normalized(std::move(ranges));
  }
  Ranges ClassPart() {
    if (in_.Take("\\")) return Escape(true);
    const uint32_t c = in_.Character();
    return {{c, c}};
  }

  Scanner in_;
  absl::Status status_;
};

class Writer {
 public:
  Writer(const RegexOptions& options, Grammar* grammar) : options_(options), grammar_(*grammar) {}

  // `node` with free text around it where it has no anchors.
  absl::StatusOr<ExprId> Outer(Node node) {
    while (node.kind == Kind::kSequence && node.kids.size() == 1 &&
           (node.kids[0].kind == Kind::kSequence || node.kids[0].kind == Kind::kChoice)) {
      Node inner = std::move(node.kids[0]);
      node = std::move(inner);
    }
    if (node.kind == Kind::kChoice) {
      std::vector<ExprId> kids;
      for (Node& kid : node.kids) {
        ASSIGN_OR_RETURN(const ExprId expr, Outer(std::move(kid)));
        kids.push_back(expr);
      }
      return grammar_.Choice(std::move(kids));
    }
    bool begin = options_.whole, end = options_.whole;
    std::vector<ExprId> parts;
    size_t first = 0, last = node.kids.size();
    for (; first < last && node.kids[first].kind == Kind::kBegin; ++first) begin = true;
    for (; last > first && node.kids[last - 1].kind == Kind::kEnd; --last) end = true;
    // ^(a|b): the anchor holds for the group's alternatives.
    if (!begin) parts.push_back(AnyText());
    for (size_t i = first; i < last; ++i) {
      ASSIGN_OR_RETURN(const ExprId expr, Inner(node.kids[i]));
      parts.push_back(expr);
    }
    if (!end) parts.push_back(AnyText());
    return grammar_.Sequence(std::move(parts));
  }

 private:
  ExprId AnyText() { return grammar_.Repeat(Class({{0, kLastCodePoint}}), 0, kUnbounded); }
  ExprId Class(const Ranges& ranges) {
    return options_.json_string ? JsonStringClass(ranges, &grammar_) : grammar_.Class(ranges);
  }

  absl::StatusOr<ExprId> Inner(const Node& node) {
    if (node.kind == Kind::kClass) return Class(node.ranges);
    if (node.kind == Kind::kBegin || node.kind == Kind::kEnd) {
      return absl::InvalidArgumentError("the pattern has an anchor inside, which is not supported");
    }
    std::vector<ExprId> kids;
    for (const Node& kid : node.kids) {
      ASSIGN_OR_RETURN(const ExprId expr, Inner(kid));
      kids.push_back(expr);
    }
    if (node.kind == Kind::kChoice) return grammar_.Choice(std::move(kids));
    if (node.kind == Kind::kRepeat) return grammar_.Repeat(kids[0], node.min, node.max);
    return grammar_.Sequence(std::move(kids));
  }

  const RegexOptions& options_;
  Grammar& grammar_;
};

ExprId HexDigit(uint32_t digit, Grammar* grammar) {
  if (digit < 10) return grammar->Class({{'0' + digit, '0' + digit}});
  return grammar->Class(
      {{'a' + digit - 10, 'a' + digit - 10}, {'A' + digit - 10, 'A' + digit - 10}});
}

}  // namespace

ExprId JsonStringClass(const Ranges& ranges, Grammar* grammar) {
  std::vector<ExprId> choices;
  const Ranges plain =
      Intersection(ranges, {{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, kLastCodePoint}});
  if (!plain.empty()) choices.push_back(grammar->Class(plain));
  auto holds = [&](uint32_t c) { return !Intersection(ranges, {{c, c}}).empty(); };
  std::string names;
  for (const auto& [point, name] : {std::pair<uint32_t, char>{'"', '"'},
                                    {'\\', '\\'},
                                    {'\b', 'b'},
                                    {'\f', 'f'},
                                    {'\n', 'n'},
                                    {'\r', 'r'},
                                    {'\t', 't'}}) {
    if (holds(point)) names += name;
  }
  Ranges letters;
  for (char c : names) letters.push_back({static_cast<uint8_t>(c), static_cast<uint8_t>(c)});
  if (!letters.empty()) {
    choices.push_back(grammar->Sequence({grammar->Bytes("\\"), grammar->Class(letters)}));
  }
  std::vector<ExprId> codes;
  for (uint32_t c = 0; c < 0x20; ++c) {
    if (!holds(c) || c == '\b' || c == '\f' || c == '\n' || c == '\r' || c == '\t') continue;
    codes.push_back(grammar->Sequence({HexDigit(c / 16, grammar), HexDigit(c % 16, grammar)}));
  }
  if (!codes.empty()) {
    choices.push_back(
        grammar->Sequence({grammar->Bytes("\\u00"), grammar->Choice(std::move(codes))}));
  }
  return grammar->Choice(std::move(choices));
}

absl::StatusOr<ExprId> ParseRegex(std::string_view pattern, const RegexOptions& options,
                                  Grammar* grammar) {
  if (pattern.size() > kMaxPatternBytes) {
    return absl::InvalidArgumentError(
        fmt::format("the pattern is longer than {} bytes", kMaxPatternBytes));
  }
  ASSIGN_OR_RETURN(Node node, Parser(pattern).Parse());
  return Writer(options, grammar).Outer(std::move(node));
}

}  // namespace terrace::grammar
