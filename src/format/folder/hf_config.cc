#include "format/folder/hf_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include "base/status.h"
#include "format/folder/hf_rope.h"

namespace terrace::format {
namespace {

constexpr int64_t kMost = int64_t{1} << 30;
// Of layers, heads, experts and dimensions of a head.
constexpr int64_t kMostParts = 1 << 16;

struct Family {
  std::string_view model_type;
  std::string_view architecture;  // of GGUF
  Naming naming;
  double epsilon;  // the documented default of rms_norm_eps
  double base;     // and of rope_theta
};
constexpr std::array kFamilies = {
    Family{"llama", "llama", Naming::kLlama, 1e-6, 10000},
    Family{"mistral", "llama", Naming::kLlama, 1e-6, 10000},
    Family{"mixtral", "llama", Naming::kLlama, 1e-5, 1e6},
    Family{"qwen2", "qwen2", Naming::kHalves, 1e-6, 10000},
    Family{"qwen3", "qwen3", Naming::kHalves, 1e-6, 10000},
    Family{"qwen3_moe", "qwen3moe", Naming::kHalves, 1e-6, 10000},
    Family{"gemma3_text", "gemma3", Naming::kGemma, 1e-6, 1e6},
    Family{"gemma3", "gemma3", Naming::kGemma, 1e-6, 1e6},
    Family{"phi3", "phi3", Naming::kPhi3, 1e-5, 10000},
    Family{"deepseek_v2", "deepseek2", Naming::kDeepseek, 1e-6, 10000},
    Family{"deepseek_v3", "deepseek2", Naming::kDeepseek, 1e-6, 10000},
    Family{"qwen2_moe", "qwen2moe", Naming::kHalves, 1e-6, 10000},
    Family{"gemma2", "gemma2", Naming::kGemma, 1e-6, 10000},
    Family{"granite", "granite", Naming::kLlama, 1e-6, 10000},
    Family{"olmo2", "olmo2", Naming::kOlmo2, 1e-5, 10000},
    Family{"glm4", "glm4", Naming::kGlm4, 1.5625e-07, 10000},
    Family{"bert", "bert", Naming::kBert, 1e-12, 0},
    Family{"gpt_oss", "gpt-oss", Naming::kGptOss, 1e-5, 150000},
};

class Translator {
 public:
  Translator(const JsonNode& root, const Family& family)
      : root_(root),
        text_(root["text_config"].object() != nullptr ? root["text_config"] : root),
        family_(family) {}

  absl::StatusOr<CheckpointConfig> Run() {
    out_.architecture = family_.architecture;
    out_.naming = family_.naming;
    out_.metadata.Set("general.architecture", out_.architecture);
    if (family_.naming == Naming::kBert) {
      RETURN_IF_ERROR(Bert());
      RETURN_IF_ERROR(Quantization());
      return std::move(out_);
    }
    RETURN_IF_ERROR(Shape());
    RETURN_IF_ERROR(Attention());
    RETURN_IF_ERROR(ReadRope(text_, Prefix(), &out_));
    RETURN_IF_ERROR(Experts());
    if (family_.naming == Naming::kGemma) RETURN_IF_ERROR(GemmaScales());
    if (family_.architecture == "gemma3") RETURN_IF_ERROR(GemmaLayers());
    if (family_.architecture == "granite") RETURN_IF_ERROR(Granite());
    if (family_.naming == Naming::kDeepseek) RETURN_IF_ERROR(Latent());
    RETURN_IF_ERROR(Tokens());
    RETURN_IF_ERROR(Quantization());
    return std::move(out_);
  }

