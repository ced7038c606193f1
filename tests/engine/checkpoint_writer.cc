#include "engine/checkpoint_writer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>

#include "format/gguf.h"

namespace terrace::engine {
namespace {

namespace json = boost::json;

std::string TypeName(DType dtype) { return std::string(Info(dtype).name); }

class Converter {
 public:
  explicit Converter(const format::ModelSource& gguf) : gguf_(gguf) {
    arch_ = *gguf.metadata.GetString("general.architecture");
  }

  Checkpoint Run() {
    Config();
    for (const format::TensorInfo& tensor : gguf_.tensors) Convert(tensor);
    if (arch_ == "deepseek2") JoinLatent();
    if (arch_ == "gpt-oss") JoinExperts();
    return std::move(out_);
  }

 private:
  int64_t Int(std::string_view key) const {
    auto value = gguf_.metadata.GetInt(fmt::format("{}.{}", arch_, key), -1, 1 << 30);
    EXPECT_TRUE(value.ok()) << key;
    return value.value_or(0);
  }
  double Number(std::string_view key) const {
    return gguf_.metadata.GetDouble(fmt::format("{}.{}", arch_, key)).value_or(0);
  }
  bool Has(std::string_view key) const {
    return gguf_.metadata.Has(fmt::format("{}.{}", arch_, key));
  }

  void Config() {
    const bool experts = Has("expert_count");
    static const std::map<std::string, std::string> kTypes = {
        {"llama", "llama"},     {"qwen2", "qwen2"},          {"qwen3", "qwen3"},
        {"phi3", "phi3"},       {"qwen3moe", "qwen3_moe"},   {"gemma3", "gemma3_text"},
        {"gpt-oss", "gpt_oss"}, {"deepseek2", "deepseek_v3"}};
    json::object& c = out_.config;
    c["model_type"] = arch_ == "llama" && experts ? "mixtral" : kTypes.at(arch_);
    c["hidden_size"] = Int("embedding_length");
    c["num_hidden_layers"] = Int("block_count");
    c["intermediate_size"] = Int("feed_forward_length");
    c["num_attention_heads"] = Int("attention.head_count");
    c["num_key_value_heads"] = Int("attention.head_count_kv");
    c["head_dim"] = Int("attention.key_length");
    c["max_position_embeddings"] = Int("context_length");
    c["rms_norm_eps"] = Number("attention.layer_norm_rms_epsilon");
    c["rope_theta"] = Number("rope.freq_base");
    bool head = false;
    for (const auto& tensor : gguf_.tensors) head = head || tensor.name == "output.weight";
    c["tie_word_embeddings"] = !head;
    if (Has("attention.sliding_window")) c["sliding_window"] = Int("attention.sliding_window");
    if (experts) {
      c[arch_ == "qwen3moe"    ? "num_experts"
        : arch_ == "deepseek2" ? "n_routed_experts"
                               : "num_local_experts"] = Int("expert_count");
      c["num_experts_per_tok"] = Int("expert_used_count");
      if (Has("expert_feed_forward_length")) {
        c["moe_intermediate_size"] = Int("expert_feed_forward_length");
      }
      if (arch_ == "qwen3moe") c["norm_topk_prob"] = true;
    }
    if (arch_ == "gemma3") c["rope_local_base_freq"] = Number("rope.freq_base_swa");
    if (arch_ == "deepseek2") LatentConfig();
    for (const auto& tensor : gguf_.tensors) {
      if (tensor.name == "rope_freqs.weight") Factors(tensor);
    }
  }

  // Factors that no formula gives: the same for short and long contexts.
  void Factors(const format::TensorInfo& tensor) {
    const std::vector<std::byte> data = Data(tensor);
    json::array factors;
    for (size_t i = 0; i < data.size(); i += sizeof(float)) {
      float factor;
      std::memcpy(&factor, data.data() + i, sizeof(factor));
      factors.push_back(factor);
    }
    out_.config["rope_scaling"] = {{"rope_type", "longrope"},
                                   {"short_factor", factors},
                                   {"long_factor", factors},
                                   {"attention_factor", 1.0},
                                   {"original_max_position_embeddings", Int("context_length")}};
  }

