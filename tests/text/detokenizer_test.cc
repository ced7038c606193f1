#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/random.h"
#include "base/text.h"
#include "text/utf8.h"
#include "tokenizer_test_util.h"

namespace terrace {
namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";

// An emoji, a family joined by U+200D, Thai with combining marks, a flag of two letters.
constexpr char kHardText[] =
    "hi \xF0\x9F\xA6\x99 \xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA7 "
    "\xE0\xB8\x81\xE0\xB8\xB3\xE0\xB8\xA5\xE0\xB8\xB1\xE0\xB8\x87 \xF0\x9F\x87\xAB\xF0\x9F\x87\xAE";

std::vector<int32_t> ByteIds(std::string_view bytes) {
  std::vector<int32_t> ids;
  for (char c : bytes) ids.push_back(static_cast<uint8_t>(c));
  return ids;
}

// A26: one byte a token, the worst cut there is.
TEST(DetokenizerTest, CharactersSplitOverTokensComeWhole) {
  auto tokenizer = MakeTokenizer(ByteLevelConfig(SmallMerges()));
  Detokenizer detokenizer(tokenizer.get());
  std::string joined;
  for (int32_t id : ByteIds(kHardText)) {
    const std::string piece = detokenizer.Append(id);
    EXPECT_TRUE(IsValidUtf8(piece));
    joined += piece;
  }
  joined += detokenizer.Finish();
  EXPECT_EQ(joined, kHardText);
}

TEST(DetokenizerTest, AnyBytesInAnyCutsGiveTheWholeTextReplaced) {
  auto tokenizer = MakeTokenizer(ByteLevelConfig(SmallMerges()));
  const uint64_t seed = 77;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Random random(seed);
  // Bytes that begin, go on, overrun and break characters, more often than chance would.
  const std::string interesting =
      "a\x80\x9F\xA0\xBF\xC2\xC0\xE0\xED\xEF\xF0\xF4\xF5\xFF\xE2\x96\x81";
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (uint64_t n = random.Below(12); n > 0; --n) {
      bytes.push_back(interesting[random.Below(interesting.size())]);
    }
    const std::vector<int32_t> ids = ByteIds(bytes);
    Detokenizer detokenizer(tokenizer.get());
    std::string joined;
    for (int32_t id : ids) {
      const std::string piece = detokenizer.Append(id);
      EXPECT_TRUE(IsValidUtf8(piece));
      joined += piece;
    }
    joined += detokenizer.Finish();
    EXPECT_EQ(joined, ToValidUtf8(bytes));
    EXPECT_EQ(Decode(*tokenizer, ids), joined);
  }
}

TEST(DetokenizerTest, ALoneInvalidByteIsFlushedWithinThreeTokens) {
  auto tokenizer = MakeTokenizer(ByteLevelConfig(SmallMerges()));
  Detokenizer detokenizer(tokenizer.get());
  EXPECT_EQ(detokenizer.Append(0xFF), kReplacement);                    // Never begins a character.
  EXPECT_EQ(detokenizer.Append(0x80), kReplacement);                    // Only ever goes on.
  EXPECT_EQ(detokenizer.Append(0xF0), "");                              // May begin one ...
  EXPECT_EQ(detokenizer.Append('x'), std::string(kReplacement) + "x");  // ... and did not.
  // A stream of lead bytes never holds more than one of them.
  EXPECT_EQ(detokenizer.Append(0xF0), "");
  for (int i = 0; i < 10; ++i) EXPECT_EQ(detokenizer.Append(0xF0), kReplacement);
}

// A27: the limit may fall anywhere inside a character.
TEST(DetokenizerTest, DanglingBytesAreReplacedOnceAtTheEnd) {
  auto tokenizer = MakeTokenizer(ByteLevelConfig(SmallMerges()));
  const std::string llama = "\xF0\x9F\xA6\x99";
  for (size_t keep = 1; keep <= 4; ++keep) {
    Detokenizer detokenizer(tokenizer.get());
    std::string text;
    for (int32_t id : ByteIds(llama.substr(0, keep))) text += detokenizer.Append(id);
    EXPECT_EQ(text, keep == 4 ? llama : "");
    EXPECT_EQ(detokenizer.Finish(), keep == 4 ? "" : kReplacement);
    EXPECT_EQ(detokenizer.Finish(), "");
  }
}

TEST(DetokenizerTest, ControlTokensAreSilentOrSpelled) {
  auto tokenizer = MakeTokenizer(ByteLevelConfig(SmallMerges()));
  const std::vector<int32_t> ids = {*tokenizer->bos(), 'h', *tokenizer->eos(), -4, 1 << 30};
  EXPECT_EQ(Decode(*tokenizer, ids), "h");
  EXPECT_EQ(Decode(*tokenizer, ids, {.render_special = true}), "<|bos|>h<|im_end|>");
}

TEST(DetokenizerTest, TheSpacePrefixIsDroppedOnceWhereAsked) {
  auto tokenizer =
      MakeTokenizer(SpmConfig({"\xE2\x96\x81"
                               "a"}));
  const int32_t a = *tokenizer->Find(
      "\xE2\x96\x81"
      "a");
  const std::vector<int32_t> ids = {1, a, a};
  EXPECT_EQ(Decode(*tokenizer, ids), " a a");
  EXPECT_EQ(Decode(*tokenizer, ids, {.strip_space_prefix = true}), "a a");
}

TEST(Utf8Test, TailsAreThoseThatMayStillBecomeCharacters) {
  EXPECT_EQ(Utf8IncompleteTail(""), 0u);
  EXPECT_EQ(Utf8IncompleteTail("a"), 0u);
  EXPECT_EQ(Utf8IncompleteTail("a\xC3"), 1u);
  EXPECT_EQ(Utf8IncompleteTail("\xE2\x96"), 2u);
  EXPECT_EQ(Utf8IncompleteTail("\xF0\x9F\xA6"), 3u);
  EXPECT_EQ(Utf8IncompleteTail("\xE2\x96\x81"), 0u);
  EXPECT_EQ(Utf8IncompleteTail("\xE0\x80"), 0u);  // Overlong: cannot become one.
  EXPECT_EQ(Utf8IncompleteTail("\xED\xA0"), 0u);  // A surrogate.
  EXPECT_EQ(Utf8IncompleteTail("\x80\x80\x80\x80"), 0u);
  EXPECT_EQ(Utf8IncompleteTail("\xFF"), 0u);
}

}  // namespace
}  // namespace terrace
