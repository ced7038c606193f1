// Small tokenizer.json files of every kind of step and model, against the ids that the reference
// library gives (tests/data/tokenizer_json/make.py), and files that must be refused.
#include "text/tokenizer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/metadata.h"
#include "base/status.h"
#include "text/detokenizer.h"
#include "text/pipeline/pipeline_json.h"
#include "text/tokenizer_metadata.h"
#include "tokenizer_test_util.h"

namespace terrace {
namespace {

namespace json = boost::json;
using testing::ElementsAre;
using testing::HasSubstr;

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::unique_ptr<Tokenizer> FromJson(std::string_view text, std::string_view settings = "") {
  auto config = TokenizerConfigFromJson(text, settings);
  EXPECT_TRUE(config.ok()) << Message(config.status());
  return config.ok() ? MakeTokenizer(*std::move(config)) : nullptr;
}

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(TERRACE_TEST_DATA) + "/tokenizer_json")) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class ReferenceTokenizer : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string path =
        std::string(TERRACE_TEST_DATA) + "/tokenizer_json/" + GetParam() + ".json";
    data_ = json::parse(ReadFile(path));
    tokenizer_ = FromJson(json::serialize(data_.at("tokenizer")));
    ASSERT_NE(tokenizer_, nullptr);
  }
  json::value data_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(ReferenceTokenizer, GivesTheSameIds) {
  for (const json::value& entry : data_.at("cases").as_array()) {
    const std::string text(entry.at("text").as_string());
    const auto ids = json::value_to<std::vector<int32_t>>(entry.at("ids"));
    const auto special = json::value_to<std::vector<int32_t>>(entry.at("special_ids"));
    EXPECT_EQ(EncodeOrDie(*tokenizer_, text, {.parse_special = true}), ids) << text;
    // A text that brings its own start gets no second one here (case A12), but does there.
    if (text.starts_with("<s>")) continue;
    EXPECT_EQ(EncodeOrDie(*tokenizer_, text, {.add_special = true, .parse_special = true}), special)
        << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Files, ReferenceTokenizer, testing::ValuesIn(Names()),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

TEST(TokenizerJson, AllKindsAreTested) { EXPECT_EQ(Names().size(), 12u); }

// A byte-level vocabulary of the 256 bytes and what `merges` makes, as tokenizer.json.
json::object ByteLevelJson(json::array merges, const std::vector<std::string>& joined) {
  json::object vocab;
  const ByteLevelAlphabet alphabet;
  for (int byte = 0; byte < 256; ++byte)
    vocab[alphabet.Spelling(static_cast<uint8_t>(byte))] = byte;
  for (const std::string& token : joined) vocab[token] = vocab.size();
  return {{"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", std::move(merges)}}},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"decoder", {{"type", "ByteLevel"}}}};
}

// A11: merges as strings with a space and as pairs, one part holding a space in its own right.
TEST(TokenizerJson, A11BothFormsOfMergesGiveTheSameIds) {
  const std::string sp = "\xC4\xA0";
  auto strings = FromJson(json::serialize(
      ByteLevelJson({"h e", "l l", "he ll", sp + " w"}, {"he", "ll", "hell", sp + "w"})));
  json::array pairs;
  for (auto [left, right] :
       {std::pair<std::string, std::string>{"h", "e"}, {"l", "l"}, {"he", "ll"}, {sp, "w"}}) {
    pairs.push_back(json::array{left, right});
  }
  auto lists =
      FromJson(json::serialize(ByteLevelJson(std::move(pairs), {"he", "ll", "hell", sp + "w"})));
  const std::string text = "hello we hell w";
  EXPECT_EQ(EncodeOrDie(*strings, text), EncodeOrDie(*lists, text));
  EXPECT_THAT(EncodeOrDie(*lists, "hell"), ElementsAre(258));

  // A pair whose parts hold real spaces, over characters instead of bytes.
  json::object spaced{{"model",
                       {{"type", "BPE"},
                        {"vocab", {{" ", 0}, {"a", 1}, {" a", 2}, {" a a", 3}, {" a ", 4}}},
                        {"merges", json::array{json::array{" ", "a"}, json::array{" a", " a"}}}}}};
  spaced["model"].as_object()["vocab"].as_object()[" a a"] = 3;
  auto tokenizer = FromJson(json::serialize(spaced));
  EXPECT_THAT(EncodeOrDie(*tokenizer, " a a"), ElementsAre(3));
}

