// Recipes for quantised checkpoints. What the result's format can hold exactly is repacked; where
// it cannot, values are rounded once: FP8 times its scale to BF16, INT8 in rows whose scale is no
// F16 to BF16, INT4 whose groups are mixed to F16.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/status.h"
#include "format/folder/recipe.h"
#include "tensor/half.h"

namespace terrace::format {
namespace {

constexpr int64_t kBlock = 32;  // elements of a block of Q4_0, Q8_0 and MXFP4
constexpr size_t kNibbles = 8;  // in an int32

// The nibble in which AWQ keeps column 8 c + k.
constexpr uint32_t kAwqNibble[kNibbles] = {0, 4, 1, 5, 2, 6, 3, 7};

void PutHalf(uint16_t half, std::byte* at) { std::memcpy(at, &half, sizeof(half)); }

}  // namespace

absl::Status RecipeReader::Mxfp4Row(const Recipe& recipe, int64_t matrix, int64_t row,
                                    std::span<std::byte> out) const {
  const int64_t blocks = recipe.cols / kBlock;
  const int64_t source_row = SourceRow(recipe, row);
  const Place codes = PlaceOf(recipe.sources, matrix, recipe.source_rows * blocks * kBlock / 2);
  const Place scales = PlaceOf(recipe.scales, matrix, recipe.source_rows * blocks);
  std::vector<std::byte> raw(static_cast<size_t>(blocks * kBlock / 2));
  std::vector<std::byte> exponents(static_cast<size_t>(blocks));
  RETURN_IF_ERROR(
      ReadBytes(codes.tensor, codes.first + static_cast<uint64_t>(source_row) * raw.size(), raw));
  RETURN_IF_ERROR(ReadBytes(scales.tensor,
                            scales.first + static_cast<uint64_t>(source_row) * exponents.size(),
                            exponents));
  // A byte of the source holds elements 2 i and 2 i + 1, one of the result elements i and i + 16.
  for (size_t b = 0; b < exponents.size(); ++b) {
    std::byte* to = out.data() + b * 17;
    const std::byte* from = raw.data() + b * 16;
    to[0] = exponents[b];
    auto code = [&](size_t element) {
      const std::byte pair = from[element / 2];
      return element % 2 == 0 ? pair & std::byte{15} : pair >> 4;
    };
    for (size_t i = 0; i < 16; ++i) to[1 + i] = code(i) | code(i + 16) << 4;
  }
  return absl::OkStatus();
}

absl::Status RecipeReader::Fp8Row(const Recipe& recipe, int64_t matrix, int64_t row,
                                  std::span<std::byte> out) const {
  const int64_t source_row = SourceRow(recipe, row);
  const int64_t groups = (recipe.cols + recipe.scale_cols - 1) / recipe.scale_cols;
  const int64_t scale_rows = (recipe.source_rows + recipe.scale_rows - 1) / recipe.scale_rows;
  const Place codes = PlaceOf(recipe.sources, matrix, recipe.source_rows * recipe.cols);
  const Place scales = PlaceOf(recipe.scales, matrix, scale_rows * groups);
  std::vector<float> values(static_cast<size_t>(recipe.cols));
  std::vector<float> factors(static_cast<size_t>(groups));
  RETURN_IF_ERROR(ReadFloats(
      codes.tensor, codes.first + static_cast<uint64_t>(source_row * recipe.cols), values));
  RETURN_IF_ERROR(ReadFloats(
      scales.tensor, scales.first + static_cast<uint64_t>(source_row / recipe.scale_rows * groups),
      factors));
  for (int64_t i = 0; i < recipe.cols; ++i) {
    const float value =
        values[static_cast<size_t>(i)] * factors[static_cast<size_t>(i / recipe.scale_cols)];
    PutHalf(FloatToBf16(value), out.data() + 2 * i);
  }
  return absl::OkStatus();
}

absl::Status RecipeReader::Fp8TransposedRows(const Recipe& recipe, int64_t matrix, int64_t first,
                                             int64_t count, std::span<std::byte> out) const {
  Recipe line = recipe;  // the source's rows, which are columns here
  line.cols = recipe.source_cols;
  std::vector<std::byte> row(static_cast<size_t>(line.cols) * 2);
  for (int64_t c = 0; c < recipe.cols; ++c) {
    RETURN_IF_ERROR(Fp8Row(line, matrix, c, row));
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(out.data() + 2 * (i * recipe.cols + c), row.data() + 2 * (first + i), 2);
    }
  }
  return absl::OkStatus();
}

