// Quantised checkpoints: what a folder's tensors read as, against the formula of each format
// written out here. One tensor a form, with random codes and scales.
#include "format/folder/model_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/random.h"
#include "format_testing.h"
#include "tensor/dequantize.h"
#include "tensor/half.h"

namespace terrace::format {
namespace {

namespace json = boost::json;
using testing::HasSubstr;

constexpr int64_t kOut = 48, kIn = 64;

// A checkpoint of one qwen3 layer whose down_proj [kOut, kIn] is what a test makes of it.
class Folder {
 public:
  explicit Folder(json::object quantization = {}) {
    config_ = {{"model_type", "qwen3"},    {"hidden_size", kOut},
               {"num_hidden_layers", 1},   {"intermediate_size", kIn},
               {"num_attention_heads", 2}, {"max_position_embeddings", 64},
               {"rms_norm_eps", 1e-6},     {"rope_theta", 10000}};
    if (!quantization.empty()) config_["quantization_config"] = std::move(quantization);
  }

  json::object& config() { return config_; }

  template <typename T>
  void Add(const std::string& part, const std::string& dtype, std::vector<int64_t> shape,
           const std::vector<T>& values) {
    const std::string name = "model.layers.0.mlp.down_proj." + part;
    header_[name] = {{"dtype", dtype},
                     {"shape", json::value_from(shape)},
                     {"data_offsets", {data_.size(), data_.size() + values.size() * sizeof(T)}}};
    data_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  }

  absl::StatusOr<ModelSource> Open() {
    const std::string text = json::serialize(header_);
    const uint64_t length = text.size();
    std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
    WriteFile(folder_ / "model.safetensors", bytes + text + data_);
    WriteFile(folder_ / "config.json", json::serialize(config_));
    return OpenModelFolder(folder_.path());
  }

  std::string ErrorOf() {
    auto source = Open();
    return source.ok() ? "no error" : std::string(source.status().message());
  }