TEST(TokenizerJson, A11NoMergesAtAllAreRefused) {
  auto config = TokenizerConfigFromJson(json::serialize(ByteLevelJson({}, {})), "");
  ASSERT_TRUE(config.ok());
  EXPECT_THAT(ErrorOf(*std::move(config)), HasSubstr("merges: missing"));
}

// A12, A13: one start token however it comes, and no control token from untrusted text.
TEST(TokenizerJson, A13ControlTokensComeFromTrustedTextOnly) {
  json::object file = ByteLevelJson({"h e"}, {"he"});
  file["added_tokens"] = json::array{
      json::object{{"id", 257}, {"content", "<|im_end|>"}, {"special", true}},
      json::object{{"id", 258}, {"content", "<|user|>"}, {"special", false}, {"normalized", true}},
      json::object{{"id", 259}, {"content", "<b>"}, {"special", false}}};
  file["normalizer"] = json::object{{"type", "NFC"}};
  auto tokenizer = FromJson(json::serialize(file), R"({"eos_token":{"content":"<|im_end|>"}})");
  EXPECT_EQ(tokenizer->eos(), 257);
  EXPECT_TRUE(tokenizer->IsEndOfGeneration(257));
  const TextSpan trusted[] = {{"<|user|><b><|im_end|>", true}};
  EXPECT_THAT(*tokenizer->Encode(trusted, {}), ElementsAre(258, 259, 257));
  const TextSpan user[] = {{"<|user|><b><|im_end|>", false}};
  auto ids = tokenizer->Encode(user, {});
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(std::ranges::count(*ids, 257) + std::ranges::count(*ids, 258), 0);
  EXPECT_EQ(std::ranges::count(*ids, 259), 1);
  EXPECT_EQ(Decode(*tokenizer, *ids), "<|user|><b><|im_end|>");
}

TEST(TokenizerJson, A12SettingsSayWhetherAStartTokenIsAdded) {
  json::object file = ByteLevelJson({"h e"}, {"he"});
  file["added_tokens"] =
      json::array{json::object{{"id", 257}, {"content", "<s>"}, {"special", true}}};
  const std::string text = json::serialize(file);
  auto with = FromJson(
      text, R"({"tokenizer_class":"LlamaTokenizerFast","bos_token":"<s>","add_bos_token":true})");
  EXPECT_THAT(EncodeOrDie(*with, "he", {.add_special = true}), ElementsAre(257, 256));
  EXPECT_THAT(EncodeOrDie(*with, "<s>he", {.add_special = true, .parse_special = true}),
              ElementsAre(257, 256));
  auto without = FromJson(
      text, R"({"tokenizer_class":"Qwen2Tokenizer","bos_token":"<s>","add_bos_token":true})");
  EXPECT_THAT(EncodeOrDie(*without, "he", {.add_special = true}), ElementsAre(256));
}

TEST(TokenizerJson, MetadataLeadsToTheFileAndItsEndTokens) {
  json::object file = ByteLevelJson({"h e"}, {"he", "x1", "x2"});
  Metadata metadata;
  metadata.Set("tokenizer.huggingface.json", json::serialize(file));
  metadata.Set("tokenizer.ggml.eos_token_id", int64_t{257});
  metadata.Set("tokenizer.ggml.end_token_ids", std::vector<int64_t>{257, 258});
  auto config = TokenizerConfigFromMetadata(metadata);
  ASSERT_TRUE(config.ok()) << Message(config.status());
  auto tokenizer = MakeTokenizer(*std::move(config));
  EXPECT_EQ(tokenizer->eos(), 257);
  EXPECT_TRUE(tokenizer->IsEndOfGeneration(258));
  EXPECT_FALSE(tokenizer->IsEndOfGeneration(256));
  metadata.Set("tokenizer.ggml.end_token_ids", std::vector<int64_t>{259});
  EXPECT_FALSE(TokenizerConfigFromMetadata(metadata).ok());
}

