// A model's computation over weights that somebody else holds: which tensors it needs, in which
// segments, and the forward pass over a batch of rows. Immutable after Create; Forward may be
// called by one thread at a time per backend.
#ifndef TERRACE_MODEL_ARCHITECTURE_H_
#define TERRACE_MODEL_ARCHITECTURE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/metadata.h"
#include "model/config.h"
#include "ops/backend.h"
#include "ops/moe.h"
#include "ops/types.h"

namespace terrace::parallel {
class Communicator;
}

namespace terrace::model {

// Finds a tensor's shape by name, for checks at creation.
class TensorCatalog {
 public:
  virtual ~TensorCatalog() = default;
  // Row-major shape ([out, in] for a matrix); null if there is no such tensor.
  virtual const std::vector<int64_t>* Shape(std::string_view name) const = 0;
};

// What a low-rank adapter (Hu et al. 2021) adds to y = W x: scale * b (a x).
struct LowRank {
  ops::Weight a;  // [rank, in]
  ops::Weight b;  // [out, rank]
  float scale = 1.0f;
};

// Some rows of a matrix, as a matrix of their own.
struct FetchedRows {
  ops::Weight table;
  std::vector<int32_t> rows;  // of `table`: those asked for, in order
};

// Hands out weights during a forward pass. Enter waits until the stage's segment is on the device
// and keeps it there until Leave; tensors of a stage may be asked for between the two only.
class WeightProvider {
 public:
  enum class Stage : uint8_t { kEmbed, kAttention, kFfn, kHead };
  virtual ~WeightProvider() = default;
  virtual absl::Status Enter(Stage stage, int32_t layer) = 0;
  virtual void Leave(Stage stage, int32_t layer) = 0;
  // `tensor` is an index into Architecture::tensors(). A vector's data is float32.
  virtual ops::Weight Matrix(int32_t tensor) const = 0;
  virtual ops::Vector Vector(int32_t tensor) const = 0;
  // A tensor of shape [count, out, in] as its matrices.
  virtual ops::WeightStack Stack(int32_t tensor) const = 0;
  // The experts of a layer may come and go one by one. Waits until some of `experts` (ascending, at
  // least one) are on the device, from the first on, as many as fit together, and keeps them there
  // until LeaveExperts; returns how many. Stack() gives these only. To be called in the FFN stage,
  // again for the rest.
  virtual absl::StatusOr<size_t> EnterExperts(int32_t layer, std::span<const int32_t> experts) {
    (void)layer;
    return experts.size();
  }
  virtual void LeaveExperts(int32_t layer) { (void)layer; }
  // Rows of the matrix `tensor`, fetched for themselves because its segment is not on the device,
  // to be had until the pass ends; nothing if its stage is to be entered first as usual. Nobody has
  // checked the rows: the pass enters the matrix's stage before its end, which fails if they are
  // not the matrix's. Outside any stage, once in a pass.
  virtual absl::StatusOr<std::optional<FetchedRows>> FetchRows(int32_t tensor,
                                                               std::span<const int32_t> rows) {
    (void)tensor, (void)rows;
    return std::nullopt;
  }
  // What adapter `adapter` (ForwardInput::adapters) adds to the matrix `tensor`; none if nothing.
  virtual std::optional<LowRank> Delta(int32_t adapter, int32_t tensor) const {
    (void)adapter, (void)tensor;
    return std::nullopt;
  }
};

// Rows [first, first + rows) of a batch that go through an adapter beside the model's matrices.
struct AdapterRows {
  int32_t first = 0;
  int32_t rows = 0;
  int32_t adapter = 0;  // as WeightProvider::Delta knows it
};

// A tensor that the architecture reads.
struct TensorNeed {
  std::string name;
  WeightProvider::Stage stage = WeightProvider::Stage::kEmbed;
  int32_t layer = 0;
};

struct ForwardInput {
  std::span<const int32_t> tokens;  // [rows]
  ops::BatchRows batch;
  ops::KvGeometry kv;
  std::span<const int32_t> logit_rows;  // rows whose logits are wanted, ascending
  // If set, gets the states behind the final norm of these rows [logit_rows, width], which lie in
  // the workspace like the logits.
  ops::Matrix* states = nullptr;
  std::span<const AdapterRows> adapters;  // by row; none overlap
  int32_t adapter_rank = 0;               // the largest of their pairs
  // Of a model that is a share (config().share): the group, whose members all run the same passes
  // at the same time. Null for a model that is whole.
  parallel::Communicator* group = nullptr;
};

class Architecture {
 public:
  // The architecture named by "general.architecture". Unimplemented names an unknown one and the
  // known ones; InvalidArgument says which value or tensor is missing or has the wrong shape.
  // `served_context`: the tokens that a sequence may have; 0: as many as the model was trained for.
  static absl::StatusOr<std::unique_ptr<Architecture>> Create(const Metadata& metadata,
                                                              const TensorCatalog& catalog,
                                                              int32_t served_context = 0);
  static std::vector<std::string> KnownNames();
  virtual ~Architecture() = default;

  virtual const Config& config() const = 0;
  virtual const std::vector<TensorNeed>& tensors() const = 0;
  // Device bytes that Forward needs for `rows` rows and `logit_rows` rows of logits, with adapters
  // of a rank up to `adapter_rank` (0: none).
  virtual uint64_t WorkspaceBytes(int32_t rows, int32_t logit_rows, int32_t adapter_rank) const = 0;
  // True for a matrix that adapters may add to.
  virtual bool CanAdapt(int32_t tensor) const {
    (void)tensor;
    return false;
  }
  // Computes logits [logit_rows, vocab], which lie in `workspace` afterwards (the returned view).
  virtual absl::StatusOr<ops::Matrix> Forward(const ForwardInput& input, ops::Backend& backend,
                                              WeightProvider& weights,
                                              std::span<std::byte> workspace) const = 0;
};

}  // namespace terrace::model

#endif  // TERRACE_MODEL_ARCHITECTURE_H_
