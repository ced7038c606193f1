// Input meant to hurt: zero bytes, long unbroken runs, text over limits, tables that cannot be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "base/random.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"
#include "tokenizer_test_util.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A15: a zero byte is a byte.
TEST(HostileTextTest, ZeroBytesAreOrdinary) {
  using std::string_literals::operator""s;
  auto bytes = MakeTokenizer(ByteLevelConfig(SmallMerges()));
  EXPECT_THAT(EncodeOrDie(*bytes, "hello\0hello"s),
              ElementsAre(*bytes->Find("hello"), 0, *bytes->Find("hello")));
  auto pieces = MakeTokenizer(SpmConfig({"a", "\xE2\x96\x81"}));
  EXPECT_THAT(
      EncodeOrDie(*pieces, "a\0a"s),
      ElementsAre(*pieces->Find("\xE2\x96\x81"), *pieces->Find("a"), 3, *pieces->Find("a")));
}

std::string Base64Blob(size_t bytes) {
  static const char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  Random random(5);
  std::string text;
  while (text.size() < bytes) text.push_back(kDigits[random.Below(64)]);
  return text;
}

std::string Repeat(std::string_view part, size_t times) {
  std::string text;
  for (size_t i = 0; i < times; ++i) text += part;
  return text;
}

// Runs of one kind of character, of `n` characters each, and their neighbours.
std::vector<std::string> LongRuns(size_t n) {
  return {
      std::string(n, 'a'),        std::string(n, '1'),       Repeat("\xE4\xB8\xAD", n),
      Base64Blob(5 * n),          std::string(n, ' ') + "x", std::string(n, ' ') + "\xE4\xB8\xAD",
      std::string(n, '\n') + "x", std::string(n, 'A') + "a", Repeat("A\xE4\xB8\xAD", n),
      std::string(n, '.'),        Repeat("e\xCC\x81", n),    std::string(n, '\xFF'),
      std::string(n, '<'),        Repeat("<|im_", n)};
}

void CheckLinear(const Tokenizer& tokenizer, const std::string& text) {
  EncodeStats stats;
  auto ids = tokenizer.Encode(text, {.parse_special = true, .stats = &stats});
  ASSERT_TRUE(ids.ok());
  size_t bytes = 0;
  for (int32_t id : *ids) bytes += tokenizer.TokenBytes(id, true).size();
  EXPECT_EQ(bytes, text.size() + (tokenizer.add_space_prefix() ? 1 : 0));
  // A symbol enters the heap with its neighbour once, and each of fewer than n merges adds two.
  EXPECT_LE(stats.merge_steps, 3 * (text.size() + 1));
  // At most one match a character in each of up to six patterns, and one that fails a piece.
  EXPECT_LE(stats.pattern_matches, 13 * text.size());
  // No single match needed more steps than a few a byte: the splitter gives up above that.
  EXPECT_EQ(stats.pattern_limits, 0u);
}

