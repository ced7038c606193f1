// Layout::kRows16, "r16-1": rows in groups of 16, interleaved so that a wide register holds the
// same columns of all 16, with scales beside them. Lossless from each GGUF format. docs of the
// bytes:
//
// W8A8: [16] F32 scales, then for each group of 32 columns the planes of 8-bit codes as below.
// Float dtypes: [column][16 rows]; BF16 [column pair][16 rows][2].
// Block dtypes: per block of the format
//   d        [16] F16 (MXFP4: [16] E8M0 bytes)
//   dmin     [16] F16, where the format has a minimum or a bias
//   then for each group of 32 columns
//     scale  [sub-blocks][16] int8, sub-block major, where the format has sub-scales
//     min    [sub-blocks][16] uint8, where it has sub-minima
//     planes of codes; "unit g" is columns 4 g .. 4 g + 3 of 16 rows: 64 bytes, [16 rows][4
//     columns]
//       8 bits: units 0..7
//       4, 5, 6 bits: 4 x 64 bytes, j-th: low nibbles of unit j, high nibbles of unit j + 4
//       2, 3 bits: 2 x 64 bytes, j-th: bits 2 s .. 2 s + 1 are those of unit j + 2 s
//       then the bits above: 3 and 5 bits: 64 bytes, bit g is unit g's; 6 bits: 2 x 64 bytes as for
//       2 bits
// Codes of Q8_0 and W8A8 are biased by 128; IQ3_S is stored as its 4-bit codes (magnitude and
// sign). Rows past the last are zeros (d = 0).
#ifndef TERRACE_OPS_CPU_PACKING_H_
#define TERRACE_OPS_CPU_PACKING_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "ops/types.h"
#include "tensor/dtype.h"

namespace terrace::ops::cpu {

// Whether the dtype can be a packed matrix (floats of at most 32 bits and block formats).
bool Packable(DType dtype);

// Bytes of one group of 16 rows. REQUIRES: Packable, cols a multiple of the block.
uint64_t PackedGroupBytes(DType dtype, int32_t cols);

// Packs `rows` (1..16) plain rows that follow each other at `source` into one group.
void PackGroup(DType dtype, int32_t cols, int32_t rows, const std::byte* source, std::byte* packed);

// The bytes of a matrix in `layout`, and its conversion from plain rows, for backends that read
// Layout::kRows16 and kPlain. InvalidArgument for sizes that do not fit, Unimplemented for a layout
// that the dtype does not have.
uint64_t PackedMatrixBytes(Layout layout, DType dtype, int32_t rows, int32_t cols);
absl::Status PackMatrix(Layout layout, DType dtype, int32_t rows, int32_t cols,
                        std::span<const std::byte> source, std::span<std::byte> packed);

// The float32 values of row `row` of a packed matrix: bit-equal to DequantizeRow of the plain row.
void UnpackRow(DType dtype, const std::byte* packed, int64_t row, std::span<float> out);

}  // namespace terrace::ops::cpu

#endif  // TERRACE_OPS_CPU_PACKING_H_
