// The decoder-only transformer that a Config describes: embedding, layers of attention and FFN with
// a residual stream, norm, head. All of this build's architectures are configurations of it.
#ifndef TERRACE_MODEL_DECODER_H_
#define TERRACE_MODEL_DECODER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/architecture.h"
#include "model/config.h"

namespace terrace::model {

class Decoder final : public Architecture {
 public:
  // Checks every tensor's shape against `config`; binds vocab_size. Ties the head to the embedding
  // when either of the two is not stored.
  static absl::StatusOr<std::unique_ptr<Decoder>> Create(Config config,
                                                         const TensorCatalog& catalog);

  const Config& config() const override { return config_; }
  const std::vector<TensorNeed>& tensors() const override { return tensors_; }
  uint64_t WorkspaceBytes(int32_t rows, int32_t logit_rows, int32_t adapter_rank) const override;
  bool CanAdapt(int32_t tensor) const override;
  absl::StatusOr<ops::Matrix> Forward(const ForwardInput& input, ops::Backend& backend,
                                      WeightProvider& weights,
                                      std::span<std::byte> workspace) const override;

 private:
  static constexpr int32_t kAbsent = -1;
  // Indices into tensors_, kAbsent where the architecture has none.
  struct LayerTensors {
    int32_t attn_norm = kAbsent, q = kAbsent, k = kAbsent, v = kAbsent, qkv = kAbsent;
    int32_t q_bias = kAbsent, k_bias = kAbsent, v_bias = kAbsent;
    int32_t q_norm = kAbsent, k_norm = kAbsent;
    int32_t attn_out = kAbsent, attn_out_bias = kAbsent, attn_post_norm = kAbsent;
    int32_t ffn_norm = kAbsent, gate = kAbsent, up = kAbsent, down = kAbsent;
    int32_t ffn_post_norm = kAbsent;
    int32_t sinks = kAbsent;
    // Latent attention.
    int32_t q_a = kAbsent, q_a_norm = kAbsent, kv_a = kAbsent, kv_a_norm = kAbsent;
    int32_t k_b = kAbsent, v_b = kAbsent;
    // Experts: gate, up and down above are stacks then.
    int32_t router = kAbsent, router_bias = kAbsent, selection_bias = kAbsent;
    int32_t gate_bias = kAbsent, up_bias = kAbsent, down_bias = kAbsent;
    int32_t shared_gate = kAbsent, shared_up = kAbsent, shared_down = kAbsent;
    int32_t shared_share = kAbsent;
  };
  // The activations of a pass, cut from the workspace.
  struct Buffers {
    ops::Matrix x, normed, q, k, v, attention, gate, up, block_out, last, logits;
    ops::Matrix logit_part;  // of this share's part of the vocabulary, where that is not all
    // Latent attention: the query's low-rank form, its heads before absorption, [latent | rotated]
    // as projected, and heads of values after expansion.
    ops::Matrix q_low, q_heads, kv_low, values;
    // Its expanded form, one head at a time: a key matrix as stored and the other way round, the
    // head's keys and values, and room for KV blocks of them.
    ops::Matrix key_stored, key_turned, keys, head_values;
    ops::Matrix head_blocks;  // a row a block
    // Experts: router scores, and room for the tokens of one.
    ops::Matrix scores, shared_gate, shared_up;
    ops::ExpertScratch experts;
    // Adapters: A x, and B of that.
    ops::Matrix low, delta;
  };
  class Pass;

  explicit Decoder(Config config) : config_(std::move(config)) {}
  absl::Status Bind(const TensorCatalog& catalog);
  absl::Status BindLayer(const TensorCatalog& catalog, int32_t layer);
  absl::Status BindEnds(const TensorCatalog& catalog);
  // Finds "blk.<layer>.<name>".
  absl::Status NeedInLayer(const TensorCatalog& catalog, int32_t layer, const char* name,
                           std::vector<int64_t> shape, WeightProvider::Stage stage, bool required,
                           int32_t* index);
  absl::Status BindAttention(const TensorCatalog& catalog, int32_t layer, LayerTensors* t);
  absl::Status BindLatent(const TensorCatalog& catalog, int32_t layer, LayerTensors* t);
  absl::Status BindDense(const TensorCatalog& catalog, int32_t layer, LayerTensors* t);
  absl::Status BindExperts(const TensorCatalog& catalog, int32_t layer, LayerTensors* t);
  absl::Status CheckGroup(const ForwardInput& input) const;
  // Adds a need, checking the shape; kAbsent if it is not stored and not required.
  absl::StatusOr<int32_t> Need(const TensorCatalog& catalog, const std::string& name,
                               std::vector<int64_t> shape, WeightProvider::Stage stage,
                               int32_t layer, bool required);
  using Cutter = std::function<ops::Matrix(int32_t rows, int64_t cols)>;
  // The geometry of KV blocks that hold one head of expanded keys and values.
  ops::KvGeometry HeadGeometry(ops::KvDType dtype) const;
  void CutLatent(int32_t rows, const Cutter& cut, Buffers* buffers) const;
  void CutExperts(int32_t rows, const Cutter& cut, Buffers* buffers) const;
  // Cuts the buffers for `rows` and `logit_rows` from `base` (may be null to only measure) and
  // returns the bytes used.
  uint64_t Cut(int32_t rows, int32_t logit_rows, int32_t adapter_rank, std::byte* base,
               Buffers* buffers) const;

  Config config_;
  std::vector<TensorNeed> tensors_;
  std::vector<LayerTensors> layers_;
  int32_t embedding_ = kAbsent;
  int32_t head_ = kAbsent;
  int32_t head_bias_ = kAbsent;
  int32_t output_norm_ = kAbsent;
  int32_t rope_factors_ = kAbsent;
};

}  // namespace terrace::model

#endif  // TERRACE_MODEL_DECODER_H_
