// The encoder-only transformer of BERT (Devlin et al. 2018) and its kin: embeddings of words,
// places and types, layers in which every token sees all of its text, norms after each block, and a
// pooled vector a text. Needs no KV.
#ifndef TERRACE_MODEL_ENCODER_H_
#define TERRACE_MODEL_ENCODER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/architecture.h"
#include "model/config.h"

namespace terrace::model {

class Encoder final : public Architecture {
 public:
  // Checks every tensor's shape against `config`; binds vocab_size and trained_context.
  static absl::StatusOr<std::unique_ptr<Encoder>> Create(Config config,
                                                         const TensorCatalog& catalog);

  const Config& config() const override { return config_; }
  const std::vector<TensorNeed>& tensors() const override { return tensors_; }
  uint64_t WorkspaceBytes(int32_t rows, int32_t logit_rows, int32_t adapter_rank) const override;
  // One row a sequence of the batch, each a whole text: its pooled state [sequences, width]. With
  // no logit rows nothing is pooled, and the states of all rows are given [rows, width].
  absl::StatusOr<ops::Matrix> Forward(const ForwardInput& input, ops::Backend& backend,
                                      WeightProvider& weights,
                                      std::span<std::byte> workspace) const override;

 private:
  struct Linear {
    int32_t weight = 0, bias = 0;
  };
  struct Layer {
    Linear q, k, v, out, up, down, out_norm, end_norm;
  };
  struct Buffers {
    ops::Matrix x, other, q, k, v, attention, inner, pooled;
  };

  explicit Encoder(Config config) : config_(std::move(config)) {}
  absl::Status Bind(const TensorCatalog& catalog);
  absl::StatusOr<int32_t> Need(const TensorCatalog& catalog, const std::string& name,
                               std::vector<int64_t> shape, WeightProvider::Stage stage,
                               int32_t layer);
  absl::Status NeedLinear(const TensorCatalog& catalog, const std::string& name,
                          std::vector<int64_t> shape, WeightProvider::Stage stage, int32_t layer,
                          Linear* linear);
  uint64_t Cut(int32_t rows, int32_t pooled, std::byte* base, Buffers* buffers) const;
  absl::Status Embed(const ForwardInput& input, ops::Backend& backend, WeightProvider& weights,
                     const Buffers& b) const;
  absl::Status Attend(const Layer& layer, const ForwardInput& input, ops::Backend& backend,
                      WeightProvider& weights, const Buffers& b) const;
  absl::Status Ffn(const Layer& layer, ops::Backend& backend, WeightProvider& weights,
                   const Buffers& b) const;

  Config config_;
  std::vector<TensorNeed> tensors_;
  std::vector<Layer> layers_;
  int32_t words_ = 0, places_ = 0, types_ = 0;
  Linear norm_;
};

}  // namespace terrace::model

#endif  // TERRACE_MODEL_ENCODER_H_