  void LatentConfig() {
    json::object& c = out_.config;
    rope_ = Int("rope.dimension_count");
    nope_ = Int("attention.key_length_mla") - rope_;
    value_ = Int("attention.value_length_mla");
    rank_ = Int("attention.kv_lora_rank");
    c.erase("head_dim");
    c["kv_lora_rank"] = rank_;
    c["q_lora_rank"] = Int("attention.q_lora_rank");
    c["qk_rope_head_dim"] = rope_;
    c["qk_nope_head_dim"] = nope_;
    c["v_head_dim"] = value_;
    c["n_shared_experts"] = Int("expert_shared_count");
    c["first_k_dense_replace"] = Int("leading_dense_block_count");
    c["n_group"] = Int("expert_group_count");
    c["topk_group"] = Int("expert_group_used_count");
    c["topk_method"] = "noaux_tc";
    c["scoring_func"] = "sigmoid";
    c["routed_scaling_factor"] = Number("expert_weights_scale");
    c["norm_topk_prob"] = true;
  }

  std::vector<std::byte> Data(const format::TensorInfo& tensor) const {
    std::vector<std::byte> data(tensor.bytes);
    EXPECT_TRUE(gguf_.ReadTensor(tensor, 0, data).ok()) << tensor.name;
    return data;
  }

  void Add(std::string name, const format::TensorInfo& like, std::vector<int64_t> shape,
           std::vector<std::byte> data) {
    out_.tensors.push_back(
        {std::move(name), TypeName(like.dtype), std::move(shape), std::move(data)});
  }

  // The stored name of what GGUF calls "blk.N.<part>", "" for what is joined later.
  std::string NameIn(std::string_view part) const {
    static const std::map<std::string, std::string, std::less<>> kNames = {
        {"attn_norm.weight", "input_layernorm.weight"},
        {"attn_q.weight", "self_attn.q_proj.weight"},
        {"attn_k.weight", "self_attn.k_proj.weight"},
        {"attn_v.weight", "self_attn.v_proj.weight"},
        {"attn_q.bias", "self_attn.q_proj.bias"},
        {"attn_k.bias", "self_attn.k_proj.bias"},
        {"attn_v.bias", "self_attn.v_proj.bias"},
        {"attn_qkv.weight", "self_attn.qkv_proj.weight"},
        {"attn_output.weight", "self_attn.o_proj.weight"},
        {"attn_output.bias", "self_attn.o_proj.bias"},
        {"attn_q_norm.weight", "self_attn.q_norm.weight"},
        {"attn_k_norm.weight", "self_attn.k_norm.weight"},
        {"attn_sinks.weight", "self_attn.sinks"},
        {"attn_q_a.weight", "self_attn.q_a_proj.weight"},
        {"attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight"},
        {"attn_q_b.weight", "self_attn.q_b_proj.weight"},
        {"attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight"},
        {"attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight"},
        {"post_attention_norm.weight", "post_attention_layernorm.weight"},
        {"post_ffw_norm.weight", "post_feedforward_layernorm.weight"},
        {"ffn_gate.weight", "mlp.gate_proj.weight"},
        {"ffn_down.weight", "mlp.down_proj.weight"},
        {"ffn_gate_shexp.weight", "mlp.shared_experts.gate_proj.weight"},
        {"ffn_up_shexp.weight", "mlp.shared_experts.up_proj.weight"},
        {"ffn_down_shexp.weight", "mlp.shared_experts.down_proj.weight"},
        {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias"}};
    if (part == "ffn_norm.weight") {
      return arch_ == "gemma3" ? "pre_feedforward_layernorm.weight"
                               : "post_attention_layernorm.weight";
    }
    if (part == "ffn_up.weight") {
      return arch_ == "phi3" ? "mlp.gate_up_proj.weight" : "mlp.up_proj.weight";
    }
    if (part.starts_with("ffn_gate_inp")) {
      const std::string_view end = part.substr(part.find('.'));
      return fmt::format("{}{}",
                         arch_ == "gpt-oss" ? "mlp.router"
                         : arch_ == "llama" ? "block_sparse_moe.gate"
                                            : "mlp.gate",
                         end);
    }
    auto at = kNames.find(part);
    return at == kNames.end() ? "" : at->second;
  }

  void Convert(const format::TensorInfo& tensor) {
    const bool norm = tensor.name.ends_with("norm.weight");
    std::vector<std::byte> data = Data(tensor);
    if (arch_ == "gemma3" && norm) LessOne(&data);
    if (tensor.name == "token_embd.weight") {
      return Add("model.embed_tokens.weight", tensor, tensor.shape, std::move(data));
    }
    if (tensor.name == "output_norm.weight") {
      return Add("model.norm.weight", tensor, tensor.shape, std::move(data));
    }
    if (tensor.name == "output.weight") {
      return Add("lm_head.weight", tensor, tensor.shape, std::move(data));
    }
    if (!tensor.name.starts_with("blk.")) return;  // rope_freqs
    const size_t dot = tensor.name.find('.', 4);
    const std::string layer = fmt::format("model.layers.{}.", tensor.name.substr(4, dot - 4));
    const std::string part = tensor.name.substr(dot + 1);
    if (part.find("_exps") != std::string::npos || part.ends_with("_b.weight")) {
      if (part.find("_exps") != std::string::npos && arch_ != "gpt-oss") {
        return Experts(tensor, layer, part, data);
      }
      if (part != "attn_q_b.weight") return;  // joined later
    }
    if (arch_ == "llama" && (part == "attn_q.weight" || part == "attn_k.weight")) {
      Deinterleave(tensor, part == "attn_q.weight", &data);
    }
    const std::string name = NameIn(part);
    ASSERT_NE(name, "") << tensor.name;
    Add(layer + name, tensor, tensor.shape, std::move(data));
  }

  static void LessOne(std::vector<std::byte>* data) {
    for (size_t i = 0; i < data->size(); i += 4) {
      float value;
      std::memcpy(&value, data->data() + i, 4);
      const float less = value - 1.0f;
      EXPECT_EQ(less + 1.0f, value);
      std::memcpy(data->data() + i, &less, 4);
    }
  }

  // Published checkpoints keep the two halves of a head's rotary pairs apart.
  void Deinterleave(const format::TensorInfo& tensor, bool query, std::vector<std::byte>* data) {
    const int64_t dim = Int("attention.key_length");
    const int64_t heads = Int(query ? "attention.head_count" : "attention.head_count_kv");
    const size_t row = data->size() / static_cast<size_t>(tensor.shape[0]);
    std::vector<std::byte> out(data->size());
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t pair = 0; pair < dim / 2; ++pair) {
        for (int64_t part = 0; part < 2; ++part) {
          const auto from = static_cast<size_t>(head * dim + 2 * pair + part);
          const auto to = static_cast<size_t>(head * dim + part * dim / 2 + pair);
          std::memcpy(out.data() + to * row, data->data() + from * row, row);
        }
      }
    }
    *data = std::move(out);
  }

