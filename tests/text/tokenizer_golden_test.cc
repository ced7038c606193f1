// Real vocabularies against the token ids of an independent engine: every text must give exactly
// the ids. Run where the golden folder is; tokenizer_test.cc covers the same behaviour without it.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tokenizer_golden.h"

namespace terrace {
namespace {

class TokenizerGolden : public GoldenVocabulary {};

TEST_P(TokenizerGolden, EveryTextGivesTheRightIds) { ExpectTheRightIds(); }

TEST_P(TokenizerGolden, DecodingGivesTheTextBack) { ExpectTheTextBack(); }

// Where a text is cut into trusted and untrusted spans must not matter if it holds no markers.
TEST_P(TokenizerGolden, SpanBordersDoNotMatter) {
  for (const std::string& text : texts_) {
    auto whole = tokenizer_->Encode(text, EncodeOptions{});
    std::vector<TextSpan> spans;
    for (size_t at = 0; at < text.size(); at += 3) {
      spans.push_back({std::string_view(text).substr(at, 3), at % 2 == 0});
    }
    auto parts = tokenizer_->Encode(spans, EncodeOptions{});
    ASSERT_TRUE(whole.ok() && parts.ok());
    EXPECT_EQ(*parts, *whole) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, TokenizerGolden, GoldenVocabulary::Names(),
                         GoldenVocabulary::TestName);

}  // namespace
}  // namespace terrace
