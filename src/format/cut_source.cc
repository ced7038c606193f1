#include "format/cut_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <utility>

#include "base/status.h"
#include "base/units.h"

namespace terrace::format {
namespace {

// Source bytes read at once where rows are cut.
constexpr uint64_t kChunkBytes = kMiB;

// A cut tensor, made of `matrices` times the row ranges; all in source coordinates.
struct Piece {
  TensorInfo whole;
  uint64_t source_rows = 0;  // of one source matrix
  uint64_t source_row_bytes = 0;
  uint64_t header_bytes = 0;  // of a row, kept whole
  uint64_t col_begin = 0;     // bytes behind the header
  uint64_t col_bytes = 0;
  IndexRange matrices;
  std::vector<IndexRange> rows;
  uint64_t rows_of_matrix = 0;

  uint64_t row_bytes() const { return header_bytes + col_bytes; }
  bool whole_rows() const { return row_bytes() == source_row_bytes; }
};

class CutReader final : public TensorReader {
 public:
  explicit CutReader(ModelSource* whole) : reader_(std::move(whole->reader)) {
    for (const auto& file : whole->files) files_.push_back(file.get());
  }
  void Add(Piece piece) { pieces_.push_back(std::move(piece)); }

  absl::Status Read(uint32_t index, uint64_t offset, std::span<std::byte> out) const override {
    const Piece& piece = pieces_[index];
    while (!out.empty()) {
      const uint64_t row = offset / piece.row_bytes();
      uint64_t inside = offset % piece.row_bytes();
      uint64_t source_row = 0, run = 0;  // rows that follow one another in the source, too
      FindRow(piece, row, &source_row, &run);
      const uint64_t count = std::min<uint64_t>(out.size(), run * piece.row_bytes() - inside);
      RETURN_IF_ERROR(ReadRun(piece, source_row, inside, out.first(count)));
      offset += count;
      out = out.subspan(count);
    }
    return absl::OkStatus();
  }

 private:
  static void FindRow(const Piece& piece, uint64_t row, uint64_t* source_row, uint64_t* run) {
    const uint64_t matrix =
        static_cast<uint64_t>(piece.matrices.begin) + row / piece.rows_of_matrix;
    uint64_t left = row % piece.rows_of_matrix;
    for (const IndexRange& range : piece.rows) {
      const auto size = static_cast<uint64_t>(range.size());
      if (left < size) {
        *source_row = matrix * piece.source_rows + static_cast<uint64_t>(range.begin) + left;
        *run = size - left;
        return;
      }
      left -= size;
    }
  }

  absl::Status ReadSource(const Piece& piece, uint64_t offset, std::span<std::byte> out) const {
    if (reader_ != nullptr) return reader_->Read(piece.whole.file, offset, out);
    return files_[piece.whole.file]->ReadAt(piece.whole.offset + offset, out);
  }

  // Fills `out` with what is cut of rows from `row` on, from byte `inside` of the first.
  absl::Status ReadRun(const Piece& piece, uint64_t row, uint64_t inside,
                       std::span<std::byte> out) const {
    if (piece.whole_rows()) return ReadSource(piece, row * piece.source_row_bytes + inside, out);
    const uint64_t most = std::max<uint64_t>(1, kChunkBytes / piece.source_row_bytes);
    std::vector<std::byte> source, cut(piece.row_bytes());
    while (!out.empty()) {
      const uint64_t rows = std::min(most, CeilDiv(inside + out.size(), piece.row_bytes()));
      source.resize(rows * piece.source_row_bytes);
      RETURN_IF_ERROR(ReadSource(piece, row * piece.source_row_bytes, source));
      for (uint64_t r = 0; r < rows && !out.empty(); ++r) {
        const std::byte* from = source.data() + r * piece.source_row_bytes;
        std::memcpy(cut.data(), from, piece.header_bytes);
        std::memcpy(cut.data() + piece.header_bytes, from + piece.header_bytes + piece.col_begin,
                    piece.col_bytes);
        const uint64_t count = std::min<uint64_t>(out.size(), cut.size() - inside);
        std::memcpy(out.data(), cut.data() + inside, count);
        out = out.subspan(count);
        inside = 0;
      }
      row += rows;
    }
    return absl::OkStatus();
  }

