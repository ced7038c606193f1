// A low-rank adapter ready to run beside its base model: which of the base's matrices it changes,
// and the segments that each stage of a forward pass needs of it. Immutable after Create, hence
// shared freely; its bytes come and go underneath (tier manager).
#ifndef TERRACE_ENGINE_ADAPTER_H_
#define TERRACE_ENGINE_ADAPTER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine_model.h"
#include "weights/adapter_weights.h"

namespace terrace::engine {

class Adapter {
 public:
  // As weights::AdapterWeights::Open; the matrices of `base` that can be adapted are those that
  // its architecture says. `backend` and `manager` must outlive the adapter.
  static absl::StatusOr<std::shared_ptr<const Adapter>> Create(
      const weights::AdapterOptions& options, const EngineModel& base, const ops::Backend* backend,
      tier::TierManager* manager);

  const std::string& name() const { return name_; }
  const weights::AdapterWeights& weights() const { return *weights_; }
  // The pair for a tensor of the base's architecture; null if it has none.
  const weights::AdapterWeights::Pair* PairOf(int32_t tensor) const {
    const int32_t index = pair_of_[static_cast<size_t>(tensor)];
    return index < 0 ? nullptr : &weights_->pairs()[static_cast<size_t>(index)];
  }
  // The segments that a stage of the forward pass reads.
  std::span<const uint32_t> StageSegments(model::WeightProvider::Stage stage, int32_t layer) const;

 private:
  Adapter() = default;
  std::string name_;
  std::unique_ptr<weights::AdapterWeights> weights_;
  std::vector<int32_t> pair_of_;                       // by tensor of the base; -1: none
  std::vector<std::vector<uint32_t>> stage_segments_;  // attention and FFN of each layer
};

}  // namespace terrace::engine

#endif  // TERRACE_ENGINE_ADAPTER_H_