absl::Status RecipeReader::Int8Row(const Recipe& recipe, int64_t matrix, int64_t row,
                                   std::span<std::byte> out) const {
  const int64_t source_row = SourceRow(recipe, row);
  const Place codes = PlaceOf(recipe.sources, matrix, recipe.source_rows * recipe.cols);
  const int64_t scale_rows = (recipe.source_rows + recipe.scale_rows - 1) / recipe.scale_rows;
  const Place scales = PlaceOf(recipe.scales, matrix, scale_rows);
  std::vector<std::byte> raw(static_cast<size_t>(recipe.cols));
  float scale = 0;
  RETURN_IF_ERROR(
      ReadBytes(codes.tensor, codes.first + static_cast<uint64_t>(source_row * recipe.cols), raw));
  RETURN_IF_ERROR(ReadFloats(scales.tensor,
                             scales.first + static_cast<uint64_t>(source_row / recipe.scale_rows),
                             std::span(&scale, 1)));
  if (recipe.dtype == DType::kW8A8) {
    std::memcpy(out.data(), &scale, sizeof(scale));
    std::memcpy(out.data() + sizeof(scale), raw.data(), raw.size());
    return absl::OkStatus();
  }
  if (recipe.dtype == DType::kBF16) {
    for (size_t i = 0; i < raw.size(); ++i) {
      const auto code = static_cast<int8_t>(std::to_integer<uint8_t>(raw[i]));
      PutHalf(FloatToBf16(static_cast<float>(code) * scale), out.data() + 2 * i);
    }
    return absl::OkStatus();
  }
  for (size_t b = 0; b < raw.size() / kBlock; ++b) {
    PutHalf(FloatToHalf(scale), out.data() + b * 34);
    std::memcpy(out.data() + b * 34 + 2, raw.data() + b * kBlock, kBlock);
  }
  return absl::OkStatus();
}

// Rows of 4-bit codes with what stands beside them.
struct RecipeReader::Int4Tile {
  std::vector<uint8_t> codes;   // [count, cols]
  std::vector<float> scales;    // [count, groups]
  std::vector<int32_t> zeros;   // [count, groups]: subtracted from codes
  std::vector<int32_t> groups;  // [cols]: the group of each column
  int64_t group_count = 0;
};

absl::Status RecipeReader::LoadInt4Rows(const Recipe& recipe, int64_t matrix, int64_t first,
                                        int64_t count, Int4Tile* tile) const {
  const int64_t words = recipe.cols / static_cast<int64_t>(kNibbles);
  const Place place = PlaceOf(recipe.sources, matrix, recipe.source_rows * words);
  std::vector<int32_t> row(static_cast<size_t>(words));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t source_row = SourceRow(recipe, first + i);
    RETURN_IF_ERROR(
        ReadInts(place.tensor, place.first + static_cast<uint64_t>(source_row * words), row));
    for (int64_t c = 0; c < recipe.cols; ++c) {
      const auto word = std::bit_cast<uint32_t>(row[static_cast<size_t>(c) / kNibbles]);
      tile->codes[static_cast<size_t>(i * recipe.cols + c)] =
          static_cast<uint8_t>(word >> (4 * (static_cast<size_t>(c) % kNibbles)) & 15);
    }
  }
  return absl::OkStatus();
}

