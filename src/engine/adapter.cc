#include "engine/adapter.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/status.h"

namespace terrace::engine {

using Stage = model::WeightProvider::Stage;

absl::StatusOr<std::shared_ptr<const Adapter>> Adapter::Create(
    const weights::AdapterOptions& options, const EngineModel& base, const ops::Backend* backend,
    tier::TierManager* manager) {
  const model::Architecture& architecture = base.architecture();
  const std::vector<model::TensorNeed>& tensors = architecture.tensors();
  if (architecture.config().share.size > 1) {
    return absl::UnimplementedError(
        fmt::format("adapter '{}': model '{}' is divided among devices, which adapters cannot be",
                    options.name, base.name()));
  }
  auto index_of = [&](std::string_view name) -> int32_t {
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto index = static_cast<int32_t>(i);
      if (tensors[i].name == name && architecture.CanAdapt(index)) return index;
    }
    return -1;
  };
  std::shared_ptr<Adapter> adapter(new Adapter);
  adapter->name_ = options.name;
  auto shape_of = [&](std::string_view name) -> const std::vector<int64_t>* {
    const weights::TensorPlace* place = index_of(name) < 0 ? nullptr : base.weights().Find(name);
    return place == nullptr ? nullptr : &place->shape;
  };
  ASSIGN_OR_RETURN(adapter->weights_,
                   weights::AdapterWeights::Open(options, base.weights().metadata(), shape_of,
                                                 backend, manager));
  adapter->pair_of_.assign(tensors.size(), -1);
  adapter->stage_segments_.resize(2 * static_cast<size_t>(architecture.config().layer_count()));
  const std::vector<weights::AdapterWeights::Pair>& pairs = adapter->weights_->pairs();
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto tensor = static_cast<size_t>(index_of(pairs[i].tensor));
    adapter->pair_of_[tensor] = static_cast<int32_t>(i);
    const model::TensorNeed& need = tensors[tensor];
    std::vector<uint32_t>& segments = adapter->stage_segments_[2 * static_cast<size_t>(need.layer) +
                                                               (need.stage == Stage::kFfn ? 1 : 0)];
    if (std::find(segments.begin(), segments.end(), pairs[i].segment) == segments.end()) {
      segments.push_back(pairs[i].segment);
    }
  }
  return std::shared_ptr<const Adapter>(std::move(adapter));
}

std::span<const uint32_t> Adapter::StageSegments(Stage stage, int32_t layer) const {
  if (stage != Stage::kAttention && stage != Stage::kFfn) return {};
  return stage_segments_[2 * static_cast<size_t>(layer) + (stage == Stage::kFfn ? 1 : 0)];
}

}  // namespace terrace::engine
