#include "model/architecture.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
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
  c.shapes = {{"token_embd.weight", {100, 32}},        {"output_norm.weight", {32}},
              {"blk.0.attn_norm.weight", {32}},        {"blk.0.attn_q.weight", {64, 32}},
              {"blk.0.attn_k.weight", {32, 32}},       {"blk.0.attn_v.weight", {32, 32}},
              {"blk.0.attn_q_norm.weight", {16}},      {"blk.0.attn_k_norm.weight", {16}},
              {"blk.0.attn_output.weight", {32, 64}},  {"blk.0.ffn_norm.weight", {32}},
              {"blk.0.ffn_gate.weight", {64, 32}},     {"blk.0.ffn_up.weight", {64, 32}},
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
  EXPECT_GT((*architecture)->WorkspaceBytes(8, 8), (*architecture)->WorkspaceBytes(1, 1));
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

}  // namespace
}  // namespace terrace::model
