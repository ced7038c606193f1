#include "format/folder/recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/status.h"
#include "base/units.h"
#include "tensor/half.h"

namespace terrace::format {
namespace {

// Bytes of the result made at once where that needs memory beside the result.
constexpr int64_t kBatchBytes = 1 << 20;
// Rows shorter than this are gathered from one read of all that lies between them.
constexpr uint64_t kSmallRow = 64;

float ToFloat(SafeDType dtype, const std::byte* at) {
  uint16_t half = 0;
  switch (dtype) {
    case SafeDType::kF64: {
      double value;
      std::memcpy(&value, at, sizeof(value));
      return static_cast<float>(value);
    }
    case SafeDType::kF32: {
      float value;
      std::memcpy(&value, at, sizeof(value));
      return value;
    }
    case SafeDType::kF16:
      std::memcpy(&half, at, sizeof(half));
      return HalfToFloat(half);
    case SafeDType::kBF16:
      std::memcpy(&half, at, sizeof(half));
      return Bf16ToFloat(half);
    case SafeDType::kF8E4M3:
      return F8E4M3ToFloat(std::to_integer<uint8_t>(*at));
    case SafeDType::kF8E5M2:
      return F8E5M2ToFloat(std::to_integer<uint8_t>(*at));
    case SafeDType::kI8:
      return static_cast<float>(static_cast<int8_t>(std::to_integer<uint8_t>(*at)));
    default:
      return static_cast<float>(std::to_integer<uint8_t>(*at));
  }
}

}  // namespace

absl::Status RecipeReader::ReadBytes(uint32_t tensor, uint64_t offset,
                                     std::span<std::byte> out) const {
  const SafeTensor& from = tensors_[tensor];
  if (offset > from.bytes || out.size() > from.bytes - offset) {
    return absl::InternalError(fmt::format("'{}': bytes [{}, {}) asked of {}", from.name, offset,
                                           offset + out.size(), from.bytes));
  }
  return files_[from.file]->ReadAt(from.offset + offset, out);
}

absl::Status RecipeReader::ReadFloats(uint32_t tensor, uint64_t first, std::span<float> out) const {
  const SafeDType dtype = tensors_[tensor].dtype;
  const uint64_t size = SafeDTypeBytes(dtype);
  std::vector<std::byte> raw(out.size() * size);
  RETURN_IF_ERROR(ReadBytes(tensor, first * size, raw));
  for (size_t i = 0; i < out.size(); ++i) out[i] = ToFloat(dtype, raw.data() + i * size);
  return absl::OkStatus();
}

absl::Status RecipeReader::ReadInts(uint32_t tensor, uint64_t first, std::span<int32_t> out) const {
  if (tensors_[tensor].dtype != SafeDType::kI64) {
    return ReadBytes(tensor, first * sizeof(int32_t), std::as_writable_bytes(out));
  }
  std::vector<int64_t> raw(out.size());
  RETURN_IF_ERROR(
      ReadBytes(tensor, first * sizeof(int64_t), std::as_writable_bytes(std::span(raw))));
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<int32_t>(raw[i]);
  return absl::OkStatus();
}

RecipeReader::Place RecipeReader::PlaceOf(const std::vector<uint32_t>& list, int64_t matrix,
                                          int64_t elements) {
  if (list.size() == 1) return {list[0], static_cast<uint64_t>(matrix * elements)};
  return {list[static_cast<size_t>(matrix)], 0};
}

absl::Status RecipeReader::Read(uint32_t index, uint64_t offset, std::span<std::byte> out) const {
  const Recipe& recipe = recipes_[index];
  if (recipe.kind == Recipe::Kind::kConstant) {
    std::memcpy(out.data(), recipe.data.data() + offset, out.size());
    return absl::OkStatus();
  }
  const auto row_bytes =
      static_cast<int64_t>(RowBytes(recipe.dtype, static_cast<uint64_t>(recipe.cols)));
  const int64_t most = std::max<int64_t>(1, kBatchBytes / row_bytes);
  std::vector<std::byte> scratch;
  auto at = static_cast<int64_t>(offset);
  while (!out.empty()) {
    const int64_t row = at / row_bytes, inside = at % row_bytes;
    const int64_t matrix = row / recipe.rows, first = row % recipe.rows;
    const int64_t whole =
        std::min({static_cast<int64_t>(out.size()) / row_bytes, recipe.rows - first, most});
    int64_t bytes = 0;
    if (inside == 0 && whole > 0) {
      bytes = whole * row_bytes;
      RETURN_IF_ERROR(
          ReadRows(recipe, matrix, first, whole, out.first(static_cast<size_t>(bytes))));
    } else {  // a part of a row
      scratch.resize(static_cast<size_t>(row_bytes));
      RETURN_IF_ERROR(ReadRows(recipe, matrix, first, 1, scratch));
      bytes = std::min(row_bytes - inside, static_cast<int64_t>(out.size()));
      std::memcpy(out.data(), scratch.data() + inside, static_cast<size_t>(bytes));
    }
    out = out.subspan(static_cast<size_t>(bytes));
    at += bytes;
  }
  return absl::OkStatus();
}

absl::Status RecipeReader::ReadRows(const Recipe& recipe, int64_t matrix, int64_t first,
                                    int64_t count, std::span<std::byte> out) const {
  using Kind = Recipe::Kind;
  using OneRow =
      absl::Status (RecipeReader::*)(const Recipe&, int64_t, int64_t, std::span<std::byte>) const;
  OneRow one = nullptr;
  switch (recipe.kind) {
    case Kind::kRows:
      return PlainRows(recipe, matrix, first, count, out);
    case Kind::kTransposed:
      return TransposedRows(recipe, matrix, first, count, out);
    case Kind::kFp8Transposed:
      return Fp8TransposedRows(recipe, matrix, first, count, out);
    case Kind::kAddOne:
      return PlusOneRows(recipe, matrix, first, count, out);
    case Kind::kInt4Rows:
    case Kind::kInt4Gptq:
    case Kind::kInt4Awq:
      return Int4Rows(recipe, matrix, first, count, out);
    case Kind::kMxfp4:
      one = &RecipeReader::Mxfp4Row;
      break;
    case Kind::kFp8:
      one = &RecipeReader::Fp8Row;
      break;
    case Kind::kInt8:
      one = &RecipeReader::Int8Row;
      break;
    case Kind::kConstant:
      return absl::InternalError("a constant has no rows");
  }
  const size_t row_bytes = out.size() / static_cast<size_t>(count);
  for (int64_t i = 0; i < count; ++i) {
    RETURN_IF_ERROR((this->*one)(recipe, matrix, first + i,
                                 out.subspan(static_cast<size_t>(i) * row_bytes, row_bytes)));
  }
  return absl::OkStatus();
}

absl::Status RecipeReader::PlainRows(const Recipe& recipe, int64_t matrix, int64_t first,
                                     int64_t count, std::span<std::byte> out) const {
  const Place place = PlaceOf(recipe.sources, matrix, recipe.source_rows * recipe.source_cols);
  const uint64_t size = SafeDTypeBytes(tensors_[place.tensor].dtype);
  const uint64_t row_bytes = static_cast<uint64_t>(recipe.source_cols) * size;
  if (!recipe.row_map.empty() && row_bytes < kSmallRow) {
    return GatherSmallRows(recipe, place, static_cast<int64_t>(row_bytes), first, count, out);
  }
  for (int64_t i = 0; i < count;) {
    // Rows that follow one another in the source are read at once.
    const int64_t row = SourceRow(recipe, first + i);
    int64_t run = 1;
    while (i + run < count && SourceRow(recipe, first + i + run) == row + run) ++run;
    RETURN_IF_ERROR(ReadBytes(
        place.tensor, place.first * size + static_cast<uint64_t>(row) * row_bytes,
        out.subspan(static_cast<size_t>(i) * row_bytes, static_cast<size_t>(run) * row_bytes)));
    i += run;
  }
  return absl::OkStatus();
}

absl::Status RecipeReader::GatherSmallRows(const Recipe& recipe, Place place, int64_t row_bytes,
                                           int64_t first, int64_t count,
                                           std::span<std::byte> out) const {
  int64_t low = recipe.source_rows, high = 0;
  for (int64_t i = 0; i < count; ++i) {
    low = std::min(low, SourceRow(recipe, first + i));
    high = std::max(high, SourceRow(recipe, first + i) + 1);
  }
  std::vector<std::byte> all(static_cast<size_t>((high - low) * row_bytes));
  const auto begin = static_cast<int64_t>(place.first) / recipe.source_cols + low;
  RETURN_IF_ERROR(ReadBytes(place.tensor, static_cast<uint64_t>(begin * row_bytes), all));
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(out.data() + i * row_bytes,
                all.data() + (SourceRow(recipe, first + i) - low) * row_bytes,
                static_cast<size_t>(row_bytes));
  }
  return absl::OkStatus();
}

