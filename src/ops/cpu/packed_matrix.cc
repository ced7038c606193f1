#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "ops/cpu/packing.h"

namespace terrace::ops::cpu {
namespace {

constexpr int32_t kRows = 16;

}  // namespace

uint64_t PackedMatrixBytes(Layout layout, DType dtype, int32_t rows, int32_t cols) {
  if (layout == Layout::kPlain) {
    return static_cast<uint64_t>(rows) * RowBytes(dtype, static_cast<uint64_t>(cols));
  }
  return static_cast<uint64_t>((rows + kRows - 1) / kRows) * PackedGroupBytes(dtype, cols);
}

absl::Status PackMatrix(Layout layout, DType dtype, int32_t rows, int32_t cols,
                        std::span<const std::byte> source, std::span<std::byte> packed) {
  const DTypeInfo& info = Info(dtype);
  if (rows <= 0 || cols <= 0 || cols % static_cast<int32_t>(info.block_elements) != 0) {
    return absl::InvalidArgumentError(
        fmt::format("Pack: {} [{}, {}] does not fit its format", info.name, rows, cols));
  }
  if (layout == Layout::kRows16 && !Packable(dtype)) {
    return absl::UnimplementedError(
        fmt::format("Pack: {} has no layout {}", info.name, LayoutName(layout)));
  }
  const uint64_t row_bytes = RowBytes(dtype, static_cast<uint64_t>(cols));
  const uint64_t need = PackedMatrixBytes(layout, dtype, rows, cols);
  if (source.size() < row_bytes * static_cast<uint64_t>(rows) || packed.size() < need) {
    return absl::InvalidArgumentError(
        fmt::format("Pack: {} [{}, {}] from {} to {} bytes does not fit", info.name, rows, cols,
                    source.size(), packed.size()));
  }
  if (layout == Layout::kPlain) {
    if (packed.data() != source.data()) std::memmove(packed.data(), source.data(), need);
    return absl::OkStatus();
  }
  const uint64_t group_bytes = PackedGroupBytes(dtype, cols);
  for (int32_t r = 0; r < rows; r += kRows) {
    PackGroup(dtype, cols, std::min(rows - r, kRows),
              source.data() + static_cast<uint64_t>(r) * row_bytes,
              packed.data() + static_cast<uint64_t>(r / kRows) * group_bytes);
  }
  return absl::OkStatus();
}

}  // namespace terrace::ops::cpu
