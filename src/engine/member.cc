#include "engine/member.h"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "format/cut_source.h"
#include "model/share.h"

namespace terrace::engine {
namespace {

// Parts with other labels are kept as images of their own.
std::string Label(const model::Share& share) {
  return fmt::format("{} of {},{}{}", share.rank, share.size, share.tensor ? " tensor" : "",
                     share.experts ? " expert" : "");
}

absl::StatusOr<format::ModelSource> Take(const model::Share& share, format::ModelSource whole) {
  std::vector<model::WholeTensor> tensors;
  for (const format::TensorInfo& tensor : whole.tensors) {
    tensors.push_back({tensor.name, tensor.shape, Info(tensor.dtype).block_elements});
  }
  ASSIGN_OR_RETURN(model::DividedModel divided, model::DivideModel(whole.metadata, tensors, share));
  ASSIGN_OR_RETURN(format::ModelSource part,
                   format::CutSource(std::move(whole), divided.cuts, Label(share)));
  part.metadata = std::move(divided.metadata);
  return part;
}

}  // namespace

std::function<absl::StatusOr<format::ModelSource>(format::ModelSource)> PartOfMember(
    const model::Share& share) {
  return [share](format::ModelSource whole) { return Take(share, std::move(whole)); };
}

}  // namespace terrace::engine
