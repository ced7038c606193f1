// Real vocabularies and texts with the token ids of an independent engine, from the golden folder.
#ifndef TERRACE_TESTS_TEXT_TOKENIZER_GOLDEN_H_
#define TERRACE_TESTS_TEXT_TOKENIZER_GOLDEN_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/text.h"
#include "format/gguf.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_metadata.h"

namespace terrace {

// The parameter is a vocabulary's name. Skipped where the golden folder is not.
class GoldenVocabulary : public testing::TestWithParam<const char*> {
 public:
  static auto Names() {
    return testing::Values("deepseek-llm", "falcon", "gemma-4", "gpt-2", "llama-bpe", "llama-spm",
                           "phi-3", "qwen2", "starcoder");
  }
  static std::string TestName(const testing::TestParamInfo<const char*>& info) {
    std::string name = info.param;
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
  }

 protected:
  void SetUp() override {
    base_ = std::string(TERRACE_GOLDEN) + "/tokenizers/" + GetParam();
    if (!std::filesystem::exists(base_ + ".gguf")) {
      GTEST_SKIP() << base_ << ".gguf is not there";
    }
    auto source = format::OpenGguf(base_ + ".gguf");
    ASSERT_TRUE(source.ok()) << Message(source.status());
    auto tables = TokenizerConfigFromMetadata(source->metadata);
    ASSERT_TRUE(tables.ok()) << Message(tables.status());
    auto config = Config(*std::move(tables));
    ASSERT_TRUE(config.ok()) << Message(config.status());
    auto tokenizer = Tokenizer::Create(*std::move(config));
    ASSERT_TRUE(tokenizer.ok()) << Message(tokenizer.status());
    tokenizer_ = *std::move(tokenizer);
    const std::string separator = "\n__ggml_vocab_test__\n", all = ReadFile(base_ + ".inp");
    for (size_t at = 0, end = 0; end != std::string::npos; at = end + separator.size()) {
      end = all.find(separator, at);
      texts_.push_back(all.substr(at, end == std::string::npos ? end : end - at));
    }
  }

  // What the tokenizer is made of: the tables of the vocabulary's file, or something made of them.
  virtual absl::StatusOr<TokenizerConfig> Config(TokenizerConfig tables) { return tables; }

  void ExpectTheRightIds() const {
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

  void ExpectTheTextBack() const {
    for (const std::string& text : texts_) {
      auto ids = tokenizer_->Encode(text, EncodeOptions{});
      ASSERT_TRUE(ids.ok()) << Message(ids.status());
      EXPECT_EQ(Decode(*tokenizer_, *ids, {.strip_space_prefix = true}), text);
    }
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<std::string> texts_;

 private:
  static std::string ReadFile(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  std::string base_;
};

}  // namespace terrace

#endif  // TERRACE_TESTS_TEXT_TOKENIZER_GOLDEN_H_
