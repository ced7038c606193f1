#include "model/architecture.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace terrace::model {
namespace {

class MapCatalog final : public TensorCatalog {
 public:
  const std::vector<int64_t>* Shape(std::string_view name) const override {
    auto it = shapes.find(name);
    return it == shapes.end() ? nullptr : &it->second;
  }
  std::map<std::string, std::vector<int64_t>, std::less<>> shapes;
};

Metadata Qwen3Metadata() {
  Metadata m;
  m.Set("general.architecture", std::string("qwen3"));
  m.Set("qwen3.embedding_length", int64_t{32});
  m.Set("qwen3.block_count", int64_t{1});
  m.Set("qwen3.feed_forward_length", int64_t{64});
  m.Set("qwen3.attention.head_count", int64_t{4});
  m.Set("qwen3.attention.head_count_kv", int64_t{2});
  m.Set("qwen3.attention.key_length", int64_t{16});
  m.Set("qwen3.context_length", int64_t{128});
  m.Set("qwen3.attention.layer_norm_rms_epsilon", 1e-6);
  return m;
}

MapCatalog Qwen3Catalog() {
  MapCatalog c;
  c.shapes = {{"token_embd.weight", {100, 32}},       {"output_norm.weight", {32}},
              {"blk.0.attn_norm.weight", {32}},       {"blk.0.attn_q.weight", {64, 32}},
              {"blk.0.attn_k.weight", {32, 32}},      {"blk.0.attn_v.weight", {32, 32}},
              {"blk.0.attn_q_norm.weight", {16}},     {"blk.0.attn_k_norm.weight", {16}},
              {"blk.0.attn_output.weight", {32, 64}}, {"blk.0.ffn_norm.weight", {32}},
              {"blk.0.ffn_gate.weight", {64, 32}},    {"blk.0.ffn_up.weight", {64, 32}},
              {"blk.0.ffn_down.weight", {32, 64}}};
  return c;
}

TEST(Architecture, ReadsAModelAndTiesItsHead) {
  MapCatalog catalog = Qwen3Catalog();
  auto architecture = Architecture::Create(Qwen3Metadata(), catalog);
  ASSERT_TRUE(architecture.ok()) << architecture.status();
  const Config& config = (*architecture)->config();
  EXPECT_EQ(config.vocab_size, 100);
  EXPECT_EQ(config.key_dim, 16);
  EXPECT_EQ(config.value_dim, 16);
  EXPECT_TRUE(config.qk_norm);
  int embeddings = 0;
  for (const TensorNeed& need : (*architecture)->tensors()) {
    embeddings += need.name == "token_embd.weight";
  }
  EXPECT_EQ(embeddings, 2);  // once for each end, over one stored tensor
  EXPECT_GT((*architecture)->WorkspaceBytes(8, 8, 0), (*architecture)->WorkspaceBytes(1, 1, 0));
  EXPECT_GT((*architecture)->WorkspaceBytes(8, 8, 4), (*architecture)->WorkspaceBytes(8, 8, 0));
}

TEST(Architecture, OnlyTheHeadStoredServesAsEmbedding) {
  MapCatalog catalog = Qwen3Catalog();
  catalog.shapes["output.weight"] = catalog.shapes["token_embd.weight"];
  catalog.shapes.erase("token_embd.weight");
  EXPECT_TRUE(Architecture::Create(Qwen3Metadata(), catalog).ok());
}

TEST(Architecture, EachMissingTensorIsNamed) {
  const MapCatalog whole = Qwen3Catalog();
  for (const auto& [name, shape] : whole.shapes) {
    MapCatalog catalog = whole;
    catalog.shapes.erase(name);
    auto architecture = Architecture::Create(Qwen3Metadata(), catalog);
    ASSERT_FALSE(architecture.ok()) << name;
    EXPECT_NE(Message(architecture.status()).find(name), std::string_view::npos)
        << architecture.status();
  }
}

TEST(Architecture, EachWrongShapeIsNamed) {
  const MapCatalog whole = Qwen3Catalog();
  for (const auto& [name, shape] : whole.shapes) {
    MapCatalog catalog = whole;
    catalog.shapes[name].back() += 1;
    auto architecture = Architecture::Create(Qwen3Metadata(), catalog);
    ASSERT_FALSE(architecture.ok()) << name;
  }
}

TEST(Architecture, UnknownNamesAndValuesAreRefused) {
  MapCatalog catalog = Qwen3Catalog();
  Metadata m = Qwen3Metadata();
  m.Set("general.architecture", std::string("mamba9"));
  auto unknown = Architecture::Create(m, catalog);
  EXPECT_EQ(unknown.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(Message(unknown.status()).find("qwen3"), std::string_view::npos);

  auto refused = [&](const char* key, MetadataValue value) {
    Metadata bad = Qwen3Metadata();
    bad.Set(key, std::move(value));
    return !Architecture::Create(bad, catalog).ok();
  };
  EXPECT_TRUE(refused("qwen3.block_count", int64_t{0}));
  EXPECT_TRUE(refused("qwen3.block_count", int64_t{1} << 40));
  EXPECT_TRUE(refused("qwen3.attention.head_count_kv", int64_t{3}));
  EXPECT_TRUE(refused("qwen3.attention.head_count", std::string("four")));
  EXPECT_TRUE(refused("qwen3.rope.dimension_count", int64_t{32}));
  EXPECT_TRUE(refused("qwen3.rope.scaling.type", std::string("spiral")));
  EXPECT_TRUE(refused("qwen3.rope.freq_base", 0.0));
}

// A model with experts in its second layer, latent attention in both.
Metadata Deepseek2Metadata() {
  Metadata m;
  const std::string p = "deepseek2.";
  m.Set("general.architecture", std::string("deepseek2"));
  const std::pair<const char*, int64_t> numbers[] = {{"embedding_length", 32},
                                                     {"block_count", 2},
                                                     {"feed_forward_length", 64},
                                                     {"attention.head_count", 4},
                                                     {"attention.head_count_kv", 1},
                                                     {"attention.key_length", 24},
                                                     {"attention.value_length", 16},
                                                     {"attention.kv_lora_rank", 16},
                                                     {"attention.q_lora_rank", 8},
                                                     {"attention.key_length_mla", 20},
                                                     {"context_length", 128},
                                                     {"attention.value_length_mla", 10},
                                                     {"rope.dimension_count", 8},
                                                     {"expert_count", 6},
                                                     {"leading_dense_block_count", 1},
                                                     {"expert_used_count", 2},
                                                     {"expert_feed_forward_length", 16},
                                                     {"expert_shared_count", 2},
                                                     {"expert_group_count", 3},
                                                     {"expert_group_used_count", 2},
                                                     {"expert_gating_func", 2}};
  for (const auto& [key, value] : numbers) m.Set(p + key, value);
  m.Set(p + "attention.layer_norm_rms_epsilon", 1e-6);
  m.Set(p + "expert_weights_scale", 2.5);
  return m;
}

MapCatalog Deepseek2Catalog() {
  MapCatalog c;
  c.shapes = {{"token_embd.weight", {100, 32}}, {"output_norm.weight", {32}}};
  for (const std::string layer : {"blk.0.", "blk.1."}) {
    const std::pair<const char*, std::vector<int64_t>> both[] = {
        {"attn_norm.weight", {32}},         {"attn_q_a.weight", {8, 32}},
        {"attn_q_a_norm.weight", {8}},      {"attn_q_b.weight", {80, 8}},
        {"attn_kv_a_mqa.weight", {24, 32}}, {"attn_kv_a_norm.weight", {16}},
        {"attn_k_b.weight", {4, 16, 12}},   {"attn_v_b.weight", {4, 10, 16}},
        {"attn_output.weight", {32, 40}},   {"ffn_norm.weight", {32}}};
    for (const auto& [name, shape] : both) c.shapes[layer + name] = shape;
  }
  const std::pair<const char*, std::vector<int64_t>> rest[] = {
      {"blk.0.ffn_gate.weight", {64, 32}},         {"blk.0.ffn_up.weight", {64, 32}},
      {"blk.0.ffn_down.weight", {32, 64}},         {"blk.1.ffn_gate_inp.weight", {6, 32}},
      {"blk.1.ffn_gate_exps.weight", {6, 16, 32}}, {"blk.1.ffn_up_exps.weight", {6, 16, 32}},
      {"blk.1.ffn_down_exps.weight", {6, 32, 16}}, {"blk.1.ffn_gate_shexp.weight", {32, 32}},
      {"blk.1.ffn_up_shexp.weight", {32, 32}},     {"blk.1.ffn_down_shexp.weight", {32, 32}}};
  for (const auto& [name, shape] : rest) c.shapes[name] = shape;
  return c;
}

TEST(Architecture, LatentAttentionAndExpertsAreReadFromMetadata) {
  auto architecture = Architecture::Create(Deepseek2Metadata(), Deepseek2Catalog());
  ASSERT_TRUE(architecture.ok()) << architecture.status();
  const Config& config = (*architecture)->config();
  EXPECT_EQ(config.kv_heads, 1);
  EXPECT_EQ(config.key_dim, 24);
  EXPECT_EQ(config.value_dim, 16);
  EXPECT_EQ(config.latent.nope_dim, 12);
  EXPECT_NEAR(config.attention_scale, 0.2236068, 1e-6);  // of the 20 dimensions before absorption
  EXPECT_FALSE(config.layers[0].experts);
  EXPECT_TRUE(config.layers[1].experts);
  EXPECT_EQ(config.experts.shared_width, 32);
  EXPECT_EQ(config.experts.router.gate, ops::RouterParams::Gate::kSigmoid);
  EXPECT_EQ(config.experts.router.groups_used, 2);
  EXPECT_EQ(config.experts.router.scale, 2.5f);
}

TEST(Architecture, YarnMagnitudeOfLatentAttentionGoesIntoScoresOnce) {
  Metadata m = Deepseek2Metadata();
  m.Set("deepseek2.rope.scaling.type", std::string("yarn"));
  m.Set("deepseek2.rope.scaling.factor", 40.0);
  m.Set("deepseek2.rope.scaling.original_context_length", int64_t{4096});
  m.Set("deepseek2.rope.scaling.yarn_log_multiplier", 0.1);
  auto architecture = Architecture::Create(m, Deepseek2Catalog());
  ASSERT_TRUE(architecture.ok()) << architecture.status();
  const Config& config = (*architecture)->config();
  // DeepSeek-V3's published settings (mscale = mscale_all_dim = 1): 0.1 ln 40 + 1 = 1.3688879, its
  // square in the scores, and a rotation of magnitude 1.
  EXPECT_NEAR(config.attention_scale, 0.2236068 * 1.3688879 * 1.3688879, 1e-6);
  EXPECT_NEAR(config.layers[1].rope.yarn_attn_factor * 1.3688879, 1.0, 1e-6);
}

TEST(Architecture, EachMissingOrMisshapenTensorOfExpertsIsNamed) {
  const MapCatalog whole = Deepseek2Catalog();
  for (const auto& [name, shape] : whole.shapes) {
    MapCatalog catalog = whole;
    catalog.shapes.erase(name);
    auto missing = Architecture::Create(Deepseek2Metadata(), catalog);
    ASSERT_FALSE(missing.ok()) << name;
    EXPECT_NE(Message(missing.status()).find(name), std::string_view::npos) << missing.status();
    catalog.shapes[name] = shape;
    catalog.shapes[name].back() += 1;
    EXPECT_FALSE(Architecture::Create(Deepseek2Metadata(), catalog).ok()) << name;
  }
  MapCatalog biased = whole;
  biased.shapes["blk.1.exp_probs_b.bias"] = {5};
  EXPECT_FALSE(Architecture::Create(Deepseek2Metadata(), biased).ok());
  biased.shapes["blk.1.exp_probs_b.bias"] = {6};
  EXPECT_TRUE(Architecture::Create(Deepseek2Metadata(), biased).ok());
}

TEST(Architecture, ValuesOfExpertsAndLatentAttentionThatDoNotFitAreRefused) {
  auto refused = [&](const char* key, MetadataValue value) {
    Metadata bad = Deepseek2Metadata();
    bad.Set(key, std::move(value));
    return !Architecture::Create(bad, Deepseek2Catalog()).ok();
  };
  EXPECT_TRUE(refused("deepseek2.expert_used_count", int64_t{0}));
  EXPECT_TRUE(refused("deepseek2.expert_used_count", int64_t{7}));
  EXPECT_TRUE(refused("deepseek2.expert_group_count", int64_t{4}));
  EXPECT_TRUE(refused("deepseek2.expert_group_used_count", int64_t{4}));
  EXPECT_TRUE(refused("deepseek2.expert_gating_func", int64_t{9}));
  EXPECT_TRUE(refused("deepseek2.expert_count", int64_t{1} << 40));
  EXPECT_TRUE(refused("deepseek2.leading_dense_block_count", int64_t{3}));
  EXPECT_TRUE(refused("deepseek2.attention.kv_lora_rank", int64_t{17}));
  EXPECT_TRUE(refused("deepseek2.attention.key_length_mla", int64_t{8}));
  EXPECT_TRUE(refused("deepseek2.attention.head_count_kv", int64_t{4}));
}

}  // namespace
}  // namespace terrace::model