absl::Status RecipeReader::LoadInt4Columns(const Recipe& recipe, int64_t matrix, int64_t first,
                                           int64_t count, Int4Tile* tile) const {
  const bool awq = recipe.kind == Recipe::Kind::kInt4Awq;
  const auto pack = static_cast<int64_t>(kNibbles);
  const int64_t lines = awq ? recipe.cols : recipe.cols / pack;
  const int64_t line_words = awq ? recipe.source_rows / pack : recipe.source_rows;
  const Place place = PlaceOf(recipe.sources, matrix, lines * line_words);
  int64_t low = line_words, high = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t word = SourceRow(recipe, first + i) / (awq ? pack : 1);
    low = std::min(low, word);
    high = std::max(high, word + 1);
  }
  std::vector<int32_t> line(static_cast<size_t>(high - low));
  for (int64_t l = 0; l < lines; ++l) {
    RETURN_IF_ERROR(
        ReadInts(place.tensor, place.first + static_cast<uint64_t>(l * line_words + low), line));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = SourceRow(recipe, first + i);
      const auto word =
          std::bit_cast<uint32_t>(line[static_cast<size_t>((awq ? row / pack : row) - low)]);
      uint8_t* codes = tile->codes.data() + i * recipe.cols;
      if (awq) {
        codes[l] = static_cast<uint8_t>(word >> (4 * kAwqNibble[row % pack]) & 15);
      } else {
        for (int64_t k = 0; k < pack; ++k) {
          codes[l * pack + k] = static_cast<uint8_t>(word >> (4 * k) & 15);
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status RecipeReader::LoadInt4Scales(const Recipe& recipe, int64_t matrix, int64_t first,
                                          int64_t count, Int4Tile* tile) const {
  const bool by_row = recipe.kind == Recipe::Kind::kInt4Rows;
  const auto pack = static_cast<int64_t>(kNibbles);
  const int64_t groups = tile->group_count, rows = recipe.source_rows;
  const Place scales = PlaceOf(recipe.scales, matrix, groups * rows);
  int64_t low = rows, high = 0;
  for (int64_t i = 0; i < count; ++i) {
    low = std::min(low, SourceRow(recipe, first + i));
    high = std::max(high, SourceRow(recipe, first + i) + 1);
  }
  // Element (row, group) of the scales lies at row * groups + group, or the other way round. Zero
  // points are packed along rows: [rows / 8, groups] or [groups, rows / 8].
  auto load = [&](int64_t from, int64_t to, int64_t stride, const auto& read) -> absl::Status {
    if (by_row) return read(from * groups, (to - from) * groups, 0);
    for (int64_t g = 0; g < groups; ++g) RETURN_IF_ERROR(read(g * stride + from, to - from, g));
    return absl::OkStatus();
  };
  std::vector<float> values(static_cast<size_t>((high - low) * groups));
  RETURN_IF_ERROR(load(low, high, rows, [&](int64_t at, int64_t n, int64_t line) {
    return ReadFloats(
        scales.tensor, scales.first + static_cast<uint64_t>(at),
        std::span(values).subspan(static_cast<size_t>(line * n), static_cast<size_t>(n)));
  }));
  const int64_t low_word = low / pack, high_word = (high + pack - 1) / pack;
  std::vector<int32_t> words;
  if (!recipe.zeros.empty()) {
    const Place zeros = PlaceOf(recipe.zeros, matrix, groups * (rows / pack));
    words.resize(static_cast<size_t>((high_word - low_word) * groups));
    RETURN_IF_ERROR(
        load(low_word, high_word, rows / pack, [&](int64_t at, int64_t n, int64_t line) {
          return ReadInts(
              zeros.tensor, zeros.first + static_cast<uint64_t>(at),
              std::span(words).subspan(static_cast<size_t>(line * n), static_cast<size_t>(n)));
        }));
  }
  tile->zeros.assign(static_cast<size_t>(count * groups), 8);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = SourceRow(recipe, first + i);
    auto element = [&](int64_t index, int64_t size, int64_t g) {
      return static_cast<size_t>(by_row ? index * groups + g : g * size + index);
    };
    for (int64_t g = 0; g < groups; ++g) {
      const auto to = static_cast<size_t>(i * groups + g);
      tile->scales[to] = values[element(row - low, high - low, g)];
      if (words.empty()) continue;
      const int32_t word = words[element(row / pack - low_word, high_word - low_word, g)];
      const auto nibble = static_cast<uint32_t>(row % pack);
      const uint32_t shift =
          4 * (recipe.kind == Recipe::Kind::kInt4Awq ? kAwqNibble[nibble] : nibble);
      tile->zeros[to] =
          static_cast<int32_t>(std::bit_cast<uint32_t>(word) >> shift & 15) + recipe.zero_bias;
    }
  }
  return absl::OkStatus();
}

absl::Status RecipeReader::Int4Rows(const Recipe& recipe, int64_t matrix, int64_t first,
                                    int64_t count, std::span<std::byte> out) const {
  Int4Tile tile;
  tile.group_count = (recipe.cols + recipe.scale_cols - 1) / recipe.scale_cols;
  tile.codes.resize(static_cast<size_t>(count * recipe.cols));
  tile.scales.resize(static_cast<size_t>(count * tile.group_count));
  tile.groups.resize(static_cast<size_t>(recipe.cols));
  for (int64_t c = 0; c < recipe.cols; ++c) {
    tile.groups[static_cast<size_t>(c)] = static_cast<int32_t>(c / recipe.scale_cols);
  }
  if (recipe.group_index != Recipe::kNone) {
    RETURN_IF_ERROR(ReadInts(recipe.group_index, 0, tile.groups));
    for (int32_t& group : tile.groups) {
      if (group < 0 || group >= tile.group_count) {
        return absl::InvalidArgumentError(fmt::format("'{}' names group {} of {}",
                                                      tensors_[recipe.group_index].name, group,
                                                      tile.group_count));
      }
    }
  }
  RETURN_IF_ERROR(recipe.kind == Recipe::Kind::kInt4Rows
                      ? LoadInt4Rows(recipe, matrix, first, count, &tile)
                      : LoadInt4Columns(recipe, matrix, first, count, &tile));
  RETURN_IF_ERROR(LoadInt4Scales(recipe, matrix, first, count, &tile));
  std::byte* to = out.data();
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t* codes = tile.codes.data() + i * recipe.cols;
    const float* scales = tile.scales.data() + i * tile.group_count;
    const int32_t* zeros = tile.zeros.data() + i * tile.group_count;
    if (recipe.dtype == DType::kF16) {
      for (int64_t c = 0; c < recipe.cols; ++c, to += 2) {
        const int32_t group = tile.groups[static_cast<size_t>(c)];
        PutHalf(FloatToHalf(static_cast<float>(codes[c] - zeros[group]) * scales[group]), to);
      }
      continue;
    }
    for (int64_t c = 0; c < recipe.cols; c += kBlock) {
      const int32_t group = tile.groups[static_cast<size_t>(c)];
      PutHalf(FloatToHalf(scales[group]), to);
      to += 2;
      if (recipe.dtype == DType::kQ4_0) {
        for (int64_t k = 0; k < kBlock / 2; ++k) {
          *to++ = static_cast<std::byte>(codes[c + k] | codes[c + k + kBlock / 2] << 4);
        }
      } else {
        for (int64_t k = 0; k < kBlock; ++k) {
          *to++ = static_cast<std::byte>(static_cast<int8_t>(codes[c + k] - zeros[group]));
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace terrace::format
