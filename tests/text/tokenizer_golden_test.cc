// Real vocabularies against the token ids of an independent engine: every text must give exactly
// the ids. Run where the golden folder is; tokenizer_test.cc covers the same behaviour without it.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/text.h"
#include "format/gguf.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_metadata.h"

namespace terrace {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<std::string> SplitTexts(const std::string& all) {
  const std::string separator = "\n__ggml_vocab_test__\n";
  std::vector<std::string> texts;
  for (size_t at = 0;;) {
    const size_t end = all.find(separator, at);
    texts.push_back(all.substr(at, end == std::string::npos ? end : end - at));
    if (end == std::string::npos) return texts;
    at = end + separator.size();
  }
}

class TokenizerGolden : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    base_ = std::string(TERRACE_GOLDEN) + "/tokenizers/" + GetParam();
    if (!std::filesystem::exists(base_ + ".gguf")) {
      GTEST_SKIP() << base_ << ".gguf is not there";
    }
    auto source = format::OpenGguf(base_ + ".gguf");
    ASSERT_TRUE(source.ok()) << Message(source.status());
    auto config = TokenizerConfigFromMetadata(source->metadata);
    ASSERT_TRUE(config.ok()) << Message(config.status());
    auto tokenizer = Tokenizer::Create(*std::move(config));
    ASSERT_TRUE(tokenizer.ok()) << Message(tokenizer.status());
    tokenizer_ = *std::move(tokenizer);
    texts_ = SplitTexts(ReadFile(base_ + ".inp"));
  }

  std::string base_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<std::string> texts_;
};

TEST_P(TokenizerGolden, EveryTextGivesTheRightIds) {
  const std::string out = ReadFile(base_ + ".out");
  const std::vector<std::string_view> lines = Split(out, '\n');
  ASSERT_GE(lines.size(), texts_.size());
  for (size_t i = 0; i < texts_.size(); ++i) {
    std::istringstream line{std::string(lines[i])};
    const std::vector<int32_t> want(std::istream_iterator<int32_t>(line), {});
    auto ids = tokenizer_->Encode(texts_[i], EncodeOptions{});
    ASSERT_TRUE(ids.ok()) << Message(ids.status());
    EXPECT_EQ(*ids, want) << "text " << i << ": '" << texts_[i] << "'";
  }
}

TEST_P(TokenizerGolden, DecodingGivesTheTextBack) {
  for (const std::string& text : texts_) {
    auto ids = tokenizer_->Encode(text, EncodeOptions{});
    ASSERT_TRUE(ids.ok()) << Message(ids.status());
    EXPECT_EQ(Decode(*tokenizer_, *ids, {.strip_space_prefix = true}), text);
  }
}

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

INSTANTIATE_TEST_SUITE_P(Vocabularies, TokenizerGolden,
                         testing::Values("deepseek-llm", "falcon", "gemma-4", "gpt-2", "llama-bpe",
                                         "llama-spm", "phi-3", "qwen2", "starcoder"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace terrace
