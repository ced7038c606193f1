// A model of which each tensor is a part of another model's: what one device of a group holds. It
// is read from the same files; whoever packs and serves it need not know.
#ifndef TERRACE_FORMAT_CUT_SOURCE_H_
#define TERRACE_FORMAT_CUT_SOURCE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "format/model_source.h"
#include "tensor/cut.h"

namespace terrace::format {

// The parts `cuts` (one for each of whole.tensors) of `whole`, in its order and under its names.
// `label` says which part this is; it goes into the identity, so that images of different parts are
// different images. InvalidArgument names a tensor that cannot be cut so: a range outside it, or
// columns that begin or end inside a quantisation block.
absl::StatusOr<ModelSource> CutSource(ModelSource whole, const std::vector<TensorCut>& cuts,
                                      const std::string& label);

}  // namespace terrace::format

#endif  // TERRACE_FORMAT_CUT_SOURCE_H_
