// Grammars, their masks over a vocabulary, and what hostile ones may cost. Hard cases A23, A24.
#include <fmt/format.h>

#include <limits>
#include <regex>
#include <string>
#include <vector>

#include "grammar_test_util.h"

namespace terrace::grammar {
namespace {

std::string Why(const absl::StatusOr<Grammar>& grammar) {
  auto compiled = Compile(grammar);
  return compiled.ok() ? "" : std::string(Message(compiled.status()));
}

TEST(GrammarRegex, MatchesAsItSays) {
  struct Case {
    std::string pattern;
    std::vector<std::string> yes, no;
  };
  const std::vector<Case> cases = {
      {"abc", {"abc"}, {"", "ab", "abcd"}},
      {"a*b+c?", {"b", "aab", "abbc"}, {"", "a", "ac", "abcc"}},
      {"(ab|cd){2,3}", {"abcd", "ababab"}, {"ab", "abababab"}},
      {"[a-c]{0,2}", {"", "a", "cc"}, {"d", "aaa"}},
      {"[^a-y\\n]", {"z", "\xC3\xA9", "\xF0\x9F\x98\x80"}, {"a", "\n", "zz"}},
      {"\\d+\\.\\d{2}", {"1.00", "123.45"}, {"1.0", ".00", "1,00"}},
      {"\\u00e9|\\x41", {"\xC3\xA9", "A"}, {"e"}},
      {"x{3,}", {"xxx", "xxxxxxx"}, {"xx"}},
      {"(?:a|(?<n>b)|(?P<m>c))d", {"ad", "bd", "cd"}, {"d"}},
      {"^a$|^b$", {"a", "b"}, {"ab", ""}},
      {"a{150}", {std::string(150, 'a')}, {std::string(149, 'a'), std::string(151, 'a')}},
      {"(ab){100,200}b",
       {[] {
         std::string s;
         for (int i = 0; i < 150; ++i) s += "ab";
         return s;
       }() +
        "b"},
       {"abb"}},
      {"a{2}{", {"aa{"}, {"aa"}},
      {"[]-a]", {}, {}},
      {".", {"a", "\xE2\x82\xAC"}, {"\n", "\xE2\x82", ""}},
      {"[\\w-]+", {"a-b_9"}, {"a b"}},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.pattern);
    if (each.yes.empty()) {
      EXPECT_FALSE(FromRegex(each.pattern).ok());
      continue;
    }
    for (const std::string& text : each.yes)
      EXPECT_TRUE(Matches(FromRegex(each.pattern), text)) << text;
    for (const std::string& text : each.no)
      EXPECT_FALSE(Matches(FromRegex(each.pattern), text)) << text;
  }
}

TEST(GrammarRegex, WithoutAnchorsFindsItsTextAnywhere) {
  const RegexOptions part{.whole = false};
  EXPECT_TRUE(Matches(FromRegex("b+", part), "aabbcc"));
  EXPECT_FALSE(Matches(FromRegex("b+", part), "aacc"));
  EXPECT_TRUE(Matches(FromRegex("^b+", part), "bbcc"));
  EXPECT_FALSE(Matches(FromRegex("^b+", part), "abb"));
  EXPECT_TRUE(Matches(FromRegex("^(a|b)$", part), "a"));
  EXPECT_FALSE(Matches(FromRegex("^(a|b)$", part), "ab"));
}

TEST(GrammarRegex, InAJsonStringIsEscaped) {
  const RegexOptions json{.json_string = true};
  EXPECT_TRUE(Matches(FromRegex("a\"b\\\\", json), R"(a\"b\\)"));
  EXPECT_FALSE(Matches(FromRegex("a\"b", json), "a\"b"));
  EXPECT_TRUE(Matches(FromRegex("[\\x00-\\x20]+", json), R"(\n\u0001\u001F )"));
}

TEST(GrammarRegex, SaysWhatIsWrong) {
  for (const char* bad :
       {"(a", "a)", "[a", "*a", "a**", "a{3,2}", "(?=a)", "(?<!a)b", "\\1", "\\bx", "a\\", "[z-a]",
        "\\p{L}", "a$b", "(?i)a", "a{999999}", "[]", "^*"}) {
    SCOPED_TRACE(bad);
    const auto grammar = FromRegex(bad);
    EXPECT_EQ(grammar.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(Message(grammar.status()).find("pattern"), std::string::npos);
  }
}

// Against the standard library's engine, on texts of a small alphabet.
TEST(GrammarRegex, AgreesWithAnotherEngine) {
  constexpr uint64_t kSeed = 7;
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  std::function<std::string(int)> write = [&](int depth) -> std::string {
    switch (random.Below(depth > 3 ? 3 : 8)) {
      case 0:
        return "a";
      case 1:
        return "[bc]";
      case 2:
        return "[^a]";
      case 3:
        return write(depth + 1) + write(depth + 1);
      case 4:
        return "(?:" + write(depth + 1) + "|" + write(depth + 1) + ")";
      case 5:
        return "(?:" + write(depth + 1) + ")*";
      case 6:
        return "(?:" + write(depth + 1) + ")?";
      default:
        return "(?:" + write(depth + 1) + "){1,3}";
    }
  };
  for (int i = 0; i < 120; ++i) {
    const std::string pattern = write(0);
    SCOPED_TRACE(pattern);
    const std::regex other(pattern);
    const auto grammar = Compile(FromRegex(pattern));
    ASSERT_TRUE(grammar.ok()) << Message(grammar.status());
    for (int j = 0; j < 60; ++j) {
      std::string text;
      for (uint64_t n = random.Below(7); n > 0; --n)
        text += static_cast<char>('a' + random.Below(3));
      EXPECT_EQ(Matches(**grammar, text), std::regex_match(text, other)) << text;
    }
  }
}

TEST(GrammarGbnf, ReadsTheNotation) {
  const auto arithmetic = ParseGbnf(
      "# sums\nroot  ::= term ( [+\\-*] term )*\nterm  ::= number | \"(\" root \")\"   # nested\n\n"
      "number ::= [0-9]+\n");
  for (const char* yes : {"1", "1+2", "(1*2)-33", "((((5))))"}) {
    EXPECT_TRUE(Matches(arithmetic, yes)) << yes;
  }
  for (const char* no : {"", "1+", "(1", "1 + 2"}) EXPECT_FALSE(Matches(arithmetic, no));
  const auto list =
      ParseGbnf("root ::= item | item \",\" root\nitem ::= \"x\"{2,3} | \"\\u00e9\" .");
  for (const char* yes : {"xx", "xxx,xx", "\xC3\xA9z,xx"}) EXPECT_TRUE(Matches(list, yes));
  for (const char* no : {"x", "xx,", "xxxx"}) EXPECT_FALSE(Matches(list, no));
}

TEST(GrammarGbnf, SaysWhatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"root ::= missing", "missing"},
      {"other ::= \"a\"", "root"},
      {"root ::= (\"a\"", "("},
      {"root ::= \"a", "line 1"},
      {"root ::= \"a\"\nroot ::= \"b\"", "second"},
      {"root ::= root \"a\" | \"b\"", "begins with itself"},
      {"root ::= a\na ::= b \"x\" | \"\"\nb ::= a", "begins with itself"},
      {"root ::= \"x\" root", "nothing can ever match"},
      {"root = \"a\"", "::="},
      {"root ::= [z-a]", "order"},
      {"", "root"},
  };
  for (const auto& [text, word] : cases) {
    SCOPED_TRACE(text);
    const std::string why = Why(ParseGbnf(text));
    EXPECT_NE(why.find(word), std::string::npos) << why;
  }
}

