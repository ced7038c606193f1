#include "engine/adapter_writer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <span>

#include "base/random.h"
#include "format/gguf_writer.h"
#include "tensor/half.h"

namespace terrace::engine {
namespace {

std::vector<std::byte> BytesOf(const std::vector<float>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

std::vector<float> FloatsOf(const CheckpointTensor& tensor) {
  EXPECT_EQ(tensor.dtype, "F16") << tensor.name;
  std::vector<float> out(tensor.data.size() / 2);
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t half;
    std::memcpy(&half, tensor.data.data() + 2 * i, 2);
    out[i] = HalfToFloat(half);
  }
  return out;
}

double Rms(const std::vector<float>& values) {
  double squares = 0;
  for (float value : values) squares += double{value} * value;
  return std::sqrt(squares / static_cast<double>(values.size()));
}

// "blk.0.attn_q" of "model.layers.0.self_attn.q_proj".
std::string GgufName(const std::string& module) {
  static const std::map<std::string, std::string> kParts = {
      {"self_attn.q_proj", "attn_q"},      {"self_attn.k_proj", "attn_k"},
      {"self_attn.v_proj", "attn_v"},      {"self_attn.qkv_proj", "attn_qkv"},
      {"self_attn.o_proj", "attn_output"}, {"self_attn.q_a_proj", "attn_q_a"},
      {"self_attn.q_b_proj", "attn_q_b"},  {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
      {"mlp.gate_proj", "ffn_gate"},       {"mlp.up_proj", "ffn_up"},
      {"mlp.gate_up_proj", "ffn_up"},      {"mlp.down_proj", "ffn_down"}};
  const std::string rest = module.substr(std::string("model.layers.").size());
  const size_t dot = rest.find('.');
  return fmt::format("blk.{}.{}", rest.substr(0, dot), kParts.at(rest.substr(dot + 1)));
}

}  // namespace

TestAdapter RandomAdapter(const Checkpoint& checkpoint, int64_t rank, uint64_t seed) {
  Random random(seed);
  TestAdapter adapter;
  adapter.rank = rank;
  adapter.alpha = 2.0 * static_cast<double>(rank);
  auto fill = [&](size_t count, double size) {
    std::vector<float> values(count);
    for (float& value : values) {
      const double unit = static_cast<double>(random.Below(2001)) / 1000.0 - 1.0;
      value = static_cast<float>(std::round(unit * size * 1.73 * 1024.0) / 1024.0);
    }
    return values;
  };
  for (const CheckpointTensor& tensor : checkpoint.tensors) {
    const bool layer = tensor.name.find("layers.") != std::string::npos;
    if (!layer || tensor.shape.size() != 2) continue;
    if (!tensor.name.ends_with("_proj.weight") && !tensor.name.ends_with("_mqa.weight")) continue;
    if (tensor.name.find("expert") != std::string::npos) continue;
    if (tensor.name.ends_with("kv_b_proj.weight")) continue;
    TestAdapter::Pair pair;
    pair.module = tensor.name.substr(0, tensor.name.size() - 7);
    pair.out = tensor.shape[0];
    pair.in = tensor.shape[1];
    // An entry of scale B A is a sum of `rank` products: its RMS is 2 sqrt(rank) a b.
    const double size = std::sqrt(Rms(FloatsOf(tensor)) / 8 / std::sqrt(static_cast<double>(rank)));
    pair.a = fill(static_cast<size_t>(rank * pair.in), size);
    pair.b = fill(static_cast<size_t>(pair.out * rank), size);
    adapter.pairs.push_back(std::move(pair));
  }
  return adapter;
}

void TestAdapter::WritePeft(const std::string& folder) const {
  boost::json::object config{{"peft_type", "LORA"},
                             {"r", rank},
                             {"lora_alpha", alpha},
                             {"bias", "none"},
                             {"use_dora", false},
                             {"modules_to_save", nullptr},
                             {"target_modules", boost::json::array{"q_proj"}}};
  WriteText(folder + "/adapter_config.json", boost::json::serialize(config));
  std::vector<CheckpointTensor> tensors;
  for (const Pair& pair : pairs) {
    const std::string name = "base_model.model." + pair.module;
    tensors.push_back({name + ".lora_A.weight", "F32", {rank, pair.in}, BytesOf(pair.a)});
    tensors.push_back({name + ".lora_B.weight", "F32", {pair.out, rank}, BytesOf(pair.b)});
  }
  WriteText(folder + "/adapter_model.safetensors", SafetensorsBytes(tensors));
}

void TestAdapter::WriteGguf(const std::string& path, const std::string& architecture, int64_t heads,
                            int64_t kv_heads) const {
  Metadata metadata;
  metadata.Set("general.architecture", architecture);
  metadata.Set("general.type", std::string("adapter"));
  metadata.Set("adapter.type", std::string("lora"));
  metadata.Set("adapter.lora.alpha", alpha);
  format::GgufWriter writer;
  writer.AddMetadata(metadata);
  for (const Pair& pair : pairs) {
    const std::string name = GgufName(pair.module) + ".weight";
    std::vector<float> b = pair.b;
    const int64_t of = name.ends_with("attn_q.weight")   ? heads
                       : name.ends_with("attn_k.weight") ? kv_heads
                                                         : 0;
    for (int64_t row = 0; of > 0 && row < pair.out; ++row) {
      const int64_t dim = pair.out / of, head = row / dim, i = row % dim;
      const int64_t from = head * dim + i / 2 + i % 2 * (dim / 2);
      std::copy_n(pair.b.begin() + from * rank, rank, b.begin() + row * rank);
    }
    const int64_t a_shape[] = {rank, pair.in}, b_shape[] = {pair.out, rank};
    writer.AddTensor(name + ".lora_a", DType::kF32, a_shape, BytesOf(pair.a));
    writer.AddTensor(name + ".lora_b", DType::kF32, b_shape, BytesOf(b));
  }
  EXPECT_TRUE(writer.Write(path).ok());
}

Checkpoint TestAdapter::Merge(const Checkpoint& checkpoint) const {
  Checkpoint merged = checkpoint;
  const double scale = alpha / static_cast<double>(rank);
  for (const Pair& pair : pairs) {
    CheckpointTensor* tensor = merged.Find(pair.module + ".weight");
    std::vector<float> weights = FloatsOf(*tensor);
    for (int64_t row = 0; row < pair.out; ++row) {
      for (int64_t col = 0; col < pair.in; ++col) {
        double sum = 0;
        for (int64_t r = 0; r < rank; ++r) {
          sum += double{pair.b[static_cast<size_t>(row * rank + r)]} *
                 pair.a[static_cast<size_t>(r * pair.in + col)];
        }
        float& weight = weights[static_cast<size_t>(row * pair.in + col)];
        weight = static_cast<float>(weight + scale * sum);
      }
    }
    tensor->dtype = "F32";
    tensor->data = BytesOf(weights);
  }
  return merged;
}

}  // namespace terrace::engine
