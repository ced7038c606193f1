// Exact dequantisation: the float32 values that the GGUF specification gives a row of any dtype.
#ifndef TERRACE_TENSOR_DEQUANTIZE_H_
#define TERRACE_TENSOR_DEQUANTIZE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/blocks.h"
#include "tensor/dtype.h"

namespace terrace {

// Writes out.size() float32 values from a plain row (from its start). Integer types convert by
// value; F64 rounds. REQUIRES: out.size() is a multiple of the dtype's block_elements, and `row`
// holds RowBytes(dtype, out.size()) bytes (no alignment needed). Pure, thread-safe.
void DequantizeRow(DType dtype, const std::byte* row, std::span<float> out);

// The 32 values of a group already read from its block.
void DequantizeGroup(const BlockScheme& scheme, const GroupCodes& group, float* out);

}  // namespace terrace

#endif  // TERRACE_TENSOR_DEQUANTIZE_H_