TEST(GrammarMasks, AreWhatTryingEveryTokenGives) {
  constexpr uint64_t kSeed = 11;
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  const std::vector<absl::StatusOr<Grammar>> grammars = {
      FromRegex("(ab|a)*c{2,4}[^x]?"),
      FromRegex("[a\\u00e9\\u{1F600}]{3,160}"),
      ParseGbnf("root ::= \"[\" (root (\",\" root)*)? \"]\" | [0-9]+ | string\n"
                "string ::= \"\\\"\" char* \"\\\"\"\nchar ::= [^\"\\\\\\x00-\\x1f]"),
      ParseGbnf("root ::= a+\na ::= \"a\" | \"ab\" | \"abc\" b?\nb ::= \"aaaa\" b | \"1\""),
      JsonObjectGrammar(),
      FromSchema(R"({"type":"object","properties":{"a":{"type":"string"},"b":{"type":"array",
        "items":{"enum":["x",1.5,null,true]},"minItems":1},"c":{"type":"number"}},
        "required":["b"],"additionalProperties":{"type":"boolean"}})"),
      FromSchema(R"({"type":"string","minLength":2,"maxLength":140})"),
      FromRegex("ab|abc|aaaa10|\": \""),
  };
  for (size_t i = 0; i < grammars.size(); ++i) {
    SCOPED_TRACE(i);
    const auto compiled = Compile(grammars[i]);
    ASSERT_TRUE(compiled.ok()) << Message(compiled.status());
    for (int round = 0; round < 6; ++round) {
      bool complete = false;
      const std::string text = Draw(*compiled, &random, true, &complete, 60);
      if (::testing::Test::HasFailure()) return;
      if (complete) {
        EXPECT_TRUE(Matches(**compiled, text)) << text;
      }
    }
  }
}

