#include "format/folder/hf_tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <limits>
#include <utility>

#include "base/status.h"
#include "format/folder/weight_form.h"

namespace terrace::format {
namespace {

constexpr int64_t kMostRows = std::numeric_limits<int32_t>::max();

class Mapper {
 public:
  Mapper(const CheckpointConfig& config, RecipeReader* reader)
      : config_(config), reader_(reader), forms_(&config, reader) {}

  absl::StatusOr<std::vector<TensorInfo>> Run() {
    if (config_.naming == Naming::kBert) {
      RETURN_IF_ERROR(Bert());
      return std::move(tensors_);
    }
    FindPrefix();
    RETURN_IF_ERROR(Ends());
    for (int64_t layer = 0; layer < config_.layers; ++layer) {
      from_ = fmt::format("{}layers.{}.", prefix_, layer);
      to_ = fmt::format("blk.{}.", layer);
      RETURN_IF_ERROR(Norms());
      RETURN_IF_ERROR(config_.naming == Naming::kDeepseek ? Latent() : Attention());
      RETURN_IF_ERROR(Ffn());
    }
    return std::move(tensors_);
  }

 private:
  absl::Status Bert() {
    prefix_ = forms_.Find("bert.embeddings.word_embeddings.weight") == Recipe::kNone ? "" : "bert.";
    const std::string embeddings = prefix_ + "embeddings.";
    RETURN_IF_ERROR(Floats(embeddings + "word_embeddings.weight", "token_embd.weight"));
    RETURN_IF_ERROR(Floats(embeddings + "position_embeddings.weight", "position_embd.weight"));
    RETURN_IF_ERROR(Floats(embeddings + "token_type_embeddings.weight", "token_types.weight"));
    RETURN_IF_ERROR(Norm(embeddings + "LayerNorm", "token_embd_norm"));
    for (int64_t layer = 0; layer < config_.layers; ++layer) {
      from_ = fmt::format("{}encoder.layer.{}.", prefix_, layer);
      to_ = fmt::format("blk.{}.", layer);
      RETURN_IF_ERROR(Linear(from_ + "attention.self.query", to_ + "attn_q"));
      RETURN_IF_ERROR(Linear(from_ + "attention.self.key", to_ + "attn_k"));
      RETURN_IF_ERROR(Linear(from_ + "attention.self.value", to_ + "attn_v"));
      RETURN_IF_ERROR(Linear(from_ + "attention.output.dense", to_ + "attn_output"));
      RETURN_IF_ERROR(Norm(from_ + "attention.output.LayerNorm", to_ + "attn_output_norm"));
      RETURN_IF_ERROR(Linear(from_ + "intermediate.dense", to_ + "ffn_up"));
      RETURN_IF_ERROR(Linear(from_ + "output.dense", to_ + "ffn_down"));
      RETURN_IF_ERROR(Norm(from_ + "output.LayerNorm", to_ + "layer_output_norm"));
    }
    return absl::OkStatus();
  }

  absl::Status Norm(const std::string& from, const std::string& to) {
    RETURN_IF_ERROR(Floats(from + ".weight", to + ".weight"));
    return Floats(from + ".bias", to + ".bias");
  }

  // What stands before "embed_tokens" and "layers".
  void FindPrefix() {
    constexpr std::string_view kFirst = "layers.0.post_attention_layernorm.weight";
    prefix_ = "model.";
    for (const SafeTensor& tensor : reader_->tensors()) {
      if (!tensor.name.ends_with(kFirst)) continue;
      prefix_ = tensor.name.substr(0, tensor.name.size() - kFirst.size());
      return;
    }
  }

  // Adds `recipe` as tensor `name`; leading dimensions of one matrix are left out.
  absl::Status Add(const std::string& name, Recipe recipe, std::vector<int64_t> shape) {
    TensorInfo info;
    info.name = name;
    info.dtype = recipe.dtype;
    info.shape = std::move(shape);
    uint64_t rows = 0;
    if (__builtin_mul_overflow(static_cast<uint64_t>(recipe.matrices),
                               static_cast<uint64_t>(recipe.rows), &rows) ||
        recipe.rows > kMostRows || recipe.cols > kMostRows ||
        recipe.cols % Info(recipe.dtype).block_elements != 0 ||
        __builtin_mul_overflow(rows, RowBytes(recipe.dtype, static_cast<uint64_t>(recipe.cols)),
                               &info.bytes)) {
      return absl::InvalidArgumentError(fmt::format("tensor '{}' of {} x {} x {} cannot be", name,
                                                    recipe.matrices, recipe.rows, recipe.cols));
    }
    info.file = reader_->Add(std::move(recipe));
    tensors_.push_back(std::move(info));
    return absl::OkStatus();
  }

