// Rewrites a model with its matrices in another element type. Written row by row: a large model
// never lies in memory.
#ifndef TERRACE_FORMAT_REQUANTIZE_H_
#define TERRACE_FORMAT_REQUANTIZE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "format/model_source.h"
#include "tensor/dtype.h"

namespace terrace::format {

// The type that a matrix with rows of `cols` values takes if `wanted` is asked for: `wanted`, or
// for rows that are not whole blocks of a K format the 32-blocks of about as many bits (Q4_K: Q5_0,
// Q5_K: Q5_1, Q6_K: Q8_0), or F16 for rows that are not whole 32-blocks either.
DType TypeForRows(DType wanted, int64_t cols);

// Writes `source` as one GGUF file to `path`. Tensors of two and more dimensions are dequantised
// exactly and quantised to TypeForRows(matrices, cols), embeddings and the output matrix to Q6_K or
// what stands for it if that has more bits, as in published files; vectors, norms, biases and a
// MoE's router become F32. The metadata is kept. InvalidArgument for a type without a quantiser
// (tensor/quantize.h); a failure leaves no file.
absl::Status Requantize(const ModelSource& source, DType matrices, const std::string& path);

}  // namespace terrace::format

#endif  // TERRACE_FORMAT_REQUANTIZE_H_
