#include "model/share.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "base/status.h"
#include "model/registry.h"

namespace terrace::model {
namespace {

constexpr std::string_view kPrefix = "terrace.share.";
constexpr int64_t kMost = 1 << 24;  // of anything that is counted here
constexpr int64_t kVocabUnit = 16;  // rows that kernels take together

std::string Key(std::string_view name) { return fmt::format("{}{}", kPrefix, name); }

// "ffn_up.weight" of "blk.3.ffn_up.weight"; other names as they are.
std::string_view InLayer(std::string_view name) {
  if (!name.starts_with("blk.")) return name;
  const size_t dot = name.find('.', 4);
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

TensorCut Rows(std::vector<IndexRange> rows) {
  return {std::nullopt, std::move(rows), std::nullopt};
}
TensorCut Rows(IndexRange rows) { return Rows(std::vector<IndexRange>{rows}); }
TensorCut Cols(IndexRange cols) { return {std::nullopt, {}, cols}; }
TensorCut Matrices(IndexRange matrices) { return {matrices, {}, std::nullopt}; }

IndexRange Times(IndexRange range, int64_t factor) {
  return {range.begin * factor, range.end * factor};
}
IndexRange Plus(IndexRange range, int64_t offset) {
  return {range.begin + offset, range.end + offset};
}

// The query heads that share a KV head within every member's run of heads: KV heads are copied
// where fewer of them than members there are.
int64_t HeadsPerKvHead(const Config& whole, const Share& share) {
  return std::gcd(whole.heads / share.size, whole.heads / whole.kv_heads);
}

class Divider {
 public:
  Divider(const Config& whole, const Share& share) : c_(whole), s_(share) {}

  absl::Status Prepare(std::span<const WholeTensor> tensors) {
    RETURN_IF_ERROR(Check());
    for (const WholeTensor& tensor : tensors) Note(tensor);
    if (s_.tensor) {
      heads_ = DividedRange(c_.heads, 1, s_.rank, s_.size);
      RETURN_IF_ERROR(Divide("the vocabulary", vocab_size_, kVocabUnit, &vocab_));
      if (HasDense()) RETURN_IF_ERROR(Divide("the FFN", c_.ffn_width, ffn_unit_, &ffn_));
      if (c_.experts.count > 0 && !s_.experts) {
        RETURN_IF_ERROR(
            Divide("the FFN of experts", c_.experts.ffn_width, expert_unit_, &expert_ffn_));
      }
      if (c_.experts.shared_width > 0) {
        RETURN_IF_ERROR(
            Divide("the shared expert", c_.experts.shared_width, shared_unit_, &shared_));
      }
    }
    if (!s_.experts) return absl::OkStatus();
    return Divide("the experts", c_.experts.count, 1, &experts_);
  }

  TensorCut CutOf(std::string_view name) const {
    const std::string_view part = InLayer(name);
    if (part.find("_exps.") != std::string_view::npos) return ExpertCut(part);
    if (!s_.tensor) return {};
    if (name == "token_embd.weight" || name == "output.weight" || name == "output.bias") {
      return Rows(vocab_);
    }
    if (name.size() == part.size()) return {};
    return part.starts_with("attn_") ? AttentionCut(part) : FfnCut(part);
  }

  void Describe(Metadata* metadata) const {
    metadata->Set(Key("rank"), int64_t{s_.rank});
    metadata->Set(Key("size"), int64_t{s_.size});
    metadata->Set(Key("tensor"), s_.tensor);
    metadata->Set(Key("experts"), s_.experts);
    metadata->Set(Key("vocabulary"), vocab_size_);
    metadata->Set(Key("ffn"), ffn_.size());
    metadata->Set(Key("expert_ffn"), expert_ffn_.size());
    metadata->Set(Key("shared_ffn"), shared_.size());
  }

 private:
  absl::Status Check() const {
    if (s_.size < 2 || s_.rank < 0 || s_.rank >= s_.size || (!s_.tensor && !s_.experts)) {
      return absl::InvalidArgumentError(
          fmt::format("member {} of a group of {} has no share", s_.rank, s_.size));
    }
    if (c_.encoder) return absl::UnimplementedError("encoders are not divided among devices");
    if (s_.experts && c_.experts.count == 0) {
      return absl::InvalidArgumentError(
          fmt::format("{} has no experts that could be divided", c_.architecture));
    }
    if (!s_.tensor) return absl::OkStatus();
    if (c_.heads % s_.size != 0) {
      return absl::InvalidArgumentError(
          fmt::format("{} attention heads cannot be divided among {} devices", c_.heads, s_.size));
    }
    if (c_.qk_norm_whole) {
      return absl::UnimplementedError(
          fmt::format("{} norms all heads together: its attention is not divided among devices",
                      c_.architecture));
    }
    return absl::OkStatus();
  }

  absl::Status Divide(std::string_view what, int64_t total, int64_t unit, IndexRange* part) const {
    if ((total + unit - 1) / unit < s_.size) {
      return absl::InvalidArgumentError(
          fmt::format("{} of {}, in runs of {}, cannot be divided among {} devices", what, total,
                      unit, s_.size));
    }
    *part = DividedRange(total, unit, s_.rank, s_.size);
    return absl::OkStatus();
  }

  bool HasDense() const {
    return std::any_of(c_.layers.begin(), c_.layers.end(),
                       [](const LayerConfig& layer) { return !layer.experts; });
  }

  void Note(const WholeTensor& tensor) {
    const std::string_view part = InLayer(tensor.name);
    auto widen = [&](int64_t* unit) {
      *unit = std::lcm(*unit, std::max<int64_t>(1, tensor.block));
    };
    if (part == "ffn_down.weight") widen(&ffn_unit_);
    if (part == "ffn_down_exps.weight") widen(&expert_unit_);
    if (part == "ffn_down_shexp.weight") widen(&shared_unit_);
    if ((tensor.name == "token_embd.weight" || tensor.name == "output.weight") &&
        tensor.shape.size() == 2) {
      vocab_size_ = tensor.shape[0];
    }
  }

  TensorCut ExpertCut(std::string_view part) const {
    if (s_.experts) {
      return part.ends_with(".bias") ? Rows(experts_) : Matrices(experts_);
    }
    if (part == "ffn_down_exps.weight") return Cols(expert_ffn_);
    // What is added to an expert's output is whole: one member adds it (Config::adds_biases).
    if (part == "ffn_down_exps.bias") return {};
    return part.ends_with(".bias") ? Cols(expert_ffn_) : Rows(expert_ffn_);
  }

  // Rows of the keys or values of this member's KV heads, of `dim` rows each behind row `offset`.
  std::vector<IndexRange> KvRows(int64_t dim, int64_t offset) const {
    const int64_t step = HeadsPerKvHead(c_, s_), group = c_.heads / c_.kv_heads;
    std::vector<IndexRange> rows;
    for (int64_t head = heads_.begin; head < heads_.end; head += step) {
      const int64_t kv = head / group;
      const IndexRange range = Plus(Times({kv, kv + 1}, dim), offset);
      if (!rows.empty() && rows.back().end == range.begin) {
        rows.back().end = range.end;
      } else {
        rows.push_back(range);
      }
    }
    return rows;
  }

  TensorCut AttentionCut(std::string_view part) const {
    const std::string_view name = part.substr(0, part.rfind('.'));
    const LatentConfig& latent = c_.latent;
    if (latent.kv_rank > 0) {
      if (part == "attn_q.weight" || part == "attn_q_b.weight") {
        return Rows(Times(heads_, latent.nope_dim + latent.rope_dim));
      }
      if (name == "attn_k_b" || name == "attn_v_b") return Matrices(heads_);
      if (part == "attn_output.weight") return Cols(Times(heads_, latent.value_dim));
      return {};
    }
    const int64_t q_width = int64_t{c_.heads} * c_.key_dim;
    if (name == "attn_q") return Rows(Times(heads_, c_.key_dim));
    if (name == "attn_k") return Rows(KvRows(c_.key_dim, 0));
    if (name == "attn_v") return Rows(KvRows(c_.value_dim, 0));
    if (name == "attn_sinks") return Rows(heads_);
    if (name == "attn_qkv") {
      std::vector<IndexRange> rows = {Times(heads_, c_.key_dim)};
      const int64_t k_width = int64_t{c_.kv_heads} * c_.key_dim;
      for (const IndexRange& range : KvRows(c_.key_dim, q_width)) rows.push_back(range);
      for (const IndexRange& range : KvRows(c_.value_dim, q_width + k_width)) rows.push_back(range);
      return Rows(std::move(rows));
    }
    return part == "attn_output.weight" ? Cols(Times(heads_, c_.value_dim)) : TensorCut{};
  }

  TensorCut FfnCut(std::string_view part) const {
    if (part == "ffn_up.weight" && c_.fused_gate_up) {
      return Rows({ffn_, Plus(ffn_, c_.ffn_width)});
    }
    if (part == "ffn_gate.weight" || part == "ffn_up.weight") return Rows(ffn_);
    if (part == "ffn_down.weight") return Cols(ffn_);
    if (part == "ffn_gate_shexp.weight" || part == "ffn_up_shexp.weight") return Rows(shared_);
    if (part == "ffn_down_shexp.weight") return Cols(shared_);
    return {};
  }

  const Config& c_;
  const Share& s_;
  int64_t vocab_size_ = 0;
  int64_t ffn_unit_ = 1, expert_unit_ = 1, shared_unit_ = 1;
  IndexRange heads_, vocab_, ffn_, expert_ffn_, shared_, experts_;
};

// The experts that a member holds are `experts`; nothing else of the model is divided by that.
void ApplyExperts(const Share& share, ExpertConfig* experts) {
  const IndexRange held = DividedRange(experts->count, 1, share.rank, share.size);
  experts->first = static_cast<int32_t>(held.begin);
  experts->held = static_cast<int32_t>(held.size());
}

}  // namespace

absl::StatusOr<DividedModel> DivideModel(const Metadata& metadata,
                                         std::span<const WholeTensor> tensors, const Share& share) {
  ASSIGN_OR_RETURN(const Config whole, ParseConfig(metadata));
  if (metadata.Has(Key("size"))) {
    return absl::InvalidArgumentError("the model is a share of another one already");
  }
  Divider divider(whole, share);
  RETURN_IF_ERROR(divider.Prepare(tensors));
  DividedModel divided;
  divided.metadata = metadata;
  divider.Describe(&divided.metadata);
  for (const WholeTensor& tensor : tensors) divided.cuts.push_back(divider.CutOf(tensor.name));
  return divided;
}

absl::Status ApplyShare(const Metadata& metadata, Config* config) {
  config->experts.held = config->experts.count;
  if (!metadata.Has(Key("size"))) return absl::OkStatus();
  auto read = [&](std::string_view name, int64_t low, int64_t high) {
    return metadata.GetInt(Key(name), low, high);
  };
  Share& share = config->share;
  ASSIGN_OR_RETURN(const int64_t size, read("size", 2, 1024));
  ASSIGN_OR_RETURN(const int64_t rank, read("rank", 0, size - 1));
  ASSIGN_OR_RETURN(share.tensor, metadata.GetBool(Key("tensor")));
  ASSIGN_OR_RETURN(share.experts, metadata.GetBool(Key("experts")));
  share.rank = static_cast<int32_t>(rank);
  share.size = static_cast<int32_t>(size);
  if (share.experts) ApplyExperts(share, &config->experts);
  if (!share.tensor) return absl::OkStatus();
  if (config->heads % share.size != 0) {
    return absl::InvalidArgumentError(
        fmt::format("{} heads of a share of 1 / {}", config->heads, share.size));
  }
  ASSIGN_OR_RETURN(const int64_t vocab, read("vocabulary", 1, kMost));
  ASSIGN_OR_RETURN(const int64_t ffn, read("ffn", 0, config->ffn_width));
  ASSIGN_OR_RETURN(const int64_t expert_ffn, read("expert_ffn", 0, config->experts.ffn_width));
  ASSIGN_OR_RETURN(const int64_t shared, read("shared_ffn", 0, config->experts.shared_width));
  const int64_t per_kv_head = HeadsPerKvHead(*config, share);
  config->heads /= share.size;
  config->kv_heads = static_cast<int32_t>(config->heads / per_kv_head);
  config->ffn_width = static_cast<int32_t>(std::max<int64_t>(1, ffn));
  if (!share.experts) config->experts.ffn_width = static_cast<int32_t>(expert_ffn);
  config->experts.shared_width = static_cast<int32_t>(shared);
  config->vocab_size = static_cast<int32_t>(vocab);
  const IndexRange rows = DividedRange(vocab, kVocabUnit, share.rank, share.size);
  config->vocab_begin = static_cast<int32_t>(rows.begin);
  config->vocab_rows = static_cast<int32_t>(rows.size());
  config->adds_biases = share.rank == 0;
  return absl::OkStatus();
}

IndexRange VocabularyOf(const Config& config, int32_t rank) {
  return DividedRange(config.vocab_size, kVocabUnit, rank, config.share.size);
}

uint64_t PassTraffic(const Config& config, int64_t rows, int64_t logit_rows) {
  const Share& share = config.share;
  int64_t sums = share.tensor ? 1 : 0;  // of the embedding
  for (const LayerConfig& layer : config.layers) {
    if (share.tensor) ++sums;
    if (share.tensor || (layer.experts && share.experts)) ++sums;
  }
  const int64_t others = share.size - 1;
  int64_t floats = 2 * others * rows * config.width * sums;
  if (share.tensor) floats += others * logit_rows * config.vocab_size;
  return static_cast<uint64_t>(floats) * sizeof(float);
}

}  // namespace terrace::model
