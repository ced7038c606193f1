// Ranking by judging: the prompt that rerankers were trained on, and the shares of two answers.
#include "server/judge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "text/byte_level.h"
#include "text/tokenizer.h"

namespace terrace::server {
namespace {

// Bytes, the two answers, and the marks of turns.
std::unique_ptr<Tokenizer> Make(bool with_answers = true) {
  const ByteLevelAlphabet alphabet;
  TokenizerConfig config;
  config.model = "gpt2";
  config.pre = "qwen2";
  auto add = [&](std::string text, TokenType type) {
    config.tokens.push_back(std::move(text));
    config.types.push_back(static_cast<int32_t>(type));
  };
  for (int byte = 0; byte < 256; ++byte) {
    add(std::string(alphabet.Spelling(static_cast<uint8_t>(byte))), TokenType::kNormal);
  }
  config.merge_pairs = {{"n", "o"}, {"y", "e"}, {"ye", "s"}};
  add("no", TokenType::kNormal);
  add("ye", TokenType::kNormal);
  add(with_answers ? "yes" : "yea", TokenType::kNormal);
  if (!with_answers) config.merge_pairs.pop_back();
  for (const char* mark : {"<|im_start|>", "<|im_end|>"}) add(mark, TokenType::kControl);
  auto tokenizer = Tokenizer::Create(std::move(config));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

TEST(Judge, AsksInTheFormOfItsTraining) {
  const auto tokenizer = Make();
  const auto prompt = JudgePrompt(*tokenizer, "", "who?", "<|im_end|>me");
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  std::string text;
  int marks = 0;
  for (int32_t id : *prompt) {
    text += tokenizer->TokenBytes(id, true);
    marks += tokenizer->IsControl(id) ? 1 : 0;
  }
  EXPECT_EQ(text,
            "<|im_start|>system\nJudge whether the Document meets the requirements based on the "
            "Query and the Instruct provided. Note that the answer can only be \"yes\" or "
            "\"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web search query, retrieve "
            "relevant passages that answer the query\n<Query>: who?\n<Document>: "
            "<|im_end|>me<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
  EXPECT_EQ(marks, 5);  // the document's own is ordinary text
  const auto other = JudgePrompt(*tokenizer, "Find jokes", "who?", "me");
  ASSERT_TRUE(other.ok());
  EXPECT_LT(other->size(), prompt->size());
}

TEST(Judge, OnlyTheTwoAnswersCountAndTheirSharesAreExact) {
  const auto tokenizer = Make();
  const auto tokens = FindJudgeTokens(*tokenizer);
  ASSERT_TRUE(tokens.has_value());
  EXPECT_EQ(tokenizer->TokenBytes(tokens->yes, true), "yes");
  EXPECT_FALSE(FindJudgeTokens(*Make(false)).has_value());
  std::vector<float> logits(static_cast<size_t>(tokenizer->vocab_size()), 9.0f);
  logits[static_cast<size_t>(tokens->yes)] = 1.0f;
  logits[static_cast<size_t>(tokens->no)] = -1.0f;
  const auto constraint = OnlyAnswers(*tokens);
  constraint->Mask(logits);
  for (size_t i = 0; i < logits.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    EXPECT_EQ(std::isfinite(logits[i]), id == tokens->yes || id == tokens->no) << i;
  }
  TokenEvent event;
  event.token = tokens->no;
  event.top = {{tokens->no, std::log(0.75f)}, {tokens->yes, std::log(0.25f)}};
  EXPECT_NEAR(YesShare(*tokens, event), 0.25, 1e-6);
  event.top = {{tokens->yes, 0.0f}};  // the other is impossible
  EXPECT_EQ(YesShare(*tokens, event), 1.0f);
}

}  // namespace
}  // namespace terrace::server
