// What the families without a golden vocabulary split text into, worked out by hand.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/status.h"
#include "text/pre_tokenizer.h"

namespace terrace {
namespace {

using Pieces = std::vector<std::string>;

Pieces Split(std::string_view family, std::string_view text) {
  const PrePatterns* patterns = FindPrePatterns(family);
  EXPECT_NE(patterns, nullptr) << family;
  auto splitter = PreTokenizer::Create(patterns);
  EXPECT_TRUE(splitter.ok()) << Message(splitter.status());
  EncodeStats stats;
  auto pieces = (*splitter)->Split(text, &stats);
  EXPECT_TRUE(pieces.ok());
  Pieces out;
  for (const auto& piece : *pieces) {
    out.emplace_back(text.substr(piece.begin, piece.end - piece.begin));
  }
  return out;
}

TEST(PrePatterns, KimiK2SetsHanApart) {
  EXPECT_EQ(Split("kimi-k2", "\u4e2d\u6587abc\u4e2d Hello WORLD's 1234"),
            (Pieces{"\u4e2d\u6587", "abc", "\u4e2d", " Hello", " WORLD's", " ", "123", "4"}));
  EXPECT_EQ(Split("kimi-k2", "\u304b\u306a x\n\n y"), (Pieces{"\u304b\u306a", " x", "\n\n", " y"}));
}

TEST(PrePatterns, NumbersGroupFromTheRight) {
  EXPECT_EQ(Split("superbpe", "12345678 by the 123"),
            (Pieces{"12", "345", "678", " by the ", "123"}));
  EXPECT_EQ(Split("superbpe", "1234"), (Pieces{"1", "234"}));
  EXPECT_EQ(Split("afmoe", "abc 1234567\ud55c\uad6d, OK"),
            (Pieces{"abc", " ", "1", "234", "567", "\ud55c\uad6d", ",", " OK"}));
}

TEST(PrePatterns, ChameleonSplitsImagesBlanksAndPunctuation) {
  EXPECT_EQ(Split("chameleon", "a\tb  7!IMGIMGABZ don't"),
            (Pieces{"a", "\t", "b", "  ", "7", "!", "IMGIMGABZ", " don", "'", "t"}));
}

}  // namespace
}  // namespace terrace
