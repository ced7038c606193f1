// Low-rank adapters: a model with one must compute what the model with the merged weights does;
// several run in one batch; their bytes come and go; files that cannot be applied are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/adapter.h"
#include "engine/adapter_writer.h"
#include "engine/checkpoint_writer.h"
#include "engine/testing.h"
#include "format/adapter.h"
#include "format/gguf.h"

namespace terrace::engine {
namespace {

using testing::HasSubstr;

constexpr uint64_t kBudget = 64 * kMiB;

std::vector<int32_t> Tokens(size_t count, int32_t step = 31) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < count; ++i) {
    tokens.push_back((7 + step * static_cast<int32_t>(i)) % 500);
  }
  return tokens;
}

std::vector<std::string> Variants() {
  std::vector<std::string> names = {"ref"};
  for (const ops::CpuVariant& variant : ops::CpuVariants()) {
    if (variant.supported) names.emplace_back(variant.name);
  }
  return names;
}

absl::StatusOr<std::shared_ptr<const Adapter>> OpenAdapter(Rig& rig, const EngineModel& base,
                                                           const std::string& path,
                                                           const std::string& name = "adapter") {
  return Adapter::Create({.name = name, .source_path = path}, base, &rig.backend(), &rig.manager());
}

std::vector<float> Logits(Rig& rig, EngineModel& model, std::span<const int32_t> tokens,
                          const Adapter* adapter) {
  auto logits = rig.engine().AllLogits(model, tokens, adapter);
  EXPECT_TRUE(logits.ok()) << logits.status();
  return logits.ok() ? *std::move(logits) : std::vector<float>();
}

double Rms(const std::vector<float>& values) {
  double squares = 0;
  for (float value : values) squares += double{value} * value;
  return std::sqrt(squares / static_cast<double>(values.size()));
}

double Worst(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    worst = std::max(worst, std::abs(double{a[i]} - b[i]));
  }
  return worst;
}

// As in reference_test.cc: sums in another order err by 128 roundings of float32 in each of the
// 2 L + 1 blocks, and by those of BF16 where a variant rounds activations; the worst of n values.
double Tolerance(const EngineModel& model, const std::string& variant, size_t values) {
  const double u = variant == "ref" ? 128 * 0x1p-24 : 0x1p-9 / 1.7320508 * 2;
  const int layers = model.architecture().config().layer_count();
  return u * std::sqrt(2.0 * layers + 1) * std::sqrt(2 * std::log(static_cast<double>(values)));
}

class AdapterTest : public testing::TestWithParam<std::string> {};

