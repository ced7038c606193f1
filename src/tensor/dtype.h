// Element types and quantisation blocks: names, sizes, and how many bytes a row takes. Block
// formats are those of the GGUF specification; a block never crosses a row.
#ifndef TERRACE_TENSOR_DTYPE_H_
#define TERRACE_TENSOR_DTYPE_H_

#include <cstdint>
#include <optional>
#include <string_view>

namespace terrace {

enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kF8E5M2,
  kI8,
  kI16,
  kI32,
  kI64,
  kF64,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
  kIQ3_S,
  kMXFP4,
  kTQ2_0,
  // INT8 per channel, for activations rounded to int8 per token: a row is its F32 scale, then its
  // values. In model files a tensor I8 and one of scales (format/scaled_rows.h).
  kW8A8,
};
inline constexpr int kDTypeCount = static_cast<int>(DType::kW8A8) + 1;

struct DTypeInfo {
  std::string_view name;    // "Q4_K": as written in tables and manifests
  uint32_t block_elements;  // elements a block holds (1 for plain types)
  uint32_t block_bytes;
  bool quantised;
  uint32_t row_header_bytes = 0;  // before the blocks of each row
};

const DTypeInfo& Info(DType dtype);
std::optional<DType> DTypeFromName(std::string_view name);
// The DType of a GGUF tensor type number, or nothing if this build does not read it.
std::optional<DType> DTypeFromGguf(uint32_t type);
// Its inverse, for writing GGUF files; -1 if GGUF has no such type.
int GgufType(DType dtype);

// Bytes of `elements` elements in one row. REQUIRES: a multiple of block_elements.
inline uint64_t RowBytes(DType dtype, uint64_t elements) {
  const DTypeInfo& info = Info(dtype);
  return info.row_header_bytes + elements / info.block_elements * info.block_bytes;
}

}  // namespace terrace

#endif  // TERRACE_TENSOR_DTYPE_H_
