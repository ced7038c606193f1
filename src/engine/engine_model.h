// A model ready to run: opened weights, its architecture, and the geometry of its KV. Immutable
// after Create, hence shared freely; the weights' bytes come and go underneath (tier manager).
#ifndef TERRACE_ENGINE_ENGINE_MODEL_H_
#define TERRACE_ENGINE_ENGINE_MODEL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/architecture.h"
#include "ops/types.h"
#include "weights/model_weights.h"

namespace terrace::parallel {
class Communicator;
}

namespace terrace::engine {

class EngineModel;

// How tokens are guessed ahead of the model, which then checks several at once. Answers are the
// same with and without.
struct SpeculationOptions {
  enum class Kind : uint8_t {
    kNone,
    kNgram,  // what followed the same few tokens earlier in the sequence
    kDraft,  // what a smaller model would say
  };
  Kind kind = Kind::kNone;
  int32_t tokens = 4;  // guesses at once at most
  // For kDraft; shared with whoever else serves it. Its vocabulary must be the model's.
  std::shared_ptr<EngineModel> draft;
};

// Of a model that is one member's share: the group that it is computed with.
struct GroupSeat {
  parallel::Communicator* group = nullptr;  // must outlive the model; null: the model is whole
  uint32_t id = 0;                          // what the group's leader calls the model
  std::shared_ptr<const void> keeper;       // let go of when the model is gone; may be null
};

struct EngineModelOptions {
  std::string name;
  int32_t max_context = 0;  // 0: what the model was trained for; larger values are refused
  ops::KvDType kv_dtype = ops::KvDType::kF16;
  SpeculationOptions speculation;
  GroupSeat seat;
};

// "f16", "i8", "f32": as configured.
std::string_view KvDTypeName(ops::KvDType dtype);

class EngineModel {
 public:
  // InvalidArgument names what the model lacks or holds in a shape that its architecture cannot
  // use.
  static absl::StatusOr<std::shared_ptr<EngineModel>> Create(
      EngineModelOptions options, std::unique_ptr<weights::ModelWeights> weights);

  const std::string& name() const { return name_; }
  const weights::ModelWeights& weights() const { return *weights_; }
  weights::ModelWeights& weights() { return *weights_; }
  const model::Architecture& architecture() const { return *architecture_; }
  const ops::KvGeometry& kv_geometry() const { return kv_geometry_; }
  // What keys and values are like beside the weights that they come from: part of what KV blocks
  // are found by.
  std::string kv_form() const;
  int32_t vocab_size() const { return architecture_->config().vocab_size; }
  int32_t max_context() const { return max_context_; }
  const SpeculationOptions& speculation() const { return speculation_; }
  parallel::Communicator* group() const { return seat_.group; }
  uint32_t group_id() const { return seat_.id; }
  // A tensor of architecture().tensors(), as it lies in its segment.
  struct Binding {
    uint32_t segment = 0;
    uint64_t offset = 0;
    ops::Weight weight;  // data null: bound to an address when its segment is pinned; of a stack
                         // of matrices, the first
    int32_t count = 1;   // matrices, `stride` bytes apart
    uint64_t stride = 0;
    int32_t elements = 0;  // of a tensor that is read as a vector
    bool spread = false;   // each matrix in a segment of its own, from `segment` on
  };
  const std::vector<Binding>& bindings() const { return bindings_; }
  // The segments that a stage of the forward pass reads.
  std::span<const uint32_t> StageSegments(model::WeightProvider::Stage stage, int32_t layer) const;

  // Tokens that the layer which looks back furthest can see; 0 if some layer sees all of them.
  int32_t kv_window() const { return kv_window_; }
  // The segment of the layer's first expert, which those of the others follow; none if experts are
  // no segments of their own.
  std::optional<uint32_t> FirstExpert(int32_t layer) const {
    return first_expert_[static_cast<size_t>(layer)];
  }

  // Bytes of KV that a sequence of `tokens` tokens needs.
  uint64_t KvBytes(int32_t tokens) const;

 private:
  EngineModel() = default;
  std::string name_;
  int32_t max_context_ = 0;
  SpeculationOptions speculation_;
  GroupSeat seat_;
  std::unique_ptr<weights::ModelWeights> weights_;
  std::unique_ptr<model::Architecture> architecture_;
  ops::KvGeometry kv_geometry_;
  int32_t kv_window_ = 0;
  std::vector<Binding> bindings_;
  std::vector<std::vector<uint32_t>> stage_segments_;  // by StageIndex
  std::vector<std::optional<uint32_t>> first_expert_;  // by layer
};

}  // namespace terrace::engine

#endif  // TERRACE_ENGINE_ENGINE_MODEL_H_
