// Safetensors folders of the golden models must give the logits of their GGUF files to the bit: the
// rows, stacks and settings that a folder is translated to are the same model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <numbers>
#include <string>
#include <vector>

#include "engine/checkpoint_writer.h"
#include "engine/testing.h"
#include "format/gguf.h"
#include "format/gguf_writer.h"

namespace terrace::engine {
namespace {

namespace json = boost::json;
using testing::HasSubstr;

constexpr uint64_t kBudget = 64 * kMiB;

// Logits of every position of `tokens`; empty where the model does not open.
std::vector<float> Logits(const std::string& path, std::span<const int32_t> tokens,
                          const std::string& variant, bool deterministic = true) {
  Rig rig(variant, kBudget, 1, deterministic);
  auto model = rig.Open(path, "m");
  if (model == nullptr) return {};
  auto logits = rig.engine().AllLogits(*model, tokens);
  EXPECT_TRUE(logits.ok()) << logits.status();
  return logits.ok() ? *std::move(logits) : std::vector<float>();
}

std::vector<int32_t> Tokens(size_t count) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>((7 + 31 * i) % 500));
  return tokens;
}

void ExpectSameBits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_FALSE(a.empty());
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
}

absl::Status OpenStatus(const std::string& path) {
  auto source = format::OpenModel(path);
  return source.status();
}

class CheckpointTest : public testing::TestWithParam<std::string> {};