TEST_P(AdapterTest, GivesTheLogitsOfTheMergedWeights) {
  const Checkpoint checkpoint = GoldenCheckpoint(GetParam());
  const TestAdapter adapter = RandomAdapter(checkpoint, 4, 1);
  ASSERT_GE(adapter.pairs.size(), 8u);
  TempFolder peft, merged, plain;
  adapter.WritePeft(peft.path());
  adapter.Merge(checkpoint).Write(merged.path());
  checkpoint.Write(plain.path());
  const std::vector<int32_t> tokens = Tokens(45);
  for (const std::string& variant : Variants()) {
    SCOPED_TRACE(variant);
    // Deterministic: what a variant may round beyond activations in BF16 is not an adapter's doing.
    Rig rig(variant, kBudget, 2, true);
    EngineModelOptions options;
    if (variant == "ref") options.kv_dtype = ops::KvDType::kF32;
    auto whole = rig.Open(merged.path(), "merged", false, options);
    ASSERT_NE(whole, nullptr);
    const std::vector<float> want = Logits(rig, *whole, tokens, nullptr);
    const double rms = Rms(want), tolerance = rms * Tolerance(*whole, variant, want.size());
    // The base from a GGUF file and from a folder: rows in either order.
    for (const std::string& base_path : {GoldenPath(GetParam()), plain.path()}) {
      auto base = rig.Open(base_path, "base", false, options);
      ASSERT_NE(base, nullptr);
      auto opened = OpenAdapter(rig, *base, peft.path());
      ASSERT_TRUE(opened.ok()) << opened.status();
      const std::vector<float> got = Logits(rig, *base, tokens, opened->get());
      std::printf("%s on %s: worst error %.2g of the RMS, tolerance %.2g\n", GetParam().c_str(),
                  variant.c_str(), Worst(got, want) / rms, tolerance / rms);
      EXPECT_LE(Worst(got, want), tolerance);
      EXPECT_GT(Worst(Logits(rig, *base, tokens, nullptr), want), 20 * tolerance);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, AdapterTest,
                         testing::Values("llama", "qwen2", "qwen3", "gemma3", "phi3", "deepseek2"));

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && !a.empty() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(AdapterFiles, AGgufAdapterIsThePeftOneToTheBit) {
  for (const std::string name : {"llama", "qwen3", "phi3", "deepseek2"}) {
    SCOPED_TRACE(name);
    const TestAdapter adapter = RandomAdapter(GoldenCheckpoint(name), 8, 2);
    TempFolder folder;
    adapter.WritePeft(folder.path());
    const bool interleaved = name == "llama";
    adapter.WriteGguf(folder.path() + "/a.gguf", name, interleaved ? 4 : 0, interleaved ? 2 : 0);
    Rig rig("ref", kBudget);
    auto base = rig.Open(GoldenPath(name), "base");
    ASSERT_NE(base, nullptr);
    auto peft = OpenAdapter(rig, *base, folder.path(), "peft");
    auto gguf = OpenAdapter(rig, *base, folder.path() + "/a.gguf", "gguf");
    ASSERT_TRUE(peft.ok()) << peft.status();
    ASSERT_TRUE(gguf.ok()) << gguf.status();
    const std::vector<int32_t> tokens = Tokens(20);
    EXPECT_TRUE(
        SameBits(Logits(rig, *base, tokens, peft->get()), Logits(rig, *base, tokens, gguf->get())));
    EXPECT_NE((*peft)->weights().fingerprint(), (*gguf)->weights().fingerprint());
  }
}

// Each row of a batch must be what it is alone, whatever adapters the others have.
TEST(AdapterBatch, SeveralAdaptersAndNoneInOneStep) {
  const Checkpoint checkpoint = GoldenCheckpoint("qwen3");
  TempFolder folders[2];
  RandomAdapter(checkpoint, 4, 3).WritePeft(folders[0].path());
  RandomAdapter(checkpoint, 16, 4).WritePeft(folders[1].path());
  for (const std::string& variant : Variants()) {
    SCOPED_TRACE(variant);
    Rig rig(variant, kBudget, 2, true);
    auto base = rig.Open(GoldenPath("qwen3"), "base");
    ASSERT_NE(base, nullptr);
    auto one = OpenAdapter(rig, *base, folders[0].path(), "one");
    auto two = OpenAdapter(rig, *base, folders[1].path(), "two");
    ASSERT_TRUE(one.ok() && two.ok());
    const Adapter* const adapters[] = {one->get(), nullptr, two->get(), two->get(), one->get()};
    std::vector<std::vector<int32_t>> prompts;
    std::vector<kv::Sequence> sequences;
    std::vector<StepEntry> entries;
    for (size_t i = 0; i < std::size(adapters); ++i) {
      prompts.push_back(Tokens(5 + i, 13 + static_cast<int32_t>(i)));
      sequences.emplace_back(&rig.manager(), nullptr, kv::BlockKey{},
                             tier::Owner{"base", "", tier::Kind::kKv},
                             base->kv_geometry().block_bytes());
    }
    for (size_t i = 0; i < std::size(adapters); ++i) {
      entries.push_back({&sequences[i], prompts[i], true, 0, adapters[i]});
    }
    auto step = rig.engine().Step(*base, entries, nullptr);
    ASSERT_TRUE(step.ok()) << step.status();
    std::vector<std::vector<float>> got;
    for (const EntryResult& entry : step->entries) {
      got.emplace_back(entry.logits.begin(), entry.logits.end());
    }
    for (size_t i = 0; i < std::size(adapters); ++i) {
      const std::vector<float> alone = Logits(rig, *base, prompts[i], adapters[i]);
      EXPECT_TRUE(SameBits(got[i], std::span(alone).last(got[i].size()))) << i;
    }
  }
}

uint64_t BookedTo(const Rig& rig, const std::string& name) {
  uint64_t bytes = 0;
  for (const tier::LedgerLine& line : const_cast<Rig&>(rig).manager().Snapshot().ledger) {
    if (line.owner.model == name && line.tier == tier::Tier::kDevice) bytes += line.bytes;
  }
  return bytes;
}

TEST(AdapterMemory, IsHeldByTheTierManagerAndComesBackAfterEviction) {
  TempFolder folder;
  RandomAdapter(GoldenCheckpoint("llama"), 4, 5).WritePeft(folder.path());
  Rig rig("ref", kBudget);
  auto base = rig.Open(GoldenPath("llama"), "base");
  ASSERT_NE(base, nullptr);
  auto adapter = OpenAdapter(rig, *base, folder.path());
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  EXPECT_EQ(BookedTo(rig, "adapter"), 0u);
  const std::vector<int32_t> tokens = Tokens(20);
  const std::vector<float> before = Logits(rig, *base, tokens, adapter->get());
  EXPECT_EQ(BookedTo(rig, "adapter"), (*adapter)->weights().total_bytes());
  rig.manager().EvictModel((*adapter)->weights().tier_id());
  EXPECT_EQ(BookedTo(rig, "adapter"), 0u);
  EXPECT_TRUE(SameBits(Logits(rig, *base, tokens, adapter->get()), before));
  EXPECT_TRUE(rig.manager().CheckInvariants().ok());
  // A file that has changed underneath is not mixed with what was read before.
  rig.manager().EvictModel((*adapter)->weights().tier_id());
  std::filesystem::last_write_time(
      folder.path() + "/adapter_model.safetensors",
      std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  auto changed = rig.engine().AllLogits(*base, tokens, adapter->get());
  EXPECT_EQ(changed.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(changed.status().message()), HasSubstr("adapter 'adapter'"));
  EXPECT_TRUE(rig.engine().AllLogits(*base, tokens).ok());
  adapter->reset();
  EXPECT_EQ(BookedTo(rig, "adapter"), 0u);
}

class AdapterRefusal : public testing::Test {
 protected:
  AdapterRefusal() : rig_("ref", kBudget) {
    base_ = rig_.Open(GoldenPath("llama"), "base");
    adapter_ = RandomAdapter(GoldenCheckpoint("llama"), 4, 6);
  }
  // Why the adapter, with `change` made to its config, is refused; "" if it is not.
  std::string Why(const std::string& key = "", boost::json::value value = nullptr) {
    TempFolder folder;
    adapter_.WritePeft(folder.path());
    if (!key.empty()) {
      boost::json::object config =
          boost::json::parse(ReadFile(folder.path() + "/adapter_config.json")).as_object();
      config[key] = std::move(value);
      WriteText(folder.path() + "/adapter_config.json", boost::json::serialize(config));
    }
    auto opened = OpenAdapter(rig_, *base_, folder.path());
    return opened.ok() ? "" : std::string(opened.status().message());
  }

  Rig rig_;
  std::shared_ptr<EngineModel> base_;
  TestAdapter adapter_;
};

TEST_F(AdapterRefusal, WhatIsNotAppliedIsNamed) {
  EXPECT_EQ(Why(), "");
  EXPECT_THAT(Why("peft_type", "IA3"), HasSubstr("'IA3'; LORA is read"));
  EXPECT_THAT(Why("use_dora", true), HasSubstr("use_dora"));
  EXPECT_THAT(Why("bias", "all"), HasSubstr("without biases"));
  EXPECT_THAT(Why("modules_to_save", {"lm_head"}), HasSubstr("modules_to_save"));
  EXPECT_THAT(Why("lora_alpha", "high"), HasSubstr("lora_alpha must be a number"));
  EXPECT_THAT(Why("alpha_pattern", {{"layers\\.1.*", 3}}), HasSubstr("is a pattern"));
  EXPECT_EQ(Why("alpha_pattern", {{"self_attn.q_proj", 3}}), "");
  adapter_.pairs[0].module = "lm_head";
  EXPECT_THAT(Why(), HasSubstr("'base_model.model.lm_head.lora_A.weight': only the attention"));
  adapter_.pairs[0].module = "model.layers.0.self_attn.kv_b_proj";
  EXPECT_THAT(Why(), HasSubstr("kv_b_proj.lora_A.weight': only the attention"));
  adapter_.pairs[0].module = "model.layers.0.mlp.experts.3.up_proj";
  EXPECT_THAT(Why(), HasSubstr("experts.3.up_proj.lora_A.weight': only the attention"));
  adapter_.pairs[0].module = "model.layers.99.mlp.up_proj";
  EXPECT_THAT(Why(), HasSubstr("'blk.99.ffn_up.weight', which is no matrix of the base"));
}

TEST_F(AdapterRefusal, ShapesMustFitEachOtherAndTheBase) {
  const TestAdapter good = adapter_;
  adapter_.pairs[0].in /= 2;
  adapter_.pairs[0].a.resize(adapter_.pairs[0].a.size() / 2);
  EXPECT_THAT(Why(), HasSubstr("'blk.0.attn_k.weight' as [64, 64], but the base's is [64, 128]"));
  adapter_ = good;
  adapter_.pairs[0].b.resize(adapter_.pairs[0].b.size() / 2);
  adapter_.pairs[0].out /= 2;
  EXPECT_THAT(Why(), HasSubstr("adapts 'blk.0.attn_k.weight' as [32, 128], but the base's is [64"));
}

TEST_F(AdapterRefusal, AGgufOfAnotherKindOrArchitecture) {
  TempFolder folder;
  const std::string path = folder.path() + "/a.gguf";
  auto why = [&](const std::string& at) {
    auto opened = OpenAdapter(rig_, *base_, at);
    return opened.ok() ? "" : std::string(opened.status().message());
  };
  EXPECT_THAT(why(GoldenPath("llama")), HasSubstr("a LoRA adapter is wanted"));
  adapter_.WriteGguf(path, "qwen3", 0, 0);
  EXPECT_THAT(why(path), HasSubstr("of the architecture 'qwen3', the base is 'llama'"));
  adapter_.pairs.clear();
  adapter_.WriteGguf(path, "llama", 0, 0);
  EXPECT_THAT(why(path), HasSubstr("no pairs"));
  EXPECT_THAT(why(folder.path() + "/none"), HasSubstr("/none"));
}

}  // namespace
}  // namespace terrace::engine