TEST(GrammarMasks, OfOneRuleAreSharedByGrammars) {
  GrammarCache cache(&TestTokenizer());
  auto get = [&](const char* name) {
    return *cache.Get(name, [&] {
      return FromSchema(
          fmt::format(R"({{"type":"object","properties":{{"{}":{{"type":"string"}}}}}})", name));
    });
  };
  const auto a = get("a"), b = get("b");
  EXPECT_NE(a, b);
  EXPECT_EQ(a, get("a"));
  auto find = [](const CompiledGrammar& grammar) {
    for (uint32_t s = 0; s < grammar.program().states(); ++s) {
      if (grammar.program().rule(grammar.program().state(s).rule).name == "string" &&
          grammar.program().state(s).bytes.size() > 5) {
        return grammar.Mask(s, 0);
      }
    }
    return std::shared_ptr<const PlaceMask>();
  };
  ASSERT_NE(find(*a), nullptr);
  EXPECT_EQ(find(*a), find(*b));
}

TEST(GrammarMasks, ForbidWhatHasNoBit) {
  std::vector<float> logits(200, 1.0f);
  std::vector<uint64_t> bits(2, 0);
  bits[0] = ~uint64_t{0};
  bits[1] = 5;
  ForbidOthers(bits, logits);
  for (size_t i = 0; i < logits.size(); ++i) {
    const bool allowed = i < 64 || i == 64 || i == 66;
    EXPECT_EQ(logits[i], allowed ? 1.0f : -std::numeric_limits<float>::infinity()) << i;
  }
}