 private:
  TempFolder folder_;
  json::object config_, header_;
  std::string data_;
};

using Value = std::function<float(int64_t out, int64_t in)>;

// The folder's one tensor is `dtype` and reads as `want`, and any part of its bytes as the whole.
void ExpectValues(Folder& folder, DType dtype, const Value& want) {
  auto source = folder.Open();
  ASSERT_TRUE(source.ok()) << source.status();
  ASSERT_EQ(source->tensors.size(), 1u);
  const TensorInfo& tensor = source->tensors[0];
  EXPECT_EQ(tensor.name, "blk.0.ffn_down.weight");
  EXPECT_EQ(Info(tensor.dtype).name, Info(dtype).name);
  EXPECT_EQ(tensor.shape, (std::vector<int64_t>{kOut, kIn}));
  std::vector<std::byte> bytes(tensor.bytes);
  ASSERT_TRUE(source->ReadTensor(tensor, 0, bytes).ok());
  std::vector<float> row(kIn);
  for (int64_t out = 0; out < kOut; ++out) {
    DequantizeRow(dtype, bytes.data() + out * static_cast<int64_t>(RowBytes(dtype, kIn)), row);
    for (int64_t in = 0; in < kIn; ++in) {
      ASSERT_EQ(row[static_cast<size_t>(in)], want(out, in)) << out << ", " << in;
    }
  }
  Random random(3);
  for (int i = 0; i < 50; ++i) {
    const uint64_t begin = random.Below(bytes.size());
    std::vector<std::byte> part(1 + random.Below(bytes.size() - begin));
    ASSERT_TRUE(source->ReadTensor(tensor, begin, part).ok());
    ASSERT_EQ(std::memcmp(part.data(), bytes.data() + begin, part.size()), 0) << begin;
  }
}

std::vector<int32_t> RandomWords(Random& random, int64_t count) {
  std::vector<int32_t> words;
  for (int64_t i = 0; i < count; ++i) words.push_back(static_cast<int32_t>(random.Next()));
  return words;
}

// F16 numbers between 1/64 and 2.
std::vector<uint16_t> RandomHalves(Random& random, int64_t count) {
  std::vector<uint16_t> halves;
  for (int64_t i = 0; i < count; ++i) {
    halves.push_back(static_cast<uint16_t>(0x2400 + random.Below(0x1c00)));
  }
  return halves;
}

int Nibble(int32_t word, int64_t at) {
  return static_cast<int>(static_cast<uint32_t>(word) >> (4 * at) & 15);
}

float Bf16(float value) { return Bf16ToFloat(FloatToBf16(value)); }

json::object CompressedTensors(std::string_view format, bool symmetric, int64_t group) {
  return {{"quant_method", "compressed-tensors"},
          {"format", format},
          {"config_groups",
           {{"group_0",
             {{"weights", {{"num_bits", 4}, {"symmetric", symmetric}, {"group_size", group}}}}}}}};
}

TEST(QuantisedFolder, PlainFloatsStayAsTheyAre) {
  Random random(1);
  const auto values = RandomHalves(random, kOut * kIn);
  Folder folder;
  folder.Add("weight", "F16", {kOut, kIn}, values);
  ExpectValues(folder, DType::kF16, [&](int64_t out, int64_t in) {
    return HalfToFloat(values[static_cast<size_t>(out * kIn + in)]);
  });
}

TEST(QuantisedFolder, W4A16SymmetricIsRepackedExactly) {
  Random random(2);
  const auto words = RandomWords(random, kOut * kIn / 8);
  const auto scales = RandomHalves(random, kOut * 2);
  Folder folder(CompressedTensors("pack-quantized", true, 32));
  folder.Add("weight_packed", "I32", {kOut, kIn / 8}, words);
  folder.Add("weight_scale", "F16", {kOut, 2}, scales);
  folder.Add("weight_shape", "I64", {2}, std::vector<int64_t>{kOut, kIn});
  ExpectValues(folder, DType::kQ4_0, [&](int64_t out, int64_t in) {
    const int code = Nibble(words[static_cast<size_t>(out * kIn / 8 + in / 8)], in % 8);
    return static_cast<float>(code - 8) *
           HalfToFloat(scales[static_cast<size_t>(out * 2 + in / 32)]);
  });
}

TEST(QuantisedFolder, W4A16WithZeroPointsIsRepackedExactly) {
  Random random(3);
  const auto words = RandomWords(random, kOut * kIn / 8);
  const auto zeros = RandomWords(random, kOut / 8 * 2);
  const auto scales = RandomHalves(random, kOut * 2);
  Folder folder(CompressedTensors("pack-quantized", false, 32));
  folder.Add("weight_packed", "I32", {kOut, kIn / 8}, words);
  folder.Add("weight_scale", "F16", {kOut, 2}, scales);
  folder.Add("weight_zero_point", "I32", {kOut / 8, 2}, zeros);
  ExpectValues(folder, DType::kQ8_0, [&](int64_t out, int64_t in) {
    const int code = Nibble(words[static_cast<size_t>(out * kIn / 8 + in / 8)], in % 8);
    const int zero = Nibble(zeros[static_cast<size_t>(out / 8 * 2 + in / 32)], out % 8);
    return static_cast<float>(code - zero) *
           HalfToFloat(scales[static_cast<size_t>(out * 2 + in / 32)]);
  });
}

TEST(QuantisedFolder, GptqInAllItsFormsIsRepacked) {
  Random random(4);
  const auto words = RandomWords(random, kIn / 8 * kOut);
  const auto zeros = RandomWords(random, 2 * kOut / 8);
  const auto scales = RandomHalves(random, 2 * kOut);
  std::vector<int32_t> mixed;  // the groups of columns in any order
  for (int64_t in = 0; in < kIn; ++in) mixed.push_back(static_cast<int32_t>(random.Below(2)));
  for (bool symmetric : {true, false}) {
    for (bool act_order : {false, true}) {
      for (bool v2 : {false, true}) {
        SCOPED_TRACE(testing::Message() << symmetric << act_order << v2);
        Folder folder({{"quant_method", "gptq"},
                       {"bits", 4},
                       {"group_size", 32},
                       {"sym", symmetric},
                       {"desc_act", act_order},
                       {"checkpoint_format", v2 ? "gptq_v2" : "gptq"}});
        folder.Add("qweight", "I32", {kIn / 8, kOut}, words);
        folder.Add("qzeros", "I32", {2, kOut / 8}, zeros);
        folder.Add("scales", "F16", {2, kOut}, scales);
        folder.Add("g_idx", "I32", {kIn}, mixed);
        const DType dtype = act_order ? DType::kF16 : symmetric ? DType::kQ4_0 : DType::kQ8_0;
        ExpectValues(folder, dtype, [&](int64_t out, int64_t in) {
          const int64_t group = act_order ? mixed[static_cast<size_t>(in)] : in / 32;
          const int code = Nibble(words[static_cast<size_t>(in / 8 * kOut + out)], in % 8);
          int zero = 8;
          if (!symmetric) {
            zero = Nibble(zeros[static_cast<size_t>(group * kOut / 8 + out / 8)], out % 8) +
                   (v2 ? 0 : 1);
          }
          const float value = static_cast<float>(code - zero) *
                              HalfToFloat(scales[static_cast<size_t>(group * kOut + out)]);
          return act_order ? HalfToFloat(FloatToHalf(value)) : value;
        });
      }
    }
  }
}

TEST(QuantisedFolder, AwqIsRepackedExactly) {
  // Column 8 c + kOrder[k] lies in nibble k.
  constexpr int64_t kOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};
  Random random(5);
  const auto words = RandomWords(random, kIn * kOut / 8);
  const auto zeros = RandomWords(random, 2 * kOut / 8);
  const auto scales = RandomHalves(random, 2 * kOut);
  auto nibble = [&](int32_t word, int64_t column) {
    for (int64_t k = 0; k < 8; ++k) {
      if (kOrder[k] == column) return Nibble(word, k);
    }
    return -1;
  };
  Folder folder({{"quant_method", "awq"}, {"bits", 4}, {"group_size", 32}, {"version", "gemm"}});
  folder.Add("qweight", "I32", {kIn, kOut / 8}, words);
  folder.Add("qzeros", "I32", {2, kOut / 8}, zeros);
  folder.Add("scales", "F16", {2, kOut}, scales);
  ExpectValues(folder, DType::kQ8_0, [&](int64_t out, int64_t in) {
    const int code = nibble(words[static_cast<size_t>(in * kOut / 8 + out / 8)], out % 8);
    const int zero = nibble(zeros[static_cast<size_t>(in / 32 * kOut / 8 + out / 8)], out % 8);
    return static_cast<float>(code - zero) *
           HalfToFloat(scales[static_cast<size_t>(in / 32 * kOut + out)]);
  });
}

TEST(QuantisedFolder, Fp8IsRoundedOnceWithItsScale) {
  Random random(6);
  std::vector<uint8_t> codes;
  for (int64_t i = 0; i < kOut * kIn; ++i) {
    const auto code = static_cast<uint8_t>(random.Below(256));
    codes.push_back((code & 0x7f) == 0x7f ? uint8_t{0} : code);  // no NaN
  }
  auto value = [&](int64_t out, int64_t in) {
    return F8E4M3ToFloat(codes[static_cast<size_t>(out * kIn + in)]);
  };
  {
    Folder folder({{"quant_method", "fp8"}});
    folder.Add("weight", "F8_E4M3", {kOut, kIn}, codes);
    folder.Add("weight_scale", "F32", {}, std::vector<float>{0.3f});
    ExpectValues(folder, DType::kBF16,
                 [&](int64_t out, int64_t in) { return Bf16(value(out, in) * 0.3f); });
  }
  std::vector<float> scales;
  for (int64_t i = 0; i < kOut; ++i) scales.push_back(0.01f * static_cast<float>(i + 1));
  {
    Folder folder(CompressedTensors("float-quantized", true, -1));
    folder.Add("weight", "F8_E4M3", {kOut, kIn}, codes);
    folder.Add("weight_scale", "F32", {kOut, 1}, scales);
    ExpectValues(folder, DType::kBF16, [&](int64_t out, int64_t in) {
      return Bf16(value(out, in) * scales[static_cast<size_t>(out)]);
    });
  }
  {
    Folder folder({{"quant_method", "fp8"}, {"weight_block_size", {32, 48}}});
    folder.Add("weight", "F8_E4M3", {kOut, kIn}, codes);
    folder.Add("weight_scale_inv", "F32", {2, 2}, std::vector<float>{0.1f, 0.2f, 0.3f, 0.4f});
    ExpectValues(folder, DType::kBF16, [&](int64_t out, int64_t in) {
      return Bf16(value(out, in) * scales[static_cast<size_t>(9 + out / 32 * 20 + in / 48 * 10)]);
    });
  }
}

TEST(QuantisedFolder, Int8KeepsItsCodes) {
  Random random(7);
  std::vector<int8_t> codes;
  for (int64_t i = 0; i < kOut * kIn; ++i) codes.push_back(static_cast<int8_t>(random.Next()));
  std::vector<uint16_t> scales;  // BF16 numbers that F16 holds
  for (int64_t i = 0; i < kOut; ++i)
    scales.push_back(FloatToBf16(0.001f * static_cast<float>(i + 1)));
  for (bool tiny : {false, true}) {
    if (tiny) scales[7] = FloatToBf16(1e-7f);  // F16 does not
    Folder folder(CompressedTensors("int-quantized", true, -1));
    folder.Add("weight", "I8", {kOut, kIn}, codes);
    folder.Add("weight_scale", "BF16", {kOut, 1}, scales);
    ExpectValues(folder, tiny ? DType::kBF16 : DType::kQ8_0, [&](int64_t out, int64_t in) {
      const float value = static_cast<float>(codes[static_cast<size_t>(out * kIn + in)]) *
                          Bf16ToFloat(scales[static_cast<size_t>(out)]);
      return tiny ? Bf16(value) : value;
    });
  }
}

// Made for activations in INT8: the W8A8 kernels' own form, with scales of any size.
TEST(QuantisedFolder, Int8WithActivationsInInt8IsW8A8) {
  Random random(9);
  std::vector<int8_t> codes;
  for (int64_t i = 0; i < kOut * kIn; ++i) codes.push_back(static_cast<int8_t>(random.Next()));
  std::vector<float> scales;
  for (int64_t i = 0; i < kOut; ++i) scales.push_back(1e-7f * static_cast<float>(i + 1));
  boost::json::object config = CompressedTensors("int-quantized", true, -1);
  config.at("config_groups").at("group_0").as_object()["input_activations"] = {
      {"num_bits", 8}, {"dynamic", true}, {"strategy", "token"}};
  Folder folder(config);
  folder.Add("weight", "I8", {kOut, kIn}, codes);
  folder.Add("weight_scale", "F32", {kOut, 1}, scales);
  ExpectValues(folder, DType::kW8A8, [&](int64_t out, int64_t in) {
    return static_cast<float>(codes[static_cast<size_t>(out * kIn + in)]) *
           scales[static_cast<size_t>(out)];
  });
  scales[3] = std::numeric_limits<float>::infinity();
  Folder bad(config);
  bad.Add("weight", "I8", {kOut, kIn}, codes);
  bad.Add("weight_scale", "F32", {kOut, 1}, scales);
  EXPECT_THAT(bad.ErrorOf(), HasSubstr("a scale of inf"));
}

TEST(QuantisedFolder, WhatDoesNotFitIsRefusedByName) {
  Random random(8);
  const auto words = RandomWords(random, kOut * kIn / 8);
  {
    Folder folder(CompressedTensors("pack-quantized", true, 32));
    folder.Add("weight_packed", "I32", {kOut, kIn / 8}, words);
    EXPECT_THAT(folder.ErrorOf(),
                HasSubstr("down_proj.weight_scale': it is not in the checkpoint"));
    folder.Add("weight_scale", "F16", {kOut, 3}, RandomHalves(random, kOut * 3));
    EXPECT_THAT(folder.ErrorOf(), HasSubstr("its shape is [48, 3], not [48, 2]"));
  }
  {
    Folder folder({{"quant_method", "gptq"}, {"bits", 3}, {"group_size", 32}});
    folder.Add("qweight", "I32", {kIn / 8, kOut}, words);
    EXPECT_THAT(folder.ErrorOf(), HasSubstr("packed 3-bit codes are not read"));
  }
  {
    Folder folder({{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}, {"desc_act", true}});
    folder.Add("qweight", "I32", {kIn / 8, kOut}, words);
    folder.Add("scales", "F16", {2, kOut}, RandomHalves(random, kOut * 2));
    folder.Add("g_idx", "I32", {kIn}, std::vector<int32_t>(kIn, 2));
    auto source = folder.Open();
    ASSERT_TRUE(source.ok()) << source.status();
    std::vector<std::byte> bytes(source->tensors[0].bytes);
    EXPECT_THAT(std::string(source->ReadTensor(source->tensors[0], 0, bytes).message()),
                HasSubstr("names group 2 of 2"));
  }
  {
    Folder folder({{"quant_method", "bitnet"}});
    folder.Add("weight", "F16", {kOut, kIn}, RandomHalves(random, kOut * kIn));
    EXPECT_THAT(folder.ErrorOf(), HasSubstr("quantization 'bitnet' is not read"));
  }
  {
    Folder folder;
    folder.config()["model_type"] = "mamba";
    EXPECT_THAT(folder.ErrorOf(), HasSubstr("model_type 'mamba' is not known"));
    folder.config()["model_type"] = "qwen3";
    folder.config()["num_hidden_layers"] = 1'000'000'000;
    EXPECT_THAT(folder.ErrorOf(), HasSubstr("num_hidden_layers must be a whole number from 1 to"));
    folder.config().erase("num_hidden_layers");
    EXPECT_THAT(folder.ErrorOf(), HasSubstr("config.json.num_hidden_layers must be"));
  }
}

}  // namespace
}  // namespace terrace::format
