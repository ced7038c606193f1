// Tiny vocabularies for the tests of this folder.
#ifndef TERRACE_TESTS_TEXT_TOKENIZER_TEST_UTIL_H_
#define TERRACE_TESTS_TEXT_TOKENIZER_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/byte_level.h"
#include "text/tokenizer.h"

namespace terrace {

inline int32_t AddToken(TokenizerConfig* config, const std::string& text, TokenType type) {
  config->tokens.push_back(text);
  config->types.push_back(static_cast<int32_t>(type));
  return static_cast<int32_t>(config->tokens.size()) - 1;
}

// A byte-level vocabulary: token i is byte i, then one token a merge, in order, then (ids 256 + the
// number of merges and on) "<|bos|>", "<|im_end|>", "<|im_start|>" (control) and "<tool_call>",
// "<b>" (user-defined). Merges are pairs in the byte-level spelling.
inline TokenizerConfig ByteLevelConfig(
    const std::vector<std::pair<std::string, std::string>>& merges) {
  TokenizerConfig config;
  config.model = "gpt2";
  config.pre = "qwen2";
  const ByteLevelAlphabet alphabet;
  for (int byte = 0; byte < 256; ++byte) {
    AddToken(&config, alphabet.Spelling(static_cast<uint8_t>(byte)), TokenType::kNormal);
  }
  for (const auto& [left, right] : merges) AddToken(&config, left + right, TokenType::kNormal);
  config.merge_pairs = merges;
  config.bos = AddToken(&config, "<|bos|>", TokenType::kControl);
  config.eos = AddToken(&config, "<|im_end|>", TokenType::kControl);
  AddToken(&config, "<|im_start|>", TokenType::kControl);
  AddToken(&config, "<tool_call>", TokenType::kUserDefined);
  AddToken(&config, "<b>", TokenType::kUserDefined);
  return config;
}

// Merges that build "hello" and " world" and a few runs.
inline std::vector<std::pair<std::string, std::string>> SmallMerges() {
  const std::string sp = "\xC4\xA0";  // The byte-level spelling of a space.
  return {{"h", "e"},   {"l", "l"},       {"he", "ll"}, {"hell", "o"},      {sp, "w"},
          {"o", "r"},   {sp + "w", "or"}, {"l", "d"},   {sp + "wor", "ld"}, {"a", "a"},
          {"aa", "aa"}, {"1", "2"},       {sp, sp}};
}

// A SentencePiece vocabulary: 0 <unk>, 1 <s>, 2 </s>, 3 to 258 the bytes, then the pieces with
// scores falling by one.
inline TokenizerConfig SpmConfig(const std::vector<std::string>& pieces) {
  TokenizerConfig config;
  config.model = "llama";
  config.unk = AddToken(&config, "<unk>", TokenType::kUnknown);
  config.bos = AddToken(&config, "<s>", TokenType::kControl);
  config.eos = AddToken(&config, "</s>", TokenType::kControl);
  for (int byte = 0; byte < 256; ++byte) {
    static const char kHex[] = "0123456789ABCDEF";
    AddToken(&config, std::string("<0x") + kHex[byte / 16] + kHex[byte % 16] + ">",
             TokenType::kByte);
  }
  config.scores.assign(config.tokens.size(), 0);
  for (const std::string& piece : pieces) {
    AddToken(&config, piece, TokenType::kNormal);
    config.scores.push_back(-static_cast<float>(config.scores.size()));
  }
  return config;
}

inline std::unique_ptr<Tokenizer> MakeTokenizer(TokenizerConfig config) {
  auto tokenizer = Tokenizer::Create(std::move(config));
  EXPECT_TRUE(tokenizer.ok()) << Message(tokenizer.status());
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

inline std::vector<int32_t> EncodeOrDie(const Tokenizer& tokenizer, std::string_view text,
                                        EncodeOptions options = {}) {
  auto ids = tokenizer.Encode(text, options);
  EXPECT_TRUE(ids.ok()) << Message(ids.status());
  return ids.ok() ? *ids : std::vector<int32_t>{};
}

// The message with which a bad config is refused.
inline std::string ErrorOf(TokenizerConfig config) {
  auto tokenizer = Tokenizer::Create(std::move(config));
  if (tokenizer.ok()) return "no error";
  EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(Message(tokenizer.status()));
}

}  // namespace terrace

#endif  // TERRACE_TESTS_TEXT_TOKENIZER_TEST_UTIL_H_