absl::Status RecipeReader::TransposedRows(const Recipe& recipe, int64_t matrix, int64_t first,
                                          int64_t count, std::span<std::byte> out) const {
  const Place place = PlaceOf(recipe.sources, matrix, recipe.source_rows * recipe.source_cols);
  const size_t size = SafeDTypeBytes(tensors_[place.tensor].dtype);
  // The span of source columns that holds all of these rows.
  int64_t low = recipe.source_cols, high = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t column = SourceRow(recipe, first + i);
    low = std::min(low, column);
    high = std::max(high, column + 1);
  }
  const auto span = static_cast<size_t>(high - low);
  std::vector<std::byte> line(span * size);
  for (int64_t c = 0; c < recipe.cols; ++c) {
    const uint64_t element = place.first + static_cast<uint64_t>(c * recipe.source_cols + low);
    RETURN_IF_ERROR(ReadBytes(place.tensor, element * size, line));
    for (int64_t i = 0; i < count; ++i) {
      const auto from = static_cast<size_t>(SourceRow(recipe, first + i) - low);
      std::memcpy(out.data() + static_cast<size_t>(i * recipe.cols + c) * size,
                  line.data() + from * size, size);
    }
  }
  return absl::OkStatus();
}

absl::Status RecipeReader::PlusOneRows(const Recipe& recipe, int64_t matrix, int64_t first,
                                       int64_t count, std::span<std::byte> out) const {
  const Place place = PlaceOf(recipe.sources, matrix, recipe.source_rows * recipe.source_cols);
  std::vector<float> values(static_cast<size_t>(count * recipe.cols));
  RETURN_IF_ERROR(
      ReadFloats(place.tensor, place.first + static_cast<uint64_t>(first * recipe.cols), values));
  for (float& value : values) value += 1.0f;
  std::memcpy(out.data(), values.data(), out.size());
  return absl::OkStatus();
}

}  // namespace terrace::format
