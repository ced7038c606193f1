#include "model/share.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/registry.h"

namespace terrace::model {
namespace {

using testing::HasSubstr;

// A model of 6 query heads over 3 KV heads, a dense FFN of 11 blocks, 100 tokens of vocabulary.
Metadata SomeMetadata(const std::string& architecture, int64_t heads = 6, int64_t kv_heads = 3) {
  Metadata m;
  auto set = [&](const char* key, int64_t value) { m.Set(architecture + "." + key, value); };
  m.Set("general.architecture", architecture);
  set("embedding_length", 32);
  set("block_count", 1);
  set("feed_forward_length", 352);
  set("attention.head_count", heads);
  set("attention.head_count_kv", kv_heads);
  set("attention.key_length", 8);
  set("context_length", 128);
  m.Set(architecture + ".attention.layer_norm_rms_epsilon", 1e-6);
  return m;
}

struct Cutting {
  std::map<std::string, TensorCut> cuts;
  Config config;
  absl::Status status;
};

Cutting Divide(const Metadata& metadata, const Share& share) {
  const std::vector<int64_t> embedding = {100, 32}, other = {1};
  const std::vector<std::string> names = {
      "token_embd.weight",          "output_norm.weight",    "blk.0.attn_q.weight",
      "blk.0.attn_k.weight",        "blk.0.attn_v.bias",     "blk.0.attn_output.weight",
      "blk.0.attn_norm.weight",     "blk.0.ffn_up.weight",   "blk.0.ffn_down.weight",
      "blk.0.ffn_down_exps.weight", "blk.0.ffn_up_exps.bias"};
  std::vector<WholeTensor> tensors;
  for (const std::string& name : names) {
    tensors.push_back({name, name == "token_embd.weight" ? embedding : other,
                       name.find("ffn_down") == std::string::npos ? 1 : 32});
  }
  Cutting out;
  auto divided = DivideModel(metadata, tensors, share);
  out.status = divided.status();
  if (!divided.ok()) return out;
  for (size_t i = 0; i < names.size(); ++i) out.cuts[names[i]] = divided->cuts[i];
  auto config = ParseConfig(divided->metadata);
  EXPECT_TRUE(config.ok()) << config.status();
  out.config = *config;
  out.status = ApplyShare(divided->metadata, &out.config);
  return out;
}

std::vector<IndexRange> RowsOf(const Cutting& cutting, const std::string& name) {
  return cutting.cuts.at(name).rows;
}

TEST(Share, CutsHeadsColumnsAndVocabulary) {
  const Cutting second = Divide(SomeMetadata("llama"), {1, 3, true, false});
  ASSERT_TRUE(second.status.ok()) << second.status;
  EXPECT_EQ(second.config.heads, 2);
  EXPECT_EQ(second.config.kv_heads, 1);
  EXPECT_EQ(RowsOf(second, "blk.0.attn_q.weight"), (std::vector<IndexRange>{{16, 32}}));
  EXPECT_EQ(RowsOf(second, "blk.0.attn_k.weight"), (std::vector<IndexRange>{{8, 16}}));
  EXPECT_EQ(RowsOf(second, "blk.0.attn_v.bias"), (std::vector<IndexRange>{{8, 16}}));
  EXPECT_EQ(second.cuts.at("blk.0.attn_output.weight").cols, (IndexRange{16, 32}));
  EXPECT_TRUE(second.cuts.at("blk.0.attn_norm.weight").whole());
  EXPECT_TRUE(second.cuts.at("output_norm.weight").whole());
  // 11 blocks of 32 columns among three: 3, 4 and 4.
  EXPECT_EQ(RowsOf(second, "blk.0.ffn_up.weight"), (std::vector<IndexRange>{{96, 224}}));
  EXPECT_EQ(second.cuts.at("blk.0.ffn_down.weight").cols, (IndexRange{96, 224}));
  EXPECT_EQ(second.config.ffn_width, 128);
  EXPECT_EQ(RowsOf(second, "token_embd.weight"), (std::vector<IndexRange>{{32, 64}}));
  EXPECT_EQ(second.config.vocab_size, 100);
  EXPECT_EQ(second.config.vocab_begin, 32);
  EXPECT_EQ(second.config.vocab_rows, 32);
  EXPECT_FALSE(second.config.adds_biases);
}

// Where the members' runs of query heads cut through those of a KV head, both sides keep it.
TEST(Share, CopiesKvHeadsThatSeveralMembersNeed) {
  const Cutting one = Divide(SomeMetadata("llama", 6, 1), {2, 3, true, false});
  EXPECT_EQ(one.config.kv_heads, 1);
  EXPECT_EQ(RowsOf(one, "blk.0.attn_k.weight"), (std::vector<IndexRange>{{0, 8}}));
  const Cutting crossing = Divide(SomeMetadata("llama", 6, 2), {0, 2, true, false});
  EXPECT_EQ(crossing.config.kv_heads, 1);
  EXPECT_EQ(RowsOf(crossing, "blk.0.attn_k.weight"), (std::vector<IndexRange>{{0, 8}}));
  // Heads 2 and 3 of groups of three: one of each.
  const Cutting both = Divide(SomeMetadata("llama", 6, 2), {1, 3, true, false});
  EXPECT_EQ(both.config.kv_heads, 2);
  EXPECT_EQ(RowsOf(both, "blk.0.attn_k.weight"), (std::vector<IndexRange>{{0, 16}}));
  const Cutting twice = Divide(SomeMetadata("llama", 6, 2), {0, 3, true, false});
  EXPECT_EQ(twice.config.kv_heads, 2);
  EXPECT_EQ(RowsOf(twice, "blk.0.attn_k.weight"), (std::vector<IndexRange>{{0, 8}, {0, 8}}));
}

TEST(Share, GivesWholeExpertsOrPartsOfEach) {
  Metadata metadata = SomeMetadata("llama");
  metadata.Set("llama.expert_count", int64_t{5});
  metadata.Set("llama.expert_used_count", int64_t{2});
  const Cutting experts = Divide(metadata, {1, 2, false, true});
  ASSERT_TRUE(experts.status.ok()) << experts.status;
  EXPECT_EQ(experts.cuts.at("blk.0.ffn_down_exps.weight").matrices, (IndexRange{2, 5}));
  EXPECT_EQ(RowsOf(experts, "blk.0.ffn_up_exps.bias"), (std::vector<IndexRange>{{2, 5}}));
  EXPECT_TRUE(experts.cuts.at("blk.0.attn_q.weight").whole());
  EXPECT_TRUE(experts.cuts.at("token_embd.weight").whole());
  EXPECT_EQ(experts.config.experts.first, 2);
  EXPECT_EQ(experts.config.experts.held, 3);
  EXPECT_EQ(experts.config.heads, 6);
  EXPECT_TRUE(experts.config.adds_biases);
  const Cutting parts = Divide(metadata, {1, 2, true, false});
  ASSERT_TRUE(parts.status.ok()) << parts.status;
  EXPECT_EQ(parts.cuts.at("blk.0.ffn_down_exps.weight").cols, (IndexRange{160, 352}));
  EXPECT_EQ(parts.cuts.at("blk.0.ffn_up_exps.bias").cols, (IndexRange{160, 352}));
  EXPECT_EQ(parts.config.experts.ffn_width, 192);
  EXPECT_EQ(parts.config.experts.held, 5);
}

TEST(Share, SaysWhyAModelCannotBeDivided) {
  auto why = [](const Metadata& metadata, const Share& share) {
    const absl::Status status = Divide(metadata, share).status;
    return std::string(Message(status));
  };
  EXPECT_THAT(why(SomeMetadata("llama"), {0, 4, true, false}),
              HasSubstr("6 attention heads cannot be divided among 4 devices"));
  EXPECT_THAT(why(SomeMetadata("llama"), {0, 2, false, true}), HasSubstr("no experts"));
  EXPECT_THAT(why(SomeMetadata("llama"), {2, 2, true, false}), HasSubstr("has no share"));
  EXPECT_THAT(why(SomeMetadata("llama"), {0, 1, true, false}), HasSubstr("has no share"));
  EXPECT_THAT(why(SomeMetadata("olmo2"), {0, 2, true, false}), HasSubstr("norms all heads"));
  EXPECT_THAT(why(SomeMetadata("llama", 16, 16), {0, 16, true, false}),
              HasSubstr("the vocabulary of 100, in runs of 16, cannot be divided among 16"));
  Metadata share = SomeMetadata("llama");
  share.Set("terrace.share.size", int64_t{2});
  EXPECT_THAT(why(share, {0, 2, true, false}), HasSubstr("a share of another one"));
}

TEST(Share, RefusesAShareThatDoesNotFitTheModel) {
  auto apply = [](const char* key, int64_t value) {
    Metadata metadata = SomeMetadata("llama");
    metadata.Set("terrace.share.rank", int64_t{0});
    metadata.Set("terrace.share.size", int64_t{2});
    metadata.Set("terrace.share.tensor", true);
    metadata.Set("terrace.share.experts", false);
    for (const char* count : {"ffn", "expert_ffn", "shared_ffn"}) {
      metadata.Set(std::string("terrace.share.") + count, int64_t{0});
    }
    metadata.Set("terrace.share.vocabulary", int64_t{100});
    metadata.Set(key, value);
    auto config = ParseConfig(metadata);
    EXPECT_TRUE(config.ok()) << config.status();
    return ApplyShare(metadata, &*config);
  };
  EXPECT_TRUE(apply("terrace.share.rank", 1).ok());
  EXPECT_FALSE(apply("terrace.share.rank", 2).ok());
  EXPECT_FALSE(apply("terrace.share.size", 4).ok());
  EXPECT_FALSE(apply("terrace.share.ffn", 353).ok());
  EXPECT_FALSE(apply("terrace.share.vocabulary", 0).ok());
}

}  // namespace
}  // namespace terrace::model