  // "<from>" as it is, if it is there: a vector, or a matrix of floats.
  absl::Status Floats(const std::string& from, const std::string& to, bool plus_one = false,
                      const std::vector<uint32_t>& row_map = {}) {
    const uint32_t index = forms_.Find(from);
    if (index == Recipe::kNone) return absl::OkStatus();
    ASSIGN_OR_RETURN(Recipe recipe, forms_.Plain(index));
    if (plus_one) {
      recipe.kind = Recipe::Kind::kAddOne;
      recipe.dtype = DType::kF32;
    }
    if (!row_map.empty()) {  // elements of a vector as rows of one
      recipe.rows = recipe.source_rows = recipe.cols;
      recipe.cols = recipe.source_cols = 1;
      if (row_map.size() != static_cast<size_t>(recipe.rows)) return WrongRows(from, row_map);
      recipe.row_map = row_map;
    }
    return Add(to, std::move(recipe), forms_.tensor(index).shape);
  }

  static absl::Status WrongRows(const std::string& name, const std::vector<uint32_t>& row_map) {
    return absl::InvalidArgumentError(
        fmt::format("tensor '{}': it has not the {} rows of the heads", name, row_map.size()));
  }

  // The matrix and the bias of a linear layer, if they are there.
  absl::Status Linear(const std::string& from, const std::string& to,
                      const std::vector<uint32_t>& row_map = {}) {
    if (forms_.Has(from)) {
      ASSIGN_OR_RETURN(Recipe recipe, forms_.Matrix(from));
      if (!row_map.empty() && row_map.size() != static_cast<size_t>(recipe.rows)) {
        return WrongRows(from, row_map);
      }
      recipe.row_map = row_map;
      const std::vector<int64_t> shape = {recipe.rows, recipe.cols};
      RETURN_IF_ERROR(Add(to + ".weight", std::move(recipe), shape));
    }
    return Floats(from + ".bias", to + ".bias", false, row_map);
  }

  absl::Status Ends() {
    RETURN_IF_ERROR(Linear(prefix_ + "embed_tokens", "token_embd"));
    RETURN_IF_ERROR(Floats(prefix_ + "norm.weight", "output_norm.weight", PlusOne()));
    const bool embedded = forms_.Has(prefix_ + "embed_tokens");
    if (!config_.tied || !embedded) {
      for (const std::string& head :
           {std::string("lm_head"), prefix_ + "lm_head", std::string("language_model.lm_head")}) {
        if (forms_.Has(head)) {
          RETURN_IF_ERROR(Linear(head, "output"));
          break;
        }
      }
    }
    RETURN_IF_ERROR(Constant("rope_freqs.weight", config_.rope_factors));
    RETURN_IF_ERROR(Constant("rope_factors_short.weight", config_.rope_short_factors));
    return Constant("rope_factors_long.weight", config_.rope_long_factors);
  }

  // A vector that the config holds; none if it is empty.
  absl::Status Constant(const std::string& name, const std::vector<float>& values) {
    if (values.empty()) return absl::OkStatus();
    Recipe factors;
    factors.kind = Recipe::Kind::kConstant;
    factors.dtype = DType::kF32;
    factors.cols = static_cast<int64_t>(values.size());
    factors.data.resize(values.size() * sizeof(float));
    std::memcpy(factors.data.data(), values.data(), factors.data.size());
    const std::vector<int64_t> shape = {factors.cols};
    return Add(name, std::move(factors), shape);
  }

  bool PlusOne() const { return config_.naming == Naming::kGemma; }

