// How the tensors that architectures read (named, shaped and ordered as in GGUF) are made from
// those of a checkpoint: rows in another order, matrices turned or stacked, weights of other number
// formats repacked. Reading gives the same bytes whatever the range.
#ifndef TERRACE_FORMAT_FOLDER_RECIPE_H_
#define TERRACE_FORMAT_FOLDER_RECIPE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "format/byte_source.h"
#include "format/model_source.h"
#include "format/safetensors.h"
#include "tensor/dtype.h"

namespace terrace::format {

// A tensor of `matrices` matrices of `rows` rows by `cols` columns.
struct Recipe {
  enum class Kind : uint8_t {
    kRows,        // rows of the source
    kTransposed,  // columns of the source [in, out]
    kAddOne,      // float32: the source's values plus one
    kConstant,    // `data`
    kMxfp4,       // source U8 [.., out, in / 32, 16], scales U8: MXFP4 blocks
    kFp8,         // source FP8 with float scales: BF16
    kFp8Transposed,
    kInt8,      // source I8 with a scale a row: W8A8, Q8_0, or BF16
    kInt4Rows,  // source I32 [out, in / 8], low nibble first (compressed-tensors)
    kInt4Gptq,  // source I32 [in / 8, out]
    kInt4Awq,   // source I32 [in, out / 8], nibbles in AWQ's order
  };
  Kind kind = Kind::kRows;
  DType dtype = DType::kF32;  // of the result
  int64_t matrices = 1, rows = 1, cols = 1;
  // Indices of the checkpoint's tensors: one a matrix, or one that holds all of them.
  std::vector<uint32_t> sources, scales, zeros;
  uint32_t group_index = kNone;   // kInt4Gptq: the group of each column, where they are mixed
  std::vector<uint32_t> row_map;  // the source's row of each row; empty: the same
  uint32_t first_row = 0;         // added to the source's row
  int64_t source_rows = 0;        // of one matrix of the source
  int64_t source_cols = 0;
  int64_t scale_rows = 1, scale_cols = 1;  // that share a scale (kFp8); columns of a group (kInt4*)
  int32_t zero_bias = 0;                   // added to stored zero points
  std::vector<std::byte> data;             // kConstant

  static constexpr uint32_t kNone = ~uint32_t{0};
};

// The checkpoint and its recipes. Immutable after construction. `files` must outlive it.
class RecipeReader final : public TensorReader {
 public:
  RecipeReader(std::vector<const ByteSource*> files, std::vector<SafeTensor> tensors)
      : files_(std::move(files)), tensors_(std::move(tensors)) {}
  uint32_t Add(Recipe recipe) {
    recipes_.push_back(std::move(recipe));
    return static_cast<uint32_t>(recipes_.size()) - 1;
  }

  absl::Status Read(uint32_t index, uint64_t offset, std::span<std::byte> out) const override;

  const std::vector<SafeTensor>& tensors() const { return tensors_; }
  // Elements [first, first + out.size()) of a tensor of floats as float32.
  absl::Status ReadFloats(uint32_t tensor, uint64_t first, std::span<float> out) const;
  absl::Status ReadInts(uint32_t tensor, uint64_t first, std::span<int32_t> out) const;

 private:
  // One matrix of a source: which tensor, and the element at which the matrix begins.
  struct Place {
    uint32_t tensor = 0;
    uint64_t first = 0;
  };
  static Place PlaceOf(const std::vector<uint32_t>& list, int64_t matrix, int64_t elements);
  static int64_t SourceRow(const Recipe& recipe, int64_t row) {
    return recipe.first_row +
           (recipe.row_map.empty() ? row : recipe.row_map[static_cast<size_t>(row)]);
  }
  absl::Status ReadBytes(uint32_t tensor, uint64_t offset, std::span<std::byte> out) const;
  // Rows [first, first + count) of one matrix.
  absl::Status ReadRows(const Recipe& recipe, int64_t matrix, int64_t first, int64_t count,
                        std::span<std::byte> out) const;
  absl::Status PlainRows(const Recipe& recipe, int64_t matrix, int64_t first, int64_t count,
                         std::span<std::byte> out) const;
  absl::Status GatherSmallRows(const Recipe& recipe, Place place, int64_t row_bytes, int64_t first,
                               int64_t count, std::span<std::byte> out) const;
  absl::Status TransposedRows(const Recipe& recipe, int64_t matrix, int64_t first, int64_t count,
                              std::span<std::byte> out) const;
  absl::Status PlusOneRows(const Recipe& recipe, int64_t matrix, int64_t first, int64_t count,
                           std::span<std::byte> out) const;
  // quantized.cc:
  absl::Status Mxfp4Row(const Recipe& recipe, int64_t matrix, int64_t row,
                        std::span<std::byte> out) const;
  absl::Status Fp8Row(const Recipe& recipe, int64_t matrix, int64_t row,
                      std::span<std::byte> out) const;
  absl::Status Fp8TransposedRows(const Recipe& recipe, int64_t matrix, int64_t first, int64_t count,
                                 std::span<std::byte> out) const;
  absl::Status Int8Row(const Recipe& recipe, int64_t matrix, int64_t row,
                       std::span<std::byte> out) const;
  absl::Status Int4Rows(const Recipe& recipe, int64_t matrix, int64_t first, int64_t count,
                        std::span<std::byte> out) const;
  struct Int4Tile;
  absl::Status LoadInt4Rows(const Recipe& recipe, int64_t matrix, int64_t first, int64_t count,
                            Int4Tile* tile) const;
  absl::Status LoadInt4Columns(const Recipe& recipe, int64_t matrix, int64_t first, int64_t count,
                               Int4Tile* tile) const;
  absl::Status LoadInt4Scales(const Recipe& recipe, int64_t matrix, int64_t first, int64_t count,
                              Int4Tile* tile) const;

  const std::vector<const ByteSource*> files_;
  const std::vector<SafeTensor> tensors_;
  std::vector<Recipe> recipes_;
};

}  // namespace terrace::format

#endif  // TERRACE_FORMAT_FOLDER_RECIPE_H_
