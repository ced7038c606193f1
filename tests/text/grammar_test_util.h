// A small vocabulary and short cuts for the tests of grammars.
#ifndef TERRACE_TESTS_TEXT_GRAMMAR_TEST_UTIL_H_
#define TERRACE_TESTS_TEXT_GRAMMAR_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/json/parse.hpp>

#include "base/random.h"
#include "base/status.h"
#include "text/byte_level.h"
#include "text/grammar/gbnf.h"
#include "text/grammar/json_schema.h"
#include "text/grammar/matcher.h"
#include "text/grammar/regex.h"
#include "text/tokenizer.h"

namespace terrace::grammar {

inline constexpr int32_t kEndToken = 256;

// The bytes (ids 0 to 255), an end token (256), and longer tokens, some of them across what
// grammars take for borders.
inline const Tokenizer& TestTokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = [] {
    const ByteLevelAlphabet alphabet;
    TokenizerConfig config;
    config.model = "gpt2";
    config.pre = "qwen2";
    auto add = [&](std::string_view bytes, TokenType type) {
      std::string spelling;
      for (char c : bytes) {
        spelling += type == TokenType::kNormal ? alphabet.Spelling(static_cast<uint8_t>(c))
                                               : std::string(1, c);
      }
      config.tokens.push_back(spelling);
      config.types.push_back(static_cast<int32_t>(type));
    };
    for (int byte = 0; byte < 256; ++byte) {
      const char c = static_cast<char>(byte);
      add({&c, 1}, TokenType::kNormal);
    }
    add("<end>", TokenType::kControl);
    for (std::string_view text :
         {"ab",  "abc",      "aaaa",     "\",",      "\", \"",     "\":", "\": ", "\": \"",
          "{\"", "\"}",      "},",       "]}",       "}}",         "[\"", "\"]",  "\",\n",
          "  ",  "\n    ",   "true",     "false",    "null",       "10",  "000",  "1.5",
          "e\"", "\xC3\xA9", "\xF0\x9F", "\x98\x80", "\xC3\xA9\"", "\\n", "\\\"", "\\u00",
          ".5",  "-1",       "\"a\": ",  "a\"}",     "1}",         "1, ", "1,",   "5]"}) {
      add(text, TokenType::kNormal);
    }
    config.eos = kEndToken;
    config.merges = {"a b"};
    auto made = Tokenizer::Create(std::move(config));
    EXPECT_TRUE(made.ok()) << Message(made.status());
    return *std::move(made);
  }();
  return *tokenizer;
}

inline absl::StatusOr<std::shared_ptr<const CompiledGrammar>> Compile(
    const absl::StatusOr<Grammar>& grammar) {
  GrammarCache cache(&TestTokenizer());
  return cache.Get("", [&] { return grammar; });
}
inline absl::StatusOr<Grammar> FromRegex(std::string_view pattern, RegexOptions options = {}) {
  Grammar grammar;
  const int32_t root = grammar.AddRule("root");
  ASSIGN_OR_RETURN(const ExprId body, ParseRegex(pattern, options, &grammar));
  grammar.SetRule(root, body);
  grammar.set_root(root);
  return grammar;
}
inline absl::StatusOr<Grammar> ParseGbnf(std::string_view text) {
  Grammar grammar;
  const int32_t root = grammar.AddRule("whole");
  ASSIGN_OR_RETURN(const ExprId body, AddGbnf(text, &grammar));
  grammar.SetRule(root, body);
  grammar.set_root(root);
  return grammar;
}
inline absl::StatusOr<Grammar> FromSchema(std::string_view schema, JsonSchemaOptions options = {}) {
  const boost::json::value value =
      boost::json::parse(boost::json::string_view(schema.data(), schema.size()));
  return JsonSchemaGrammar(value, options);
}

// Whether the whole of `text` matches, byte by byte.
inline bool Matches(const CompiledGrammar& grammar, std::string_view text) {
  Machine machine(&grammar.program());
  return machine.Accepts(machine.Next(machine.Start(), text));
}
inline bool Matches(const absl::StatusOr<Grammar>& grammar, std::string_view text) {
  auto compiled = Compile(grammar);
  EXPECT_TRUE(compiled.ok()) << Message(compiled.status());
  return compiled.ok() && Matches(**compiled, text);
}

// A text that the grammar allows, drawn token by token; ends are taken when they come, with the
// given chance. Every mask is compared with what trying each token says, if `check`.
inline std::string Draw(std::shared_ptr<const CompiledGrammar> grammar, Random* random, bool check,
                        bool* complete, int max_tokens = 400) {
  Matcher matcher(grammar);
  std::string text;
  *complete = false;
  for (int step = 0; step < max_tokens; ++step) {
    const auto span = matcher.Allowed();
    const std::vector<uint64_t> bits(span.begin(), span.end());
    std::vector<int32_t> allowed;
    Machine machine(&grammar->program());
    const Machine::SetId here = check ? machine.Next(machine.Start(), text) : Machine::kDead;
    for (int32_t id = 0; id < grammar->tokens().vocab_size(); ++id) {
      const bool bit = bits[static_cast<size_t>(id) / 64] >> (id % 64) & 1;
      if (bit) allowed.push_back(id);
      if (!check) continue;
      const std::string_view bytes = grammar->tokens().Bytes(id);
      const bool right = !bytes.empty() && machine.Next(here, bytes) != Machine::kDead;
      EXPECT_EQ(bit, right) << "token " << id << " '" << bytes << "' after '" << text << "'";
      if (bit != right) return text;
    }
    if (matcher.can_end() && (allowed.empty() || random->Below(4) == 0)) {
      *complete = true;
      break;
    }
    if (allowed.empty()) {
      ADD_FAILURE() << "nothing may follow '" << text << "'";
      break;
    }
    const int32_t token = allowed[random->Below(allowed.size())];
    text += grammar->tokens().Bytes(token);
    EXPECT_TRUE(matcher.Accept(token));
  }
  return text;
}

}  // namespace terrace::grammar

#endif  // TERRACE_TESTS_TEXT_GRAMMAR_TEST_UTIL_H_