  absl::Status Norms() {
    struct Name {
      const char* from;
      const char* to;
    };
    std::vector<Name> names = {{"input_layernorm", "attn_norm"},
                               {"post_self_attn_layernorm", "post_attention_norm"},
                               {"post_mlp_layernorm", "post_ffw_norm"},
                               {"self_attn.q_norm", "attn_q_norm"},
                               {"self_attn.k_norm", "attn_k_norm"}};
    if (config_.naming == Naming::kGemma) {
      names.push_back({"post_attention_layernorm", "post_attention_norm"});
      names.push_back({"pre_feedforward_layernorm", "ffn_norm"});
      names.push_back({"post_feedforward_layernorm", "post_ffw_norm"});
    } else if (config_.naming == Naming::kOlmo2) {
      names.push_back({"post_attention_layernorm", "post_attention_norm"});
      names.push_back({"post_feedforward_layernorm", "post_ffw_norm"});
    } else if (config_.naming == Naming::kGptOss) {
      names.push_back({"post_attention_layernorm", "post_attention_norm"});
    } else {
      names.push_back({"post_attention_layernorm", "ffn_norm"});
    }
    for (const Name& name : names) {
      RETURN_IF_ERROR(Floats(fmt::format("{}{}.weight", from_, name.from),
                             fmt::format("{}{}.weight", to_, name.to), PlusOne()));
    }
    return Floats(from_ + "self_attn.sinks", to_ + "attn_sinks.weight");
  }

  // Heads whose rotary pairs lie half a head apart, with the pairs side by side.
  std::vector<uint32_t> Interleave(int64_t heads) const {
    std::vector<uint32_t> map;
    if (config_.naming != Naming::kLlama) return map;
    const int64_t half = config_.head_dim / 2;
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t i = 0; i < config_.head_dim; ++i) {
        map.push_back(static_cast<uint32_t>(head * config_.head_dim + i / 2 + i % 2 * half));
      }
    }
    return map;
  }

  absl::Status Attention() {
    const std::string attn = from_ + "self_attn.";
    if (config_.heads * config_.head_dim > kMostRows) {
      return absl::InvalidArgumentError("config.json: heads of more than 2^31 rows");
    }
    RETURN_IF_ERROR(Linear(attn + "q_proj", to_ + "attn_q", Interleave(config_.heads)));
    RETURN_IF_ERROR(Linear(attn + "k_proj", to_ + "attn_k", Interleave(config_.kv_heads)));
    RETURN_IF_ERROR(Linear(attn + "v_proj", to_ + "attn_v"));
    RETURN_IF_ERROR(Linear(attn + "qkv_proj", to_ + "attn_qkv"));
    return Linear(attn + "o_proj", to_ + "attn_output");
  }

  absl::Status Latent() {
    const std::string attn = from_ + "self_attn.";
    RETURN_IF_ERROR(Linear(attn + "q_proj", to_ + "attn_q"));
    RETURN_IF_ERROR(Linear(attn + "q_a_proj", to_ + "attn_q_a"));
    RETURN_IF_ERROR(Floats(attn + "q_a_layernorm.weight", to_ + "attn_q_a_norm.weight"));
    RETURN_IF_ERROR(Linear(attn + "q_b_proj", to_ + "attn_q_b"));
    RETURN_IF_ERROR(Linear(attn + "kv_a_proj_with_mqa", to_ + "attn_kv_a_mqa"));
    RETURN_IF_ERROR(Floats(attn + "kv_a_layernorm.weight", to_ + "attn_kv_a_norm.weight"));
    RETURN_IF_ERROR(Linear(attn + "o_proj", to_ + "attn_output"));
    const std::string kv_b = attn + "kv_b_proj";
    if (!forms_.Has(kv_b)) return absl::OkStatus();
    ASSIGN_OR_RETURN(Recipe both, forms_.Matrix(kv_b));
    const int64_t head_rows = config_.nope_dim + config_.value_dim;
    const bool fp8 = both.kind == Recipe::Kind::kFp8;
    if ((!fp8 && both.kind != Recipe::Kind::kRows) || both.rows != config_.heads * head_rows ||
        (fp8 && (both.scale_rows > head_rows || head_rows % both.scale_rows != 0))) {
      return absl::UnimplementedError(
          fmt::format("tensor '{}.weight': floats of {} heads of {} rows, or FP8 with scales that "
                      "do not cross heads, are wanted",
                      kv_b, config_.heads, head_rows));
    }
    // Of each head the first rows make keys, turned here, and the rest values.
    Recipe value = both;
    value.matrices = config_.heads;
    value.rows = config_.value_dim;
    value.source_rows = head_rows;
    value.first_row = static_cast<uint32_t>(config_.nope_dim);
    Recipe key = both;
    key.kind = fp8 ? Recipe::Kind::kFp8Transposed : Recipe::Kind::kTransposed;
    key.matrices = config_.heads;
    key.rows = both.cols;
    key.cols = config_.nope_dim;
    key.source_rows = head_rows;
    const int64_t rank = both.cols;
    RETURN_IF_ERROR(
        Add(to_ + "attn_k_b.weight", std::move(key), {config_.heads, rank, config_.nope_dim}));
    return Add(to_ + "attn_v_b.weight", std::move(value), {config_.heads, config_.value_dim, rank});
  }