  std::unique_ptr<TensorReader> reader_;
  std::vector<const ByteSource*> files_;  // the source's, which outlive its reader
  std::vector<Piece> pieces_;
};

bool Inside(const IndexRange& range, int64_t size) {
  return range.begin >= 0 && range.begin < range.end && range.end <= size;
}

absl::Status CutColumns(const TensorInfo& tensor, const IndexRange& cols, Piece* piece) {
  const DTypeInfo& type = Info(tensor.dtype);
  const int64_t block = type.block_elements;
  if (cols.begin % block != 0 || cols.end % block != 0) {
    return absl::InvalidArgumentError(
        fmt::format("tensor '{}' is {}, in blocks of {} columns: it cannot be cut to columns {} to "
                    "{}",
                    tensor.name, type.name, block, cols.begin, cols.end));
  }
  piece->col_begin = static_cast<uint64_t>(cols.begin / block) * type.block_bytes;
  piece->col_bytes = static_cast<uint64_t>(cols.size() / block) * type.block_bytes;
  return absl::OkStatus();
}

// Cuts `tensor` in place and says where its bytes come from.
absl::StatusOr<Piece> Cut(const TensorCut& cut, TensorInfo* tensor) {
  Piece piece;
  piece.whole = *tensor;
  std::vector<int64_t>& shape = tensor->shape;
  if (shape.empty() || shape.size() > 3) {
    return absl::InvalidArgumentError(
        fmt::format("tensor '{}' of {} dimensions cannot be cut", tensor->name, shape.size()));
  }
  const size_t dims = shape.size();
  const int64_t matrices = dims == 3 ? shape[0] : 1;
  const int64_t rows = dims == 1 ? shape[0] : shape[dims - 2];
  const int64_t cols = dims == 1 ? 1 : shape[dims - 1];
  const DTypeInfo& type = Info(tensor->dtype);
  piece.matrices = cut.matrices.value_or(IndexRange{0, matrices});
  piece.rows = cut.rows.empty() ? std::vector<IndexRange>{{0, rows}} : cut.rows;
  const IndexRange kept = cut.cols.value_or(IndexRange{0, cols});
  bool inside = Inside(piece.matrices, matrices) && Inside(kept, cols);
  for (const IndexRange& range : piece.rows) inside = inside && Inside(range, rows);
  if (!inside || cols % type.block_elements != 0) {
    return absl::InvalidArgumentError(fmt::format(
        "tensor '{}' of {} matrices of {} x {} in {} does not hold the part that is wanted",
        tensor->name, matrices, rows, cols, type.name));
  }
  piece.header_bytes = type.row_header_bytes;
  RETURN_IF_ERROR(CutColumns(*tensor, kept, &piece));
  piece.source_rows = static_cast<uint64_t>(rows);
  piece.source_row_bytes = RowBytes(tensor->dtype, static_cast<uint64_t>(cols));
  for (const IndexRange& range : piece.rows) {
    piece.rows_of_matrix += static_cast<uint64_t>(range.size());
  }
  if (dims == 3) shape[0] = piece.matrices.size();
  shape[dims == 1 ? 0 : dims - 2] = static_cast<int64_t>(piece.rows_of_matrix);
  if (dims > 1) shape[dims - 1] = kept.size();
  tensor->bytes =
      static_cast<uint64_t>(piece.matrices.size()) * piece.rows_of_matrix * piece.row_bytes();
  return piece;
}

// A tensor that is taken as it is, whatever its shape.
Piece Whole(const TensorInfo& tensor) {
  Piece piece;
  piece.whole = tensor;
  piece.source_rows = piece.rows_of_matrix = 1;
  piece.source_row_bytes = piece.col_bytes = std::max<uint64_t>(tensor.bytes, 1);
  piece.matrices = {0, 1};
  piece.rows = {{0, 1}};
  return piece;
}

}  // namespace

absl::StatusOr<ModelSource> CutSource(ModelSource whole, const std::vector<TensorCut>& cuts,
                                      const std::string& label) {
  if (cuts.size() != whole.tensors.size()) {
    return absl::InvalidArgumentError(
        fmt::format("{} cuts for {} tensors", cuts.size(), whole.tensors.size()));
  }
  auto reader = std::make_unique<CutReader>(&whole);
  for (size_t i = 0; i < cuts.size(); ++i) {
    TensorInfo& tensor = whole.tensors[i];
    Piece piece = Whole(tensor);
    if (!cuts[i].whole()) {
      ASSIGN_OR_RETURN(piece, Cut(cuts[i], &tensor));
    }
    tensor.file = static_cast<uint32_t>(i);
    tensor.offset = 0;
    reader->Add(std::move(piece));
  }
  whole.reader = std::move(reader);
  for (FileIdentity& file : whole.identity) file.path = fmt::format("{} [{}]", file.path, label);
  return whole;
}

}  // namespace terrace::format