 private:
  std::string Prefix() const { return out_.architecture + "."; }
  void Set(std::string_view key, MetadataValue value) {
    out_.metadata.Set(fmt::format("{}.{}", out_.architecture, key), std::move(value));
  }
  absl::StatusOr<int64_t> Int(std::string_view key, int64_t low) const {
    return text_[key].Int(low, kMost);
  }
  absl::StatusOr<int64_t> Int(std::string_view key, int64_t low, int64_t otherwise) const {
    if (!text_[key].present()) return otherwise;
    return text_[key].Int(low, kMost);
  }
  absl::StatusOr<int64_t> Part(std::string_view key, int64_t low) const {
    return text_[key].Int(low, kMostParts);
  }
  absl::StatusOr<int64_t> Part(std::string_view key, int64_t low, int64_t otherwise) const {
    if (!text_[key].present()) return otherwise;
    return Part(key, low);
  }
  // A number that the model's arithmetic needs: its default is noted.
  absl::StatusOr<double> Noted(std::string_view key, double otherwise) {
    if (text_[key].present()) return text_[key].Number();
    out_.notes.push_back(fmt::format("config.json has no {}; {} is used, the default of {}", key,
                                     otherwise, family_.model_type));
    return otherwise;
  }

  absl::Status Shape() {
    ASSIGN_OR_RETURN(const int64_t width, Int("hidden_size", 1));
    ASSIGN_OR_RETURN(out_.layers, Part("num_hidden_layers", 1));
    ASSIGN_OR_RETURN(const int64_t ffn, Int("intermediate_size", 1));
    ASSIGN_OR_RETURN(out_.heads, Part("num_attention_heads", 1));
    ASSIGN_OR_RETURN(out_.kv_heads, Part("num_key_value_heads", 1, out_.heads));
    ASSIGN_OR_RETURN(out_.head_dim, Part("head_dim", 1, width / out_.heads));
    ASSIGN_OR_RETURN(const int64_t context, Int("max_position_embeddings", 1));
    ASSIGN_OR_RETURN(const double epsilon, Noted("rms_norm_eps", family_.epsilon));
    ASSIGN_OR_RETURN(out_.tied, TiedDefault());
    if (out_.heads > width || out_.head_dim < 1 || out_.head_dim > kMostParts) {
      return text_["num_attention_heads"].Wrong("at most hidden_size");
    }
    Set("embedding_length", width);
    Set("block_count", out_.layers);
    Set("feed_forward_length", ffn);
    Set("context_length", context);
    Set("attention.head_count", out_.heads);
    Set("attention.head_count_kv", out_.kv_heads);
    Set("attention.key_length", out_.head_dim);
    Set("attention.value_length", out_.head_dim);
    Set("attention.layer_norm_rms_epsilon", epsilon);
    double partial = 1.0;
    for (const JsonNode& node :
         {text_["partial_rotary_factor"], text_["rope_parameters"]["partial_rotary_factor"]}) {
      if (!node.present()) continue;
      ASSIGN_OR_RETURN(partial, node.Number());
      if (!(partial > 0) || partial > 1) return node.Wrong("above 0 and at most 1");
    }
    out_.rope_dim = static_cast<int64_t>(static_cast<double>(out_.head_dim) * partial);
    Set("rope.dimension_count", out_.rope_dim);
    const JsonNode rope = text_["rope_parameters"];
    if (rope["rope_theta"].present()) {
      ASSIGN_OR_RETURN(const double base, rope["rope_theta"].Number());
      Set("rope.freq_base", base);
      return absl::OkStatus();
    }
    if (rope["full_attention"]["rope_theta"].present()) {
      ASSIGN_OR_RETURN(const double base, rope["full_attention"]["rope_theta"].Number());
      Set("rope.freq_base", base);
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(const double base, Noted("rope_theta", family_.base));
    Set("rope.freq_base", base);
    return absl::OkStatus();
  }

  absl::Status Bert() {
    ASSIGN_OR_RETURN(const int64_t width, Int("hidden_size", 1));
    ASSIGN_OR_RETURN(out_.layers, Part("num_hidden_layers", 1));
    ASSIGN_OR_RETURN(const int64_t ffn, Int("intermediate_size", 1));
    ASSIGN_OR_RETURN(out_.heads, Part("num_attention_heads", 1));
    ASSIGN_OR_RETURN(const int64_t context, Int("max_position_embeddings", 1));
    ASSIGN_OR_RETURN(const double epsilon, Noted("layer_norm_eps", family_.epsilon));
    ASSIGN_OR_RETURN(const std::string activation, text_["hidden_act"].String("gelu"));
    ASSIGN_OR_RETURN(const std::string places, text_["position_embedding_type"].String("absolute"));
    if (activation != "gelu" || places != "absolute") {
      return absl::UnimplementedError(fmt::format(
          "config.json: hidden_act '{}' with position_embedding_type '{}' is not read by this "
          "build (gelu with absolute is)",
          activation, places));
    }
    Set("embedding_length", width);
    Set("block_count", out_.layers);
    Set("feed_forward_length", ffn);
    Set("context_length", context);
    Set("attention.head_count", out_.heads);
    Set("attention.layer_norm_epsilon", epsilon);
    return absl::OkStatus();
  }

  absl::StatusOr<bool> TiedDefault() const {
    const bool usual = family_.naming == Naming::kGemma;
    ASSIGN_OR_RETURN(const bool outer, root_["tie_word_embeddings"].Bool(usual));
    return text_["tie_word_embeddings"].Bool(outer);
  }

  absl::Status Attention() {
    ASSIGN_OR_RETURN(const bool used, text_["use_sliding_window"].Bool(true));
    if (!text_["sliding_window"].present() || !used) return absl::OkStatus();
    ASSIGN_OR_RETURN(const int64_t window, Int("sliding_window", 1));
    if (family_.architecture.starts_with("qwen")) {
      return absl::UnimplementedError("config.json: use_sliding_window is not read by this build");
    }
    Set("attention.sliding_window", window);
    return absl::OkStatus();
  }

  absl::Status Experts() {
    int64_t count = 0;
    for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts"}) {
      if (text_[key].present()) {
        ASSIGN_OR_RETURN(count, Part(key, 0));
      }
    }
    if (count == 0) return absl::OkStatus();
    out_.experts = count;
    Set("expert_count", count);
    const char* used_key =
        text_["num_experts_per_tok"].present() ? "num_experts_per_tok" : "experts_per_token";
    ASSIGN_OR_RETURN(const int64_t used, Int(used_key, 1));
    Set("expert_used_count", used);
    if (text_["moe_intermediate_size"].present()) {
      ASSIGN_OR_RETURN(const int64_t ffn, Int("moe_intermediate_size", 1));
      Set("expert_feed_forward_length", ffn);
    }
    if (text_["shared_expert_intermediate_size"].present()) {
      ASSIGN_OR_RETURN(const int64_t shared, Int("shared_expert_intermediate_size", 1));
      Set("expert_shared_feed_forward_length", shared);
    }
    const bool always = family_.naming == Naming::kLlama || family_.naming == Naming::kGptOss;
    ASSIGN_OR_RETURN(const bool normalize, text_["norm_topk_prob"].Bool(always));
    Set("expert_weights_norm", normalize);
    ASSIGN_OR_RETURN(const int64_t step, Int("decoder_sparse_step", 1, 1));
    const JsonNode dense = text_["mlp_only_layers"];
    if (step != 1 || (dense.array() != nullptr && !dense.array()->empty())) {
      return absl::UnimplementedError(
          "config.json: experts in some layers only are not read by this build");
    }
    return family_.naming == Naming::kDeepseek ? Groups() : absl::OkStatus();
  }