  absl::Status Ffn() {
    const std::string mlp = from_ + "mlp.";
    RETURN_IF_ERROR(Linear(mlp + "gate_proj", to_ + "ffn_gate"));
    RETURN_IF_ERROR(Linear(mlp + "up_proj", to_ + "ffn_up"));
    RETURN_IF_ERROR(Linear(mlp + "gate_up_proj", to_ + "ffn_up"));
    RETURN_IF_ERROR(Linear(mlp + "down_proj", to_ + "ffn_down"));
    if (config_.experts == 0) return absl::OkStatus();
    for (const char* router : {"block_sparse_moe.gate", "mlp.gate", "mlp.router"}) {
      RETURN_IF_ERROR(Linear(from_ + router, to_ + "ffn_gate_inp"));
    }
    RETURN_IF_ERROR(Floats(mlp + "gate.e_score_correction_bias", to_ + "exp_probs_b.bias"));
    for (const char* shared : {"shared_experts", "shared_expert"}) {
      for (const char* part : {"gate", "up", "down"}) {
        RETURN_IF_ERROR(Linear(fmt::format("{}{}.{}_proj", mlp, shared, part),
                               fmt::format("{}ffn_{}_shexp", to_, part)));
      }
    }
    RETURN_IF_ERROR(SharedGate(mlp + "shared_expert_gate.weight"));
    if (config_.naming == Naming::kGptOss) return GptOssExperts();
    const bool mixtral = forms_.Has(from_ + "block_sparse_moe.experts.0.w1");
    struct Part {
      const char* mixtral;
      const char* name;
      const char* to;
    };
    for (const Part& part :
         {Part{"w1", "gate_proj", "ffn_gate_exps"}, Part{"w3", "up_proj", "ffn_up_exps"},
          Part{"w2", "down_proj", "ffn_down_exps"}}) {
      const std::string pattern =
          mixtral ? fmt::format("{}block_sparse_moe.experts.{{}}.{}", from_, part.mixtral)
                  : fmt::format("{}mlp.experts.{{}}.{}", from_, part.name);
      RETURN_IF_ERROR(Stack(pattern, to_ + part.to + std::string(".weight")));
    }
    return absl::OkStatus();
  }

  // Stored [1, width], read as a vector.
  absl::Status SharedGate(const std::string& from) {
    const uint32_t index = forms_.Find(from);
    if (index == Recipe::kNone) return absl::OkStatus();
    ASSIGN_OR_RETURN(Recipe recipe, forms_.Plain(index));
    const std::vector<int64_t> shape = {recipe.rows * recipe.cols};
    return Add(to_ + "ffn_gate_inp_shexp.weight", std::move(recipe), shape);
  }

  // The experts' matrices `pattern` ("...{}...") on top of one another; none at all is no error.
  absl::Status Stack(const std::string& pattern, const std::string& to) {
    auto name = [&](int64_t expert) { return fmt::format(fmt::runtime(pattern), expert); };
    if (!forms_.Has(name(0))) return absl::OkStatus();
    ASSIGN_OR_RETURN(Recipe stack, forms_.Matrix(name(0)));
    stack.matrices = config_.experts;
    for (int64_t expert = 1; expert < config_.experts; ++expert) {
      ASSIGN_OR_RETURN(const Recipe one, forms_.Matrix(name(expert)));
      if (one.kind != stack.kind || one.dtype != stack.dtype || one.rows != stack.rows ||
          one.cols != stack.cols || one.group_index != Recipe::kNone ||
          one.scale_rows != stack.scale_rows || one.zeros.size() > 1) {
        return absl::UnimplementedError(fmt::format(
            "tensor '{}.weight' is of another form than that of expert 0", name(expert)));
      }
      stack.sources.insert(stack.sources.end(), one.sources.begin(), one.sources.end());
      stack.scales.insert(stack.scales.end(), one.scales.begin(), one.scales.end());
      stack.zeros.insert(stack.zeros.end(), one.zeros.begin(), one.zeros.end());
    }
    if (stack.group_index != Recipe::kNone) {
      return absl::UnimplementedError(
          fmt::format("tensor '{}.weight': experts with mixed groups are not read", name(0)));
    }
    const std::vector<int64_t> shape = {stack.matrices, stack.rows, stack.cols};
    return Add(to, std::move(stack), shape);
  }

