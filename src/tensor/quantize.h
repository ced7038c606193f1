// Quantisers for the formats that test and bench models are made of: correct, deterministic, close
// to what published models use; no importance weighting.
#ifndef TERRACE_TENSOR_QUANTIZE_H_
#define TERRACE_TENSOR_QUANTIZE_H_

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "tensor/dtype.h"

namespace terrace {

// Writes RowBytes(dtype, values.size()) bytes. Takes F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0,
// Q4_K, Q5_K, Q6_K and W8A8 (whole rows); Unimplemented for others, InvalidArgument where
// values.size() is not a multiple of the block or `out` is too small. Values must be finite. Pure,
// thread-safe.
absl::Status QuantizeRow(DType dtype, std::span<const float> values, std::span<std::byte> out);

}  // namespace terrace

#endif  // TERRACE_TENSOR_QUANTIZE_H_