  absl::Status Groups() {
    ASSIGN_OR_RETURN(const int64_t shared, Int("n_shared_experts", 0, 0));
    ASSIGN_OR_RETURN(const int64_t dense, Int("first_k_dense_replace", 0, 0));
    const bool v3 = family_.model_type == "deepseek_v3";
    ASSIGN_OR_RETURN(const std::string gate,
                     text_["scoring_func"].String(v3 ? "sigmoid" : "softmax"));
    ASSIGN_OR_RETURN(const std::string method,
                     text_["topk_method"].String(v3 ? "noaux_tc" : "greedy"));
    if (gate != "softmax" && gate != "sigmoid") {
      return absl::UnimplementedError(
          fmt::format("config.json: scoring_func '{}' is not read by this build", gate));
    }
    Set("expert_shared_count", shared);
    Set("leading_dense_block_count", dense);
    Set("expert_gating_func", int64_t{gate == "sigmoid" ? 2 : 1});
    if (text_["routed_scaling_factor"].present()) {
      ASSIGN_OR_RETURN(const double scale, text_["routed_scaling_factor"].Number());
      Set("expert_weights_scale", scale);
    }
    if (method == "greedy") return absl::OkStatus();
    ASSIGN_OR_RETURN(const int64_t groups, Int("n_group", 1, 1));
    ASSIGN_OR_RETURN(const int64_t groups_used, Int("topk_group", 1, 1));
    Set("expert_group_count", groups);
    Set("expert_group_used_count", groups_used);
    return absl::OkStatus();
  }

