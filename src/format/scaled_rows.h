// INT8 matrices with one scale a row ("W8A8", INT8 per channel): files hold the bytes and the
// scales as two tensors, NAME and NAME_scale; everything after the reader wants rows that hold
// both.
#ifndef TERRACE_FORMAT_SCALED_ROWS_H_
#define TERRACE_FORMAT_SCALED_ROWS_H_

#include "absl/status/status.h"
#include "format/gguf_writer.h"
#include "format/model_source.h"

namespace terrace::format {

// Replaces each tensor I8 [..., rows, cols] that has a tensor NAME_scale of F32, F16 or BF16 with
// one value a row by a tensor NAME of W8A8, whose file is a view appended to `model->files`; the
// scales' tensor goes. Reads the scales. Other I8 tensors stay as they are. InvalidArgument if a
// scale's count does not fit or cols is not a multiple of 32; the model is not to be used then.
absl::Status MergeScaledRows(ModelSource* model);

// Adds a tensor of W8A8 to a GGUF file as those two: its bytes, and NAME_scale. Both are read from
// `source` when the file is written.
void AddScaledRows(const ModelSource* source, const TensorInfo* tensor, GgufWriter* writer);

}  // namespace terrace::format

#endif  // TERRACE_FORMAT_SCALED_ROWS_H_
