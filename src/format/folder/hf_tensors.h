// Maps the tensors of a checkpoint to those that architectures read: GGUF's names, row orders and
// stacks, with a recipe for each.
#ifndef TERRACE_FORMAT_FOLDER_HF_TENSORS_H_
#define TERRACE_FORMAT_FOLDER_HF_TENSORS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "format/folder/hf_config.h"
#include "format/folder/recipe.h"
#include "format/tensor_info.h"

namespace terrace::format {

// Adds a recipe to `reader` for every tensor of the model that the checkpoint holds; what the model
// does not read is left out. InvalidArgument for shapes that cannot be, Unimplemented for weights
// in a form that this build does not read; both name the tensor.
absl::StatusOr<std::vector<TensorInfo>> MapTensors(const CheckpointConfig& config,
                                                   RecipeReader* reader);

}  // namespace terrace::format

#endif  // TERRACE_FORMAT_FOLDER_HF_TENSORS_H_
