// What a quantised block says, in one common form: every block format of GGUF is a run of groups of
// 32 unsigned codes, with a float scale, integer sub-scales and minima. Dequantisation and the
// packed layouts of ops/cpu are both written against this form, so that each format is parsed in
// one place.
//
//   value[i] = (d * scale[i / 16]) * decode(code[i]) + bias[i / 16], where
//   decode(c) = table ? table[c] : c - offset, and
//   bias = has_bias ? bias_value : has_min ? -(dmin * min[i / 16]) : 0
//
// All functions are pure; memory is the caller's.
#ifndef TERRACE_TENSOR_BLOCKS_H_
#define TERRACE_TENSOR_BLOCKS_H_

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace terrace {

inline constexpr int kGroup = 32;  // codes a group holds, in every block format

// The fixed part of a block format.
struct BlockScheme {
  uint8_t code_bits;     // 2, 3, 4, 5, 6 or 8: codes are below 1 << code_bits
  uint8_t offset;        // subtracted from a code (0 where `table` is used)
  const int8_t* table;   // 16 values, or null
  uint8_t sub_elements;  // elements that share a sub-scale: 16, 32; 0 if there are none
  bool has_min;          // sub-minima (and dmin)
  bool has_bias;         // a float added to each value (Q4_1, Q5_1)
  bool e8m0;             // d is an E8M0 exponent (MXFP4), else F16
};

// The scheme of a quantised dtype; null for plain ones. Q8_0's signed bytes are read as codes +
// 128.
const BlockScheme* SchemeOf(DType dtype);

struct GroupCodes {
  uint8_t code[kGroup];
  uint16_t d_bits;     // F16 bits, or the E8M0 exponent
  uint16_t dmin_bits;  // F16 bits of dmin or of the bias; 0 if the scheme has neither
  int8_t scale[2];     // of elements 0..15 and 16..31; 1 if the scheme has none
  uint8_t min[2];      // 0 if the scheme has none
};

// Reads group `group` (< block_elements / 32) of the block at `block`, which holds
// Info(dtype).block_bytes bytes. REQUIRES: dtype is quantised.
void ReadGroup(DType dtype, const std::byte* block, int group, GroupCodes* out);

}  // namespace terrace

#endif  // TERRACE_TENSOR_BLOCKS_H_