TEST(GrammarMasks, NamedTokensAreFollowed) {
  Grammar grammar;
  const int32_t root = grammar.AddRule("root");
  grammar.SetRule(root, grammar.Sequence({grammar.Automaton(TextWithout("<end")),
                                          grammar.Token(kEndToken), grammar.Bytes("x")}));
  grammar.set_root(root);
  const auto compiled = Compile(std::move(grammar));
  ASSERT_TRUE(compiled.ok());
  Matcher matcher(*compiled);
  EXPECT_FALSE(matcher.can_end());
  EXPECT_TRUE(matcher.Accept('<'));
  EXPECT_TRUE(matcher.Accept('e'));
  EXPECT_TRUE(matcher.Allowed()[kEndToken / 64] >> (kEndToken % 64) & 1);
  EXPECT_TRUE(matcher.Accept('n'));
  EXPECT_FALSE(matcher.Accept('d'));
  EXPECT_TRUE(matcher.Accept(kEndToken));
  EXPECT_FALSE(matcher.Accept('y'));
  EXPECT_TRUE(matcher.Accept('x'));
  EXPECT_TRUE(matcher.can_end());
  EXPECT_FALSE(matcher.can_continue());
}

// ---- A24: deep, large and ambiguous grammars cost little and are refused by a limit's name ----

TEST(GrammarLimits, A24DeepNestingIsRefused) {
  for (const std::string& why :
       {Why(FromRegex(std::string(30'000, '(') + "a" + std::string(30'000, ')'))),
        Why(ParseGbnf("root ::= " + std::string(60'000, '(') + "\"a\"" +
                      std::string(60'000, ')')))}) {
    EXPECT_NE(why.find("deeper than"), std::string::npos) << why;
  }
  std::string chain;
  for (int i = 0; i < 5000; ++i) chain += fmt::format("r{} ::= r{}\n", i, i + 1);
  chain += "r5000 ::= \"a\"\nroot ::= r0\n";
  const std::string why = Why(ParseGbnf(chain));
  EXPECT_NE(why.find("deeper than"), std::string::npos) << why;
}

TEST(GrammarLimits, LargeOnesAreRefusedOrServed) {
  for (const std::string& pattern :
       {std::string("((((a{100}){100}){100}){100}){100}"), std::string("(a|b)*a(a|b){18}"),
        std::string("((((((((((a{1,9}b?){1,9}){1,9}){1,9}){1,9}){1,9}){1,9}){1,9}){1,9}){1,9})"),
        std::string("(a?){100}a{100}"), std::string("(a*)*b"), std::string("((a|a)*)*b")}) {
    SCOPED_TRACE(pattern);
    const auto compiled = Compile(FromRegex(pattern));
    if (!compiled.ok()) {
      EXPECT_EQ(compiled.status().code(), absl::StatusCode::kInvalidArgument);
      continue;
    }
    Matcher matcher(*compiled);
    for (int i = 0; i < 30; ++i) {
      matcher.Allowed();
      if (!matcher.Accept('a')) break;
    }
  }
}

TEST(GrammarLimits, AmbiguityEndsInABoundedSet) {
  // The number of ways to read n letters grows like 2^n.
  const auto compiled =
      Compile(ParseGbnf("root ::= a a a a a a a a a a a a\n"
                        "a ::= b b | b\nb ::= c c | c\nc ::= d d | d\n"
                        "d ::= \"x\" | \"x\" d | \"x\" a \"y\""));
  ASSERT_TRUE(compiled.ok()) << Message(compiled.status());
  Matcher matcher(*compiled);
  for (int i = 0; i < 40 && matcher.Accept('x'); ++i) matcher.Allowed();
}

TEST(GrammarLimits, LongTextsKeepMemoryBounded) {
  const auto compiled = Compile(ParseGbnf("root ::= \"[\" root \"]\" | \"a\" root | \"b\""));
  ASSERT_TRUE(compiled.ok());
  Matcher matcher(*compiled);
  for (int i = 0; i < 20'000; ++i) ASSERT_TRUE(matcher.Accept(i % 3 == 0 ? '[' : 'a')) << i;
  ASSERT_TRUE(matcher.Accept('b'));
  int closed = 0;
  while (!matcher.can_end()) {
    ASSERT_TRUE(matcher.Accept(']'));
    ++closed;
  }
  EXPECT_EQ(closed, (20'000 + 2) / 3);
}

}  // namespace
}  // namespace terrace::grammar