  void Experts(const format::TensorInfo& tensor, const std::string& layer, const std::string& part,
               const std::vector<std::byte>& data) {
    const bool gate = part.starts_with("ffn_gate"), up = part.starts_with("ffn_up");
    const char* name = arch_ == "llama" ? (gate ? "w1"
                                           : up ? "w3"
                                                : "w2")
                                        : (gate ? "gate_proj"
                                           : up ? "up_proj"
                                                : "down_proj");
    const size_t one = data.size() / static_cast<size_t>(tensor.shape[0]);
    for (int64_t e = 0; e < tensor.shape[0]; ++e) {
      const auto begin = data.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(e) * one);
      Add(fmt::format("{}{}.experts.{}.{}.weight", layer,
                      arch_ == "llama" ? "block_sparse_moe" : "mlp", e, name),
          tensor, {tensor.shape[1], tensor.shape[2]}, {begin, begin + static_cast<ptrdiff_t>(one)});
    }
  }

  const format::TensorInfo& Named(const std::string& name) const {
    for (const format::TensorInfo& tensor : gguf_.tensors) {
      if (tensor.name == name) return tensor;
    }
    ADD_FAILURE() << name;
    return gguf_.tensors[0];
  }

  // kv_b_proj: of each head the key's rows (which GGUF turns), then the value's.
  void JoinLatent() {
    const int64_t heads = Int("attention.head_count");
    for (int64_t layer = 0; layer < Int("block_count"); ++layer) {
      const auto& key = Named(fmt::format("blk.{}.attn_k_b.weight", layer));
      const auto& value = Named(fmt::format("blk.{}.attn_v_b.weight", layer));
      const std::vector<std::byte> k = Data(key), v = Data(value);
      std::vector<std::byte> out;
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t row = 0; row < nope_; ++row) {
          for (int64_t c = 0; c < rank_; ++c) {
            const auto at = static_cast<ptrdiff_t>(2 * ((h * rank_ + c) * nope_ + row));
            out.insert(out.end(), k.begin() + at, k.begin() + at + 2);
          }
        }
        const auto at = static_cast<ptrdiff_t>(2 * h * value_ * rank_);
        out.insert(out.end(), v.begin() + at, v.begin() + at + 2 * value_ * rank_);
      }
      Add(fmt::format("model.layers.{}.self_attn.kv_b_proj.weight", layer), key,
          {heads * (nope_ + value_), rank_}, std::move(out));
    }
  }

  // gpt-oss: [experts, in, out] with gate and up columns taking turns.
  void JoinExperts() {
    for (int64_t layer = 0; layer < Int("block_count"); ++layer) {
      const std::string base = fmt::format("model.layers.{}.mlp.experts.", layer);
      auto part = [&](const char* name) -> const format::TensorInfo& {
        return Named(fmt::format("blk.{}.ffn_{}", layer, name));
      };
      Join(base + "gate_up_proj", {&part("gate_exps.weight"), &part("up_exps.weight")});
      Join(base + "gate_up_proj_bias", {&part("gate_exps.bias"), &part("up_exps.bias")});
      Join(base + "down_proj", {&part("down_exps.weight")});
      Join(base + "down_proj_bias", {&part("down_exps.bias")});
    }
  }

  void Join(const std::string& name, const std::vector<const format::TensorInfo*>& parts) {
    const format::TensorInfo& first = *parts[0];
    const int64_t experts = first.shape[0], rows = first.shape[1];
    const int64_t cols = first.shape.size() == 3 ? first.shape[2] : 1;
    const auto count = static_cast<int64_t>(parts.size());
    const auto size = static_cast<int64_t>(Info(first.dtype).block_bytes);
    std::vector<std::byte> out(first.bytes * parts.size());
    for (int64_t p = 0; p < count; ++p) {
      const std::vector<std::byte> data = Data(*parts[static_cast<size_t>(p)]);
      for (int64_t e = 0; e < experts; ++e) {
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < cols; ++c) {
            const int64_t to = ((e * cols + c) * rows + r) * count + p;
            std::memcpy(out.data() + to * size, data.data() + ((e * rows + r) * cols + c) * size,
                        static_cast<size_t>(size));
          }
        }
      }
    }
    std::vector<int64_t> shape = {experts, cols, rows * count};
    if (first.shape.size() == 2) shape = {experts, rows * count};
    Add(name, first, std::move(shape), std::move(out));
  }

  const format::ModelSource& gguf_;
  std::string arch_;
  int64_t rope_ = 0, nope_ = 0, value_ = 0, rank_ = 0;
  Checkpoint out_;
};

}  // namespace