TEST_P(CheckpointTest, GivesTheLogitsOfItsGgufToTheBit) {
  const Checkpoint checkpoint = GoldenCheckpoint(GetParam());
  const std::vector<int32_t> tokens = Tokens(40);
  std::vector<std::string> variants = {"ref"};
  for (const ops::CpuVariant& variant : ops::CpuVariants()) {
    if (variant.supported) variants.emplace_back(variant.name);
  }
  for (const std::string& variant : variants) {
    const std::vector<float> want = Logits(GoldenPath(GetParam()), tokens, variant);
    for (int shards : {1, 3}) {
      TempFolder folder;
      checkpoint.Write(folder.path(), shards);
      SCOPED_TRACE(variant + " " + std::to_string(shards));
      ExpectSameBits(Logits(folder.path(), tokens, variant), want);
      if (shards != 1) continue;
      ExpectSameBits(Logits(folder.path() + "/model.safetensors", tokens, variant), want);
      // With the kernels that a variant has for many rows, too.
      ExpectSameBits(Logits(folder.path(), tokens, variant, false),
                     Logits(GoldenPath(GetParam()), tokens, variant, false));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, CheckpointTest,
                         testing::Values("llama", "llama-rope-scaled", "mixtral", "qwen2", "qwen3",
                                         "qwen3moe", "gemma3", "phi3", "deepseek2", "gpt-oss"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

// The model as one GGUF file, as `terrace convert` writes it.
void WriteAsGguf(const std::string& folder, const std::string& path) {
  auto source = format::OpenModel(folder);
  ASSERT_TRUE(source.ok()) << source.status();
  format::GgufWriter writer;
  writer.AddMetadata(source->metadata);
  for (const format::TensorInfo& tensor : source->tensors) {
    std::vector<std::byte> data(tensor.bytes);
    ASSERT_TRUE(source->ReadTensor(tensor, 0, data).ok());
    writer.AddTensor(tensor.name, tensor.dtype, tensor.shape, std::move(data));
  }
  ASSERT_TRUE(writer.Write(path).ok());
}

// A08: one of the two ends stored serves both, in the memory of one.
TEST(CheckpointCase, A08TiedEmbeddingsAreHeldOnce) {
  Checkpoint both = GoldenCheckpoint("qwen2");
  both.config["tie_word_embeddings"] = false;
  CheckpointTensor head = *both.Find("model.embed_tokens.weight");
  head.name = "lm_head.weight";
  both.tensors.push_back(head);
  Checkpoint embedding = GoldenCheckpoint("qwen2");
  Checkpoint output = embedding;
  output.Find("model.embed_tokens.weight")->name = "lm_head.weight";
  Checkpoint written_twice = both;
  written_twice.config["tie_word_embeddings"] = true;
  const std::vector<int32_t> tokens = Tokens(12);
  TempFolder folders[4];
  const Checkpoint* all[] = {&both, &embedding, &output, &written_twice};
  uint64_t bytes[4], held[4];
  std::vector<float> want;
  for (size_t i = 0; i < 4; ++i) {
    all[i]->Write(folders[i].path());
    std::vector<float> logits = Logits(folders[i].path(), tokens, "ref");
    if (i == 0) want = logits;
    ExpectSameBits(logits, want);
    const std::string gguf = folders[i].path() + "/converted.gguf";
    WriteAsGguf(folders[i].path(), gguf);
    ExpectSameBits(Logits(gguf, tokens, "ref"), want);
    auto source = format::OpenModel(folders[i].path());
    ASSERT_TRUE(source.ok());
    bytes[i] = 0;
    for (const auto& tensor : source->tensors) bytes[i] += tensor.bytes;
    // What the tier manager holds of it once it is opened, from either format.
    for (const std::string& path : {folders[i].path(), gguf}) {
      Rig rig("ref", kBudget);
      auto model = rig.Open(path, "m");
      ASSERT_NE(model, nullptr);
      if (path != gguf) held[i] = model->weights().total_bytes();
      EXPECT_EQ(model->weights().total_bytes(), held[i]) << i;
    }
  }
  EXPECT_EQ(held[0] - held[1], head.data.size());
  EXPECT_EQ(held[1], held[2]);
  EXPECT_EQ(held[1], held[3]);
  EXPECT_EQ(bytes[0] - bytes[1], head.data.size());
  EXPECT_EQ(bytes[1], bytes[2]);
  EXPECT_EQ(bytes[1], bytes[3]);
}

// A07: an interrupted download is named as one, before anything is loaded.
TEST(CheckpointCase, A07MissingShardsAndTensorsAreRefused) {
  const Checkpoint checkpoint = GoldenCheckpoint("llama");
  TempFolder folder;
  checkpoint.Write(folder.path(), 3);
  ASSERT_TRUE(OpenStatus(folder.path()).ok());
  std::filesystem::remove(folder.path() + "/model-00002-of-00003.safetensors");
  absl::Status status = OpenStatus(folder.path());
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("model-00002-of-00003.safetensors"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("download may be incomplete"));

  // The file is there, but a listed tensor is not in it.
  Checkpoint less = checkpoint;
  less.Write(folder.path(), 3);
  const std::string gone = less.tensors.back().name;
  const auto rest = std::span(less.tensors).subspan(less.tensors.size() - 3, 2);
  WriteText(folder.path() + "/model-00003-of-00003.safetensors", SafetensorsBytes(rest));
  status = OpenStatus(folder.path());
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(gone));

  // Without an index, several files are no model.
  std::filesystem::remove(folder.path() + "/model.safetensors.index.json");
  EXPECT_THAT(std::string(OpenStatus(folder.path()).message()),
              HasSubstr("no model.safetensors.index"));
}

// A GGUF of the golden llama with other settings and, as GGUF has it, the scaling as factors.
std::string WriteScaledGguf(const std::string& folder, double base, double epsilon,
                            const std::vector<float>& factors) {
  auto source = format::OpenGguf(GoldenPath("llama"));
  EXPECT_TRUE(source.ok());
  Metadata metadata = source->metadata;
  metadata.Set("llama.rope.freq_base", base);
  metadata.Set("llama.attention.layer_norm_rms_epsilon", epsilon);
  format::GgufWriter writer;
  writer.AddMetadata(metadata);
  for (const format::TensorInfo& tensor : source->tensors) {
    std::vector<std::byte> data(tensor.bytes);
    EXPECT_TRUE(source->ReadTensor(tensor, 0, data).ok());
    writer.AddTensor(tensor.name, tensor.dtype, tensor.shape, std::move(data));
  }
  const auto bytes = std::as_bytes(std::span(factors));
  const int64_t shape[] = {static_cast<int64_t>(factors.size())};
  writer.AddTensor("rope_freqs.weight", DType::kF32, shape, {bytes.begin(), bytes.end()});
  EXPECT_TRUE(writer.Write(folder + "/scaled.gguf").ok());
  return folder + "/scaled.gguf";
}

// The other variants agree with the plain arithmetic `want` at these positions (tolerance as in
// reference_test.cc: activations in BF16, two blocks in each of two layers and the head).
void ExpectVariantsNear(const std::string& folder, const std::vector<int32_t>& tokens,
                        const std::vector<float>& want, const std::vector<size_t>& positions) {
  const size_t vocab = want.size() / tokens.size();
  const double u = 0x1p-9 / 1.7320508 * 2;
  const double share = u * std::sqrt(5.0) * std::sqrt(2 * std::log(static_cast<double>(vocab)));
  for (const ops::CpuVariant& variant : ops::CpuVariants()) {
    if (!variant.supported) continue;
    SCOPED_TRACE(variant.name);
    const std::vector<float> other = Logits(folder, tokens, std::string(variant.name));
    ASSERT_EQ(other.size(), want.size());
    for (size_t position : positions) {
      double squares = 0, worst = 0;
      for (size_t i = position * vocab; i < (position + 1) * vocab; ++i) {
        squares += double{want[i]} * want[i];
        worst = std::max(worst, std::abs(double{other[i]} - want[i]));
      }
      EXPECT_LE(worst, std::sqrt(squares / static_cast<double>(vocab)) * share) << position;
    }
  }
}

// A10: grouped KV heads, another base and epsilon, piecewise scaling: the same from both formats,
// at near and far positions; the plain reference of the arithmetic is the golden test's.
TEST(CheckpointCase, A10RotaryAndNormSettingsReachTheModel) {
  constexpr double kBase = 1e6, kEpsilon = 1e-5, kFactor = 8, kLow = 1, kHigh = 4, kContext = 256;
  std::vector<float> factors;
  for (int i = 0; i < 32; i += 2) {
    const double turns = kContext / (2 * std::numbers::pi * std::pow(kBase, i / 32.0));
    double divisor = kFactor;
    if (turns >= kHigh) {
      divisor = 1;
    } else if (turns >= kLow) {
      const double share = (turns - kLow) / (kHigh - kLow);
      divisor = 1 / ((1 - share) / kFactor + share);
    }
    factors.push_back(static_cast<float>(divisor));
  }
  ASSERT_EQ(factors.front(), 1.0f);
  ASSERT_EQ(factors.back(), 8.0f);
  Checkpoint checkpoint = GoldenCheckpoint("llama");
  checkpoint.config["rope_theta"] = kBase;
  checkpoint.config["rms_norm_eps"] = kEpsilon;
  checkpoint.config["rope_scaling"] = {{"rope_type", "llama3"},
                                       {"factor", kFactor},
                                       {"low_freq_factor", kLow},
                                       {"high_freq_factor", kHigh},
                                       {"original_max_position_embeddings", kContext}};
  TempFolder folder;
  checkpoint.Write(folder.path());
  const std::vector<int32_t> tokens = Tokens(304);
  const std::vector<float> scaled = Logits(folder.path(), tokens, "ref");
  ExpectSameBits(scaled,
                 Logits(WriteScaledGguf(folder.path(), kBase, kEpsilon, factors), tokens, "ref"));

  ExpectVariantsNear(folder.path(), tokens, scaled, {0, 1, 64, 300});

  // Each setting matters: without it far positions differ. The first position sees no rotation.
  const size_t vocab = scaled.size() / tokens.size();
  for (const char* key : {"rope_scaling", "rope_theta"}) {
    Checkpoint without = checkpoint;
    without.config.erase(key);
    TempFolder other;
    without.Write(other.path());
    const std::vector<float> plain = Logits(other.path(), tokens, "ref");
    ASSERT_EQ(plain.size(), scaled.size());
    EXPECT_EQ(std::memcmp(plain.data(), scaled.data(), vocab * sizeof(float)), 0) << key;
    for (size_t position : {64, 300}) {
      EXPECT_NE(std::memcmp(plain.data() + position * vocab, scaled.data() + position * vocab,
                            vocab * sizeof(float)),
                0)
          << key << " " << position;
    }
    auto source = format::OpenModel(other.path());
    ASSERT_TRUE(source.ok());
    auto all = source->metadata.GetStrings("terrace.notes");
    ASSERT_TRUE(all.ok());
    const std::string notes = *all == nullptr ? "" : (**all)[0];
    EXPECT_EQ(notes.find("config.json has no rope_theta; 10000") != std::string::npos,
              std::string_view(key) == "rope_theta")
        << notes;
  }
}

// Factors for short and for long contexts: which are used follows from the context that is served.
TEST(CheckpointCase, LongRopeFactorsFollowTheServedContext) {
  const Checkpoint plain = GoldenCheckpoint("phi3");
  const auto half = static_cast<size_t>(plain.config.at("head_dim").to_number<int64_t>() / 2);
  const auto context = plain.config.at("max_position_embeddings").to_number<int64_t>();
  Checkpoint scaled = plain, linear = plain;
  scaled.config["rope_scaling"] = {{"type", "longrope"},
                                   {"short_factor", json::array(half, json::value(1.0))},
                                   {"long_factor", json::array(half, json::value(4.0))},
                                   {"attention_factor", 1.0}};
  scaled.config["original_max_position_embeddings"] = context / 4;
  linear.config["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
  TempFolder folders[3];
  const Checkpoint* all[] = {&plain, &scaled, &linear};
  for (int i = 0; i < 3; ++i) all[i]->Write(folders[i].path());
  const std::vector<int32_t> tokens = Tokens(40);
  auto logits = [&](int folder, int32_t served) {
    Rig rig("ref", kBudget, 1, true);
    EngineModelOptions options;
    options.max_context = served;
    auto model = rig.Open(folders[folder].path(), "m", false, options);
    EXPECT_NE(model, nullptr);
    const bool is_long = folder == 1 && (served == 0 || served > context / 4);
    EXPECT_EQ(model->kv_form(), is_long ? "f16+long-rope" : "f16");
    return *rig.engine().AllLogits(*model, tokens);
  };
  // Factors of 1 change nothing, and of 4 what linear scaling by 4 does; both to the bit.
  const auto short_context = static_cast<int32_t>(context / 4);
  ExpectSameBits(logits(1, short_context), logits(0, short_context));
  ExpectSameBits(logits(1, 0), logits(2, 0));
  EXPECT_NE(logits(1, 0), logits(1, short_context));

  // Without a magnitude of its own it follows from the two contexts; lists must be whole.
  json::object& scaling = scaled.config["rope_scaling"].as_object();
  scaling.erase("attention_factor");
  scaled.Write(folders[1].path());
  auto source = format::OpenModel(folders[1].path());
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_DOUBLE_EQ(*source->metadata.GetDouble("phi3.rope.scaling.attn_factor"),
                   std::sqrt(1 + std::log(4.0) / std::log(static_cast<double>(context) / 4)));
  scaling["long_factor"] = json::array(half - 1, json::value(4.0));
  scaled.Write(folders[1].path());
  EXPECT_THAT(std::string(OpenStatus(folders[1].path()).message()),
              HasSubstr("long_factor must be a list of"));
}

TEST(CheckpointCase, A10UnknownScalingIsRefused) {
  Checkpoint checkpoint = GoldenCheckpoint("llama");
  checkpoint.config["rope_scaling"] = {{"type", "spiral"}, {"factor", 2}};
  TempFolder folder;
  checkpoint.Write(folder.path());
  const absl::Status status = OpenStatus(folder.path());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'spiral'"));
}

TEST(CheckpointCase, TokenizerAndTemplateAndEndTokensComeAlong) {
  const Checkpoint checkpoint = GoldenCheckpoint("qwen3");
  TempFolder folder;
  checkpoint.Write(folder.path());
  WriteText(folder.path() + "/tokenizer.json", R"({"model":{"type":"WordLevel","vocab":{"a":0}}})");
  WriteText(folder.path() + "/tokenizer_config.json",
            R"({"bos_token":"a","chat_template":[{"name":"default","template":"T1"}]})");
  WriteText(folder.path() + "/generation_config.json", R"({"eos_token_id":[3,5]})");
  auto source = format::OpenModel(folder.path());
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT(*source->metadata.GetString("tokenizer.huggingface.json"), HasSubstr("WordLevel"));
  EXPECT_EQ(*source->metadata.GetString("tokenizer.chat_template"), "T1");
  EXPECT_EQ(*source->metadata.GetInt("tokenizer.ggml.eos_token_id", 0, 9), 3);
  EXPECT_EQ(**source->metadata.GetInts("tokenizer.ggml.end_token_ids"),
            (std::vector<int64_t>{3, 5}));
  // The file goes before the settings; and each of them is part of what the model is.
  WriteText(folder.path() + "/chat_template.jinja", "T2");
  auto again = format::OpenModel(folder.path());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again->metadata.GetString("tokenizer.chat_template"), "T2");
  EXPECT_NE(source->identity, again->identity);
}

}  // namespace
}  // namespace terrace::engine