  // gpt-oss: all experts in one tensor, gate and up rows taking turns; in MXFP4 or turned floats.
  absl::Status GptOssExperts() {
    const std::string base = from_ + "mlp.experts.";
    RETURN_IF_ERROR(GptOssPart(base + "gate_up_proj", to_ + "ffn_gate_exps", 2, 0));
    RETURN_IF_ERROR(GptOssPart(base + "gate_up_proj", to_ + "ffn_up_exps", 2, 1));
    return GptOssPart(base + "down_proj", to_ + "ffn_down_exps", 1, 0);
  }

  // Every `step`-th row from `first` on.
  absl::Status GptOssPart(const std::string& from, const std::string& to, int64_t step,
                          int64_t first) {
    auto every = [&](int64_t rows) {
      std::vector<uint32_t> map;
      for (int64_t i = 0; step > 1 && i < rows; ++i) {
        map.push_back(static_cast<uint32_t>(i * step + first));
      }
      return map;
    };
    Recipe recipe;
    recipe.matrices = config_.experts;
    const uint32_t blocks = forms_.Find(from + "_blocks"), floats = forms_.Find(from);
    if (blocks != Recipe::kNone) {
      recipe.kind = Recipe::Kind::kMxfp4;
      recipe.dtype = DType::kMXFP4;
      recipe.sources = {blocks};
      recipe.scales = {forms_.Find(from + "_scales")};
      const std::vector<int64_t>& shape = forms_.tensor(blocks).shape;
      if (shape.size() != 4 || shape[0] != config_.experts || shape[1] % step != 0 ||
          shape[3] != 16 || forms_.tensor(blocks).dtype != SafeDType::kU8 ||
          recipe.scales[0] == Recipe::kNone ||
          forms_.tensor(recipe.scales[0]).bytes * 16 != forms_.tensor(blocks).bytes) {
        return absl::InvalidArgumentError(fmt::format(
            "tensor '{}_blocks' [{}]: [experts, out, in / 32, 16] bytes with as many scales are "
            "wanted",
            from, fmt::join(shape, ", ")));
      }
      recipe.source_rows = shape[1];
      recipe.cols = recipe.source_cols = shape[2] * 32;
    } else if (floats != Recipe::kNone) {
      ASSIGN_OR_RETURN(Recipe plain, forms_.Plain(floats));
      const std::vector<int64_t>& shape = forms_.tensor(floats).shape;
      if (shape.size() != 3 || shape[0] != config_.experts || shape[2] % step != 0) {
        return absl::InvalidArgumentError(fmt::format(
            "tensor '{}' [{}]: [experts, in, out] is wanted", from, fmt::join(shape, ", ")));
      }
      recipe.kind = Recipe::Kind::kTransposed;
      recipe.dtype = plain.dtype;
      recipe.sources = {floats};
      recipe.source_rows = recipe.cols = shape[1];
      recipe.source_cols = shape[2];
    } else {
      return absl::OkStatus();
    }
    const int64_t out = blocks != Recipe::kNone ? recipe.source_rows : recipe.source_cols;
    recipe.rows = out / step;
    recipe.row_map = every(recipe.rows);
    const std::vector<int64_t> shape = {recipe.matrices, recipe.rows, recipe.cols};
    RETURN_IF_ERROR(Add(to + ".weight", std::move(recipe), shape));
    const uint32_t bias = forms_.Find(from + "_bias");
    if (bias == Recipe::kNone) return absl::OkStatus();
    ASSIGN_OR_RETURN(Recipe values, forms_.Plain(bias));
    if (values.rows != config_.experts || values.cols != out) {
      return absl::InvalidArgumentError(
          fmt::format("tensor '{}_bias' is not [{}, {}]", from, config_.experts, out));
    }
    values.matrices = config_.experts;
    values.rows = out / step;
    values.cols = values.source_cols = 1;
    values.source_rows = out;
    values.row_map = every(values.rows);
    return Add(to + ".bias", std::move(values), {config_.experts, out / step});
  }

  const CheckpointConfig& config_;
  RecipeReader* reader_;
  const WeightForms forms_;
  std::string prefix_, from_, to_;
  std::vector<TensorInfo> tensors_;
};

}  // namespace

absl::StatusOr<std::vector<TensorInfo>> MapTensors(const CheckpointConfig& config,
                                                   RecipeReader* reader) {
  return Mapper(config, reader).Run();
}

}  // namespace terrace::format
