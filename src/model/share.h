// How one model is divided among the members of a group that computes it together. Each member has
// a model of its own, of fewer heads, narrower FFNs or fewer experts, cut out of the whole one's
// tensors (Shoeybi et al. 2019, "Megatron-LM"): what goes into a head or a column of an FFN lies
// with one member, and what all members' blocks add to the residual stream is summed.
// docs/PARALLEL.md says which tensor is cut how, and what is exchanged.
#ifndef TERRACE_MODEL_SHARE_H_
#define TERRACE_MODEL_SHARE_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/metadata.h"
#include "model/config.h"
#include "tensor/cut.h"

namespace terrace::model {

// A tensor of the whole model.
struct WholeTensor {
  std::string_view name;
  std::span<const int64_t> shape;
  int64_t block = 1;  // elements of a quantisation block
};

struct DividedModel {
  std::vector<TensorCut> cuts;  // by tensor
  Metadata metadata;            // the whole model's, with what ApplyShare reads
};

// What member share.rank holds of a model. InvalidArgument says why the model cannot be divided so;
// Unimplemented, what of it cannot be divided at all.
absl::StatusOr<DividedModel> DivideModel(const Metadata& metadata,
                                         std::span<const WholeTensor> tensors, const Share& share);

// Turns the configuration of a whole model into that of the share that its metadata speaks of, if
// any.
absl::Status ApplyShare(const Metadata& metadata, Config* config);

// Bytes that all members together send in a forward pass of `rows` rows and `logit_rows` rows of
// logits of the model of which `config` is a share. 0 for a model that is whole.
uint64_t PassTraffic(const Config& config, int64_t rows, int64_t logit_rows);

// The rows of the vocabulary that member `rank` of the group holds.
IndexRange VocabularyOf(const Config& config, int32_t rank);

}  // namespace terrace::model

#endif  // TERRACE_MODEL_SHARE_H_