void WriteText(const std::string& path, std::string_view text) {
  std::ofstream(path, std::ios::binary)
      .write(text.data(), static_cast<std::streamsize>(text.size()));
}

std::string SafetensorsBytes(std::span<const CheckpointTensor> tensors) {
  json::object header;
  uint64_t offset = 0;
  for (const CheckpointTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", json::value_from(tensor.shape)},
                           {"data_offsets", {offset, offset + tensor.data.size()}}};
    offset += tensor.data.size();
  }
  std::string text = json::serialize(header);
  const uint64_t length = text.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
  bytes += text;
  for (const CheckpointTensor& tensor : tensors) {
    bytes.append(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
  }
  return bytes;
}

CheckpointTensor* Checkpoint::Find(std::string_view name) {
  for (CheckpointTensor& tensor : tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

void Checkpoint::Write(const std::string& folder, int shards) const {
  WriteText(folder + "/config.json", json::serialize(config));
  if (shards == 1) {
    return WriteText(folder + "/model.safetensors", SafetensorsBytes(tensors));
  }
  json::object map;
  const size_t each =
      (tensors.size() + static_cast<size_t>(shards) - 1) / static_cast<size_t>(shards);
  for (int shard = 0; shard < shards; ++shard) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards);
    const size_t begin = static_cast<size_t>(shard) * each;
    const size_t end = std::min(tensors.size(), begin + each);
    const auto part = std::span(tensors).subspan(begin, end - begin);
    for (const CheckpointTensor& tensor : part) map[tensor.name] = name;
    WriteText(folder + "/" + name, SafetensorsBytes(part));
  }
  WriteText(folder + "/model.safetensors.index.json",
            json::serialize(json::object{{"weight_map", map}}));
}

Checkpoint CheckpointOf(const format::ModelSource& gguf) { return Converter(gguf).Run(); }

std::string GoldenPath(std::string_view name) {
  return fmt::format("{}/golden/arch/{}.gguf", TERRACE_TEST_DATA, name);
}

Checkpoint GoldenCheckpoint(std::string_view name) {
  auto source = format::OpenGguf(GoldenPath(name));
  EXPECT_TRUE(source.ok()) << source.status();
  return CheckpointOf(*source);
}

}  // namespace terrace::engine
