// tokenizer.json files of the real vocabularies, written here from the tables of their GGUF files,
// must give the token ids of the independent engine. Run where the golden folder is;
// tokenizer_json_test.cc covers every kind of step without it.
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "base/text.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer_json.h"
#include "tokenizer_golden.h"

namespace terrace {
namespace {

namespace json = boost::json;

// The merges of a vocabulary whose tokens have scores: every way to make a token of two others, the
// best token first (as converters of SentencePiece models write them).
json::array MergesOfScores(const TokenizerConfig& config) {
  std::unordered_map<std::string_view, int32_t> ids;
  for (size_t i = 0; i < config.tokens.size(); ++i) {
    if (config.types[i] == 1 || config.types[i] == 4) {
      ids.emplace(config.tokens[i], static_cast<int32_t>(i));
    }
  }
  struct Merge {
    float score;
    int32_t left, right;
  };
  std::vector<Merge> merges;
  for (size_t i = 0; i < config.tokens.size(); ++i) {
    const std::string_view token = config.tokens[i];
    if (config.types[i] != 1) continue;
    std::vector<Merge> local;
    for (size_t cut = 1; cut < token.size(); ++cut) {
      if ((static_cast<uint8_t>(token[cut]) & 0xC0) == 0x80) continue;
      auto left = ids.find(token.substr(0, cut)), right = ids.find(token.substr(cut));
      if (left == ids.end() || right == ids.end()) continue;
      local.push_back({config.scores[i], left->second, right->second});
    }
    std::sort(local.begin(), local.end(), [](const Merge& a, const Merge& b) {
      return std::tie(a.left, a.right) < std::tie(b.left, b.right);
    });
    merges.insert(merges.end(), local.begin(), local.end());
  }
  std::stable_sort(merges.begin(), merges.end(),
                   [](const Merge& a, const Merge& b) { return a.score > b.score; });
  json::array out;
  for (const Merge& merge : merges) {
    out.push_back(json::array{config.tokens[static_cast<size_t>(merge.left)],
                              config.tokens[static_cast<size_t>(merge.right)]});
  }
  return out;
}

json::array AddedTokens(const TokenizerConfig& config) {
  json::array added;
  const bool phi = ToLower(config.name).find("phi3") != std::string::npos ||
                   ToLower(config.name).find("phi-3") != std::string::npos;
  for (size_t i = 0; i < config.tokens.size(); ++i) {
    const int32_t type = config.types.empty() ? 1 : config.types[i];
    if (type != 2 && type != 3 && type != 4) continue;
    const std::string& text = config.tokens[i];
    added.push_back({{"id", i},
                     {"content", text},
                     {"special", type != 4},
                     {"rstrip", phi && text != "<unk>" && text != "<s>" && text != "<|endoftext|>"},
                     // Escaped runs of spaces are looked for in escaped text.
                     {"normalized", text.find("\xE2\x96\x81") != std::string::npos}});
  }
  return added;
}

json::object ToJson(const TokenizerConfig& config) {
  json::object vocab;
  vocab.reserve(config.tokens.size());
  for (size_t i = 0; i < config.tokens.size(); ++i) vocab[config.tokens[i]] = i;
  json::object model = {{"type", "BPE"}};
  json::array steps;
  json::value normalizer = nullptr, decoder = {{"type", "ByteLevel"}};
  if (config.model == "gpt2") {
    const PrePatterns* family = FindPrePatterns(config.pre.empty() ? "default" : config.pre);
    for (std::string_view pattern : family->patterns) {
      steps.push_back({{"type", "Split"},
                       {"pattern", {{"Regex", pattern}}},
                       {"behavior", "Isolated"},
                       {"invert", false}});
    }
    steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
    model["ignore_merges"] = family->ignore_merges;
    model["merges"] = json::value_from(config.merges);
  } else {
    json::array changes;
    if (config.model == "llama") changes.push_back({{"type", "Prepend"}, {"prepend", "\u2581"}});
    changes.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}});
    normalizer = {{"type", "Sequence"}, {"normalizers", std::move(changes)}};
    decoder = {{"type", "Metaspace"},
               {"prepend_scheme", config.model == "llama" ? "always" : "never"}};
    model["byte_fallback"] = true;
    model["fuse_unk"] = true;
    model["unk_token"] = "<unk>";
    if (config.model == "llama") {
      model["merges"] = MergesOfScores(config);
    } else {
      model["merges"] = json::value_from(config.merges);
      model["ignore_merges"] = true;
      steps.push_back(
          {{"type", "Split"}, {"pattern", {{"Regex", "\\n+"}}}, {"behavior", "Isolated"}});
    }
  }
  model["vocab"] = std::move(vocab);
  return {{"added_tokens", AddedTokens(config)},
          {"normalizer", std::move(normalizer)},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}}},
          {"decoder", std::move(decoder)},
          {"model", std::move(model)}};
}

class TokenizerJsonGolden : public GoldenVocabulary {
  absl::StatusOr<TokenizerConfig> Config(TokenizerConfig tables) override {
    return TokenizerConfigFromJson(json::serialize(ToJson(tables)), "");
  }
};

TEST_P(TokenizerJsonGolden, GivesTheRightIdsAndTheTextBack) {
  ExpectTheRightIds();
  ExpectTheTextBack();
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, TokenizerJsonGolden, GoldenVocabulary::Names(),
                         GoldenVocabulary::TestName);

}  // namespace
}  // namespace terrace