  absl::Status Granite() {
    for (const auto& [key, name] : {std::pair("embedding_multiplier", "embedding_scale"),
                                    std::pair("residual_multiplier", "residual_scale"),
                                    std::pair("attention_multiplier", "attention.scale"),
                                    std::pair("logits_scaling", "logit_scale")}) {
      if (!text_[key].present()) continue;
      ASSIGN_OR_RETURN(const double value, text_[key].Number());
      Set(name, value);
    }
    return absl::OkStatus();
  }

  absl::Status GemmaScales() {
    if (text_["query_pre_attn_scalar"].present()) {
      ASSIGN_OR_RETURN(const double scalar, text_["query_pre_attn_scalar"].Number());
      if (!(scalar > 0)) return text_["query_pre_attn_scalar"].Wrong("above 0");
      Set("attention.scale", 1.0 / std::sqrt(scalar));
    }
    if (text_["final_logit_softcapping"].present()) {
      ASSIGN_OR_RETURN(const double cap, text_["final_logit_softcapping"].Number());
      Set("final_logit_softcapping", cap);
    }
    if (text_["attn_logit_softcapping"].present()) {
      ASSIGN_OR_RETURN(const double cap, text_["attn_logit_softcapping"].Number());
      Set("attn_logit_softcapping", cap);
    }
    return absl::OkStatus();
  }

  absl::Status GemmaLayers() {
    double local = 10000.0;
    const JsonNode local_rope = text_["rope_parameters"]["sliding_attention"]["rope_theta"];
    if (local_rope.present()) {
      ASSIGN_OR_RETURN(local, local_rope.Number());
    } else if (text_["rope_local_base_freq"].present()) {
      ASSIGN_OR_RETURN(local, text_["rope_local_base_freq"].Number());
    }
    Set("rope.freq_base_swa", local);
    ASSIGN_OR_RETURN(int64_t pattern, Int("sliding_window_pattern", 1, 6));
    const JsonNode types = text_["layer_types"];
    if (types.array() != nullptr) {
      // The first full layer tells the pattern, which the others must follow.
      const auto count = static_cast<int64_t>(types.array()->size());
      auto full = [&](int64_t i) {
        const JsonNode type = types.at(static_cast<size_t>(i));
        return type.is_string() && type.text() == "full_attention";
      };
      pattern = 1;
      while (pattern <= count && !full(pattern - 1)) ++pattern;
      for (int64_t i = 0; i < count; ++i) {
        if (full(i) != (i % pattern == pattern - 1)) {
          return types.Wrong("a regular pattern of sliding and full attention");
        }
      }
    }
    Set("attention.sliding_window_pattern", pattern);
    return absl::OkStatus();
  }

  absl::Status Latent() {
    ASSIGN_OR_RETURN(const int64_t rank, Part("kv_lora_rank", 1));
    ASSIGN_OR_RETURN(const int64_t query_rank, Int("q_lora_rank", 0, 0));
    ASSIGN_OR_RETURN(out_.rope_dim, Part("qk_rope_head_dim", 2));
    ASSIGN_OR_RETURN(out_.nope_dim, Part("qk_nope_head_dim", 1));
    ASSIGN_OR_RETURN(out_.value_dim, Part("v_head_dim", 1));
    out_.kv_heads = 1;
    Set("attention.head_count_kv", int64_t{1});
    Set("attention.kv_lora_rank", rank);
    if (query_rank > 0) Set("attention.q_lora_rank", query_rank);
    Set("attention.key_length", rank + out_.rope_dim);
    Set("attention.value_length", rank);
    Set("attention.key_length_mla", out_.nope_dim + out_.rope_dim);
    Set("attention.value_length_mla", out_.value_dim);
    Set("rope.dimension_count", out_.rope_dim);
    return absl::OkStatus();
  }