// The tables of a GGUF file's "bert" vocabulary give what the tokenizer.json gives.
TEST(TokenizerJson, WordPieceTablesOfGgufGiveTheSameIds) {
  const json::value data =
      json::parse(ReadFile(std::string(TERRACE_TEST_DATA) + "/tokenizer_json/bert.json"));
  const json::object& vocab = data.at("tokenizer").at("model").at("vocab").as_object();
  std::vector<std::string> tokens(vocab.size());
  std::vector<int64_t> types(vocab.size(), 1);
  for (const auto& [token, id] : vocab) {
    const std::string text(token);
    const auto at = static_cast<size_t>(id.as_int64());
    types[at] = text.starts_with("[") && text.size() > 1 ? 3 : 1;
    tokens[at] = types[at] == 3 ? text : text.starts_with("##") ? text.substr(2) : "\u2581" + text;
  }
  Metadata metadata;
  metadata.Set("tokenizer.ggml.model", std::string("bert"));
  metadata.Set("tokenizer.ggml.tokens", tokens);
  metadata.Set("tokenizer.ggml.token_type", types);
  metadata.Set("tokenizer.ggml.unknown_token_id", int64_t{1});
  metadata.Set("tokenizer.ggml.cls_token_id", int64_t{2});
  metadata.Set("tokenizer.ggml.seperator_token_id", int64_t{3});
  auto config = TokenizerConfigFromMetadata(metadata);
  ASSERT_TRUE(config.ok()) << Message(config.status());
  auto tokenizer = MakeTokenizer(*std::move(config));
  int compared = 0;
  for (const json::value& entry : data.at("cases").as_array()) {
    const std::string text(entry.at("text").as_string());
    if (text.find("USER") != std::string::npos || text.find("<special>") != std::string::npos ||
        text.find("word") != std::string::npos || text.find("aaaaaaaa") != std::string::npos) {
      continue;  // added tokens, which the tables lack, and a word over the file's own limit
    }
    const auto special = json::value_to<std::vector<int32_t>>(entry.at("special_ids"));
    EXPECT_EQ(EncodeOrDie(*tokenizer, text, {.add_special = true}), special) << text;
    ++compared;
  }
  EXPECT_GT(compared, 20);
}

// Names the place and what is wrong there.
TEST(TokenizerJson, BadFilesAreRefusedByName) {
  const std::pair<std::string, std::string> cases[] = {
      {"{", "not JSON"},
      {"[]", "not a JSON object"},
      {"{}", "tokenizer.json.model must be an object"},
      {R"({"model":{"type":"BPE"}})", "tokenizer.json.model.vocab must be"},
      {R"({"model":{"type":"Magic","vocab":{"a":0}}})", "type 'Magic'"},
      {R"({"model":{"type":"WordLevel","vocab":{"a":0,"b":0}}})", "id 0 is token 'a' already"},
      {R"({"model":{"type":"WordLevel","vocab":{"a":-1}}})", "vocab['a'] must be a whole number"},
      {R"({"model":{"type":"WordLevel","vocab":{"a":99999999}}})", "vocab['a'] must be"},
      {R"({"model":{"type":"WordLevel","vocab":{"a":1.5}}})", "vocab['a'] must be"},
      {R"({"model":{"type":"Unigram","vocab":[["a",-1],["b"]]}})", "vocab[1] must be"},
      {R"({"model":{"type":"Unigram","vocab":[["a",-1]],"unk_id":1}})", "unk_id must be"},
      {R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[["a"]]}})", "merges[0] must be"},
      {R"({"model":{"type":"WordLevel","vocab":{"a":0}},"added_tokens":[{"id":0,"content":"b"}]})",
       "added_tokens[0]: id 0 is token 'a' already"},
      {R"({"model":{"type":"WordLevel","vocab":{"a":0}},"normalizer":{"type":"Nmt"}})",
       "tokenizer.json.normalizer: type 'Nmt'"},
      {R"({"model":{"type":"WordLevel","vocab":{"a":0}},"pre_tokenizer":{"type":"Sequence"}})",
       "pre_tokenizer.pretokenizers must be a list"},
      {R"({"model":{"type":"WordLevel","vocab":{"a":0}},"pre_tokenizer":
           {"type":"Split","pattern":{"Regex":"a"},"behavior":"Eaten"}})",
       "behavior must be Removed"},
      {R"({"model":{"type":"WordLevel","vocab":{"a":0}},"post_processor":
           {"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x"}}]}})",
       "post_processor.special_tokens.x.ids must be"}};
  for (const auto& [text, message] : cases) {
    auto config = TokenizerConfigFromJson(text, "");
    ASSERT_FALSE(config.ok()) << text;
    EXPECT_THAT(std::string(Message(config.status())), HasSubstr(message)) << text;
  }
}