// A14: work grows with the text, not with its square. Counted in steps, since time is the
// machine's.
TEST(HostileTextTest, LongRunsTakeLinearSteps) {
  for (const char* pre :
       {"qwen2", "llama-bpe", "smollm", "kimi-k2", "superbpe", "afmoe", "chameleon"}) {
    TokenizerConfig config = ByteLevelConfig(SmallMerges());
    config.pre = pre;
    auto tokenizer = MakeTokenizer(std::move(config));
    for (const std::string& text : LongRuns(200'000)) {
      SCOPED_TRACE(testing::Message() << pre << ": " << text.substr(0, 6));
      CheckLinear(*tokenizer, text);
    }
  }
  auto pieces = MakeTokenizer(SpmConfig({"\xE2\x96\x81", "a", "aa", "aaaa", "1", "11"}));
  for (const std::string& text : LongRuns(200'000)) {
    SCOPED_TRACE(testing::Message() << "llama: " << text.substr(0, 6));
    CheckLinear(*pieces, text);
  }
}

TEST(HostileTextTest, EveryFamilySplitsLongRunsInLinearSteps) {
  for (const std::string& pre : PrePatternNames()) {
    TokenizerConfig config = ByteLevelConfig(SmallMerges());
    config.pre = pre;
    auto tokenizer = MakeTokenizer(std::move(config));
    ASSERT_NE(tokenizer, nullptr) << pre;
    for (const std::string& text : LongRuns(5'000)) {
      SCOPED_TRACE(testing::Message() << pre << ": " << text.substr(0, 6));
      CheckLinear(*tokenizer, text);
    }
  }
}

// No pattern of ours is like this one; if one were, text would be cut and not the server stopped.
TEST(HostileTextTest, AMatchThatHitsItsLimitIsCutIntoWindows) {
  const PrePatterns family{{"explosive"}, {R"((?:a|aa)+!|b+)"}};
  auto pre = PreTokenizer::Create(&family);
  ASSERT_TRUE(pre.ok()) << Message(pre.status());
  const std::string text = "bb" + std::string(20'000, 'a') + "bb";
  EncodeStats stats;
  auto split = (*pre)->Split(text, &stats);
  ASSERT_TRUE(split.ok()) << Message(split.status());
  const std::vector<PreTokenizer::Piece>& pieces = *split;
  EXPECT_GT(stats.pattern_limits, 0u);
  EXPECT_LT(stats.pattern_limits, 20u);
  ASSERT_FALSE(pieces.empty());
  EXPECT_EQ(pieces.front().end, 2u);  // What needs no limit is split as ever.
  uint32_t at = 0;
  for (const PreTokenizer::Piece& piece : pieces) {
    EXPECT_EQ(piece.begin, at);
    EXPECT_GT(piece.end, piece.begin);
    at = piece.end;
  }
  EXPECT_EQ(at, text.size());
}

TEST(HostileTextTest, TextOverTheLimitIsRefused) {
  auto tokenizer = MakeTokenizer(ByteLevelConfig(SmallMerges()));
  EXPECT_TRUE(tokenizer->Encode("12345678", {.max_bytes = 8}).ok());
  EXPECT_EQ(tokenizer->Encode("123456789", {.max_bytes = 8}).status().code(),
            absl::StatusCode::kInvalidArgument);
  const std::vector<TextSpan> spans = {{"12345", true}, {"6789", false}};
  EXPECT_EQ(tokenizer->Encode(std::span(spans), {.max_bytes = 8}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// A04 and its kind: every table that cannot be is refused by its name.
TEST(HostileTableTest, BadTablesAreRefusedByName) {
  const TokenizerConfig good = ByteLevelConfig(SmallMerges());
  auto broken = [&](auto change) {
    TokenizerConfig config = good;
    change(config);
    return ErrorOf(std::move(config));
  };
  EXPECT_THAT(broken([](auto& c) { c.types.pop_back(); }), HasSubstr("token_type"));
  EXPECT_THAT(broken([](auto& c) { c.types.push_back(1); }), HasSubstr("token_type"));
  EXPECT_THAT(broken([](auto& c) { c.types[3] = 77; }), HasSubstr("token_type"));
  EXPECT_THAT(broken([](auto& c) { c.types[3] = -1; }), HasSubstr("token_type"));
  EXPECT_THAT(broken([](auto& c) { c.scores = {1, 2}; }), HasSubstr("scores"));
  EXPECT_THAT(broken([](auto& c) {
                c.scores.assign(c.tokens.size(), std::numeric_limits<float>::quiet_NaN());
              }),
              HasSubstr("scores"));
  EXPECT_THAT(broken([](auto& c) { c.tokens.clear(); }), HasSubstr("tokens"));
  EXPECT_THAT(broken([](auto& c) { c.merge_pairs.clear(); }), HasSubstr("merges"));
  EXPECT_THAT(broken([](auto& c) { c.merges = {"a b"}; }), HasSubstr("merges"));
  EXPECT_THAT(broken([](auto& c) { c.merge_pairs.emplace_back("", "x"); }), HasSubstr("merges"));
  for (const char* merge : {"", "ab", " ", "a ", " a"}) {
    EXPECT_THAT(broken([&](auto& c) {
                  c.merge_pairs.clear();
                  c.merges = {merge};
                }),
                HasSubstr("merges"))
        << merge;
  }
  EXPECT_THAT(broken([](auto& c) { c.bos = 1 << 20; }), HasSubstr("bos_token_id"));
  EXPECT_THAT(broken([](auto& c) { c.eos = -5; }), HasSubstr("eos_token_id"));
  EXPECT_THAT(broken([](auto& c) { c.eot = int64_t{1} << 40; }), HasSubstr("eot_token_id"));
  EXPECT_THAT(broken([](auto& c) { c.bos.reset(), c.add_bos = true; }), HasSubstr("add_bos"));
  EXPECT_THAT(broken([](auto& c) { c.eos.reset(), c.add_eos = true; }), HasSubstr("add_eos"));
  EXPECT_THAT(broken([](auto& c) { c.model = "wordpiece"; }), HasSubstr("wordpiece"));
  EXPECT_THAT(broken([](auto& c) { AddToken(&c, std::string(5000, 'x'), TokenType::kControl); }),
              HasSubstr("special token"));
  const std::string pre = broken([](auto& c) { c.pre = "quen2"; });
  EXPECT_THAT(pre, HasSubstr("'quen2'"));
  EXPECT_THAT(pre, HasSubstr("did you mean 'qwen2'?"));
  EXPECT_THAT(pre, HasSubstr("llama-bpe"));
}

TEST(HostileTableTest, AMissingPreTokenizerIsTheDefaultWithAWarning) {
  TokenizerConfig config = ByteLevelConfig(SmallMerges());
  config.pre.clear();
  auto tokenizer = MakeTokenizer(std::move(config));
  ASSERT_EQ(tokenizer->warnings().size(), 1u);
  EXPECT_THAT(tokenizer->warnings()[0], HasSubstr("default"));
}

TEST(HostileTableTest, EqualSpellingsAndEmptyTokensAreHarmless) {
  TokenizerConfig config = ByteLevelConfig(SmallMerges());
  AddToken(&config, "", TokenType::kNormal);
  AddToken(&config, "", TokenType::kControl);
  const int32_t again = AddToken(&config, "hello", TokenType::kNormal);
  auto tokenizer = MakeTokenizer(std::move(config));
  EXPECT_EQ(tokenizer->Find("hello"), again);
  EXPECT_THAT(EncodeOrDie(*tokenizer, "hello"), ElementsAre(again));
}

}  // namespace
}  // namespace terrace