  // Ids that the tokenizer's own files may lack. End tokens are model_folder.cc's.
  absl::Status Tokens() {
    for (const auto& [key, name] : {std::pair("bos_token_id", "bos_token_id"),
                                    std::pair("pad_token_id", "padding_token_id")}) {
      const JsonNode node = text_[key].present() ? text_[key] : root_[key];
      if (!node.present() || node.array() != nullptr) continue;
      ASSIGN_OR_RETURN(const int64_t id, node.Int(-1, kMost));
      out_.metadata.Set(fmt::format("tokenizer.ggml.{}", name), id);
    }
    return absl::OkStatus();
  }

  absl::Status Quantization() {
    JsonNode node = text_["quantization_config"];
    if (!node.present()) node = root_["quantization_config"];
    if (!node.present()) return absl::OkStatus();
    ASSIGN_OR_RETURN(out_.quantization, node["quant_method"].String());
    const std::string& method = out_.quantization;
    JsonNode weights = node;
    if (method == "compressed-tensors") {
      ASSIGN_OR_RETURN(const std::string format, node["format"].String("pack-quantized"));
      if (node["config_groups"].object() != nullptr && !node["config_groups"].object()->empty()) {
        const auto& group = *node["config_groups"].object()->begin();
        const JsonNode first(&group.value(), node.path() + ".config_groups.*");
        weights = first["weights"];
        out_.int8_activations = first["input_activations"].present();
      }
      out_.quantization = method + " " + format;
    } else if (method != "gptq" && method != "awq" && method != "fp8" && method != "mxfp4") {
      return absl::UnimplementedError(
          fmt::format("config.json: quantization '{}' is not read by this build "
                      "(compressed-tensors, gptq, awq, "
                      "fp8 and mxfp4 are)",
                      method));
    }
    const char* bits_key = method == "compressed-tensors" ? "num_bits" : "bits";
    if (weights[bits_key].present()) {
      ASSIGN_OR_RETURN(out_.bits, weights[bits_key].Int(1, 64));
    }
    if (weights["group_size"].present()) {
      ASSIGN_OR_RETURN(out_.group, weights["group_size"].Int(-1, kMost));
    }
    ASSIGN_OR_RETURN(out_.symmetric, weights[method == "gptq" ? "sym" : "symmetric"].Bool(true));
    ASSIGN_OR_RETURN(out_.mixed_groups, weights["desc_act"].Bool(false));
    ASSIGN_OR_RETURN(const std::string layout, node["checkpoint_format"].String("gptq"));
    out_.zeros_less_one = layout != "gptq_v2";
    ASSIGN_OR_RETURN(const std::string version, node["version"].String("gemm"));
    if (method == "awq" && version != "gemm" && version != "GEMM") {
      return absl::UnimplementedError(
          fmt::format("config.json: AWQ version '{}' is not read by this build", version));
    }
    const JsonNode block = weights["weight_block_size"].present() ? weights["weight_block_size"]
                                                                  : weights["block_structure"];
    if (block.array() != nullptr && block.array()->size() == 2) {
      ASSIGN_OR_RETURN(out_.block_rows, block.at(0).Int(1, kMost));
      ASSIGN_OR_RETURN(out_.block_cols, block.at(1).Int(1, kMost));
    }
    return absl::OkStatus();
  }

  const JsonNode& root_;
  const JsonNode text_;
  const Family& family_;
  CheckpointConfig out_;
};

}  // namespace

absl::StatusOr<CheckpointConfig> ReadCheckpointConfig(const JsonNode& root) {
  const JsonNode type_node = root["text_config"]["model_type"].present()
                                 ? root["text_config"]["model_type"]
                                 : root["model_type"];
  ASSIGN_OR_RETURN(const std::string type, type_node.String());
  std::vector<std::string_view> known;
  for (const Family& family : kFamilies) {
    if (family.model_type == type) return Translator(root, family).Run();
    known.push_back(family.model_type);
  }
  return absl::UnimplementedError(
      fmt::format("config.json: model_type '{}' is not known; this build reads {}", type,
                  fmt::join(known, ", ")));
}

}  // namespace terrace::format