TEST(TokenizerJson, BadPatternsAndMapsAreRefusedByName) {
  const std::string model = R"({"model":{"type":"WordLevel","vocab":{"a":0}},)";
  for (const std::string& rest :
       {std::string(R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"(a"}}})"),
        std::string(R"("normalizer":{"type":"Precompiled","precompiled_charsmap":"AAAA"}})"),
        std::string(
            R"("post_processor":{"type":"BertProcessing","cls":["a",7],"sep":["a",0]}})")}) {
    auto config = TokenizerConfigFromJson(model + rest, "");
    ASSERT_TRUE(config.ok()) << Message(config.status());
    EXPECT_NE(ErrorOf(*std::move(config)), "no error") << rest;
  }
}

// A14: long runs through every kind of pipeline take steps in proportion.
TEST(TokenizerJson, A14LongRunsTakeLinearSteps) {
  for (const std::string& name : Names()) {
    const json::value data =
        json::parse(ReadFile(std::string(TERRACE_TEST_DATA) + "/tokenizer_json/" + name + ".json"));
    auto tokenizer = FromJson(json::serialize(data.at("tokenizer")));
    for (const char* part : {"a", "1", " ", "\xE4\xB8\xAD", "\n", ".", "\xFF"}) {
      std::string text;
      while (text.size() < 100'000) text += part;
      EncodeStats stats;
      EncodeOrDie(*tokenizer, text, {.stats = &stats});
      // A merge at most 3 times a character, a look-up per token length for the other models: the
      // longest token of these files has under 20 bytes.
      EXPECT_LE(stats.merge_steps, 20 * (text.size() + 1)) << name << " " << part;
      EXPECT_LE(stats.pattern_matches, 4 * text.size()) << name << " " << part;
      EXPECT_EQ(stats.pattern_limits, 0u) << name << " " << part;
    }
  }
}

TEST(TranslatePatternTest, WritesWhatPcre2Reads) {
  EXPECT_EQ(TranslatePattern("[\\u4e00-\\u9fa5]+"), "[\\x{4e00}-\\x{9fa5}]+");
  EXPECT_EQ(TranslatePattern("\\p{Han}\\P{L}\\p{Lu}"), "\\p{sc:Han}\\P{L}\\p{Lu}");
  EXPECT_EQ(TranslatePattern("[\\p{Lu}&&[^\\p{Han}]]*x"), "(?:(?=[^\\p{sc:Han}])[\\p{Lu}])*x");
  EXPECT_EQ(TranslatePattern("[a&b]|\\[&&\\]"), "[a&b]|\\[&&\\]");
  EXPECT_EQ(TranslatePattern("[]a]|[^]]"), "[]a]|[^]]");
}

}  // namespace
}  // namespace terrace
