#include "format/scaled_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "base/status.h"
#include "format/gguf_writer.h"
#include "tensor/dequantize.h"

namespace terrace::format {
namespace {

// A tensor of W8A8 rows over a tensor of bytes in another source, which must outlive it.
class ScaledRows final : public ByteSource {
 public:
  ScaledRows(const ByteSource* bytes, uint64_t offset, uint64_t cols, std::vector<float> scales)
      : ByteSource(bytes->name(), scales.size() * (sizeof(float) + cols), bytes->mtime_ns()),
        bytes_(*bytes),
        offset_(offset),
        cols_(cols),
        scales_(std::move(scales)) {}

  absl::Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    const uint64_t row_bytes = sizeof(float) + cols_;
    if (offset > size() || out.size() > size() - offset) {
      return absl::DataLossError(fmt::format("'{}': {} bytes at {} of rows that take {}", name(),
                                             out.size(), offset, size()));
    }
    if (out.empty()) return absl::OkStatus();
    // The bytes of all rows that the range touches, read at once.
    const uint64_t first = offset / row_bytes;
    const uint64_t last = (offset + out.size() - 1) / row_bytes;
    std::vector<std::byte> values((last - first + 1) * cols_);
    RETURN_IF_ERROR(bytes_.ReadAt(offset_ + first * cols_, values));
    for (uint64_t row = first; row <= last; ++row) {
      // [begin, end) of this row is wanted.
      const uint64_t begin = row == first ? offset - first * row_bytes : 0;
      const uint64_t end = std::min(row_bytes, offset + out.size() - row * row_bytes);
      std::byte* to = out.data() + (row * row_bytes + begin - offset);
      const auto* scale = reinterpret_cast<const std::byte*>(&scales_[row]);
      for (uint64_t at = begin; at < std::min<uint64_t>(end, sizeof(float)); ++at)
        *to++ = scale[at];
      const uint64_t from = std::max<uint64_t>(begin, sizeof(float));
      if (from < end) {
        std::memcpy(to, values.data() + (row - first) * cols_ + from - sizeof(float), end - from);
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckUnchanged() const override { return bytes_.CheckUnchanged(); }

 private:
  const ByteSource& bytes_;
  const uint64_t offset_;
  const uint64_t cols_;
  const std::vector<float> scales_;
};

bool IsFloat(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

absl::StatusOr<std::vector<float>> ReadScales(const ModelSource& model, const TensorInfo& tensor,
                                              uint64_t rows) {
  const uint64_t count = tensor.bytes / Info(tensor.dtype).block_bytes;
  if (count != rows) {
    return absl::InvalidArgumentError(
        fmt::format("tensor '{}' has {} scales for {} rows", tensor.name, count, rows));
  }
  std::vector<std::byte> bytes(tensor.bytes);
  RETURN_IF_ERROR(model.ReadTensor(tensor, 0, bytes));
  std::vector<float> scales(rows);
  DequantizeRow(tensor.dtype, bytes.data(), scales);
  return scales;
}

}  // namespace

void AddScaledRows(const ModelSource* source, const TensorInfo* tensor, GgufWriter* writer) {
  // Bytes [first, first + count) of each row, one row after the other.
  const auto part = [&](const std::string& name, DType dtype, std::span<const int64_t> shape,
                        uint64_t first, uint64_t count) {
    const uint64_t row_bytes = RowBytes(DType::kW8A8, static_cast<uint64_t>(tensor->shape.back()));
    writer->AddTensor(
        name, dtype, shape, [=](uint64_t offset, std::span<std::byte> out) -> absl::Status {
          while (!out.empty()) {
            const uint64_t row = offset / count, within = offset % count;
            const size_t bytes = std::min<size_t>(out.size(), count - within);
            RETURN_IF_ERROR(
                source->ReadTensor(*tensor, row * row_bytes + first + within, out.first(bytes)));
            out = out.subspan(bytes);
            offset += bytes;
          }
          return absl::OkStatus();
        });
  };
  const uint64_t header = Info(DType::kW8A8).row_header_bytes;
  part(tensor->name, DType::kI8, tensor->shape, header,
       static_cast<uint64_t>(tensor->shape.back()));
  part(tensor->name + "_scale", DType::kF32,
       std::span(tensor->shape).first(tensor->shape.size() - 1), 0, header);
}

absl::Status MergeScaledRows(ModelSource* model) {
  absl::flat_hash_map<std::string, size_t> scale_of;
  for (size_t i = 0; i < model->tensors.size(); ++i) {
    const TensorInfo& tensor = model->tensors[i];
    if (IsFloat(tensor.dtype) && tensor.name.ends_with("_scale")) scale_of[tensor.name] = i;
  }
  absl::flat_hash_set<std::string> merged;
  for (TensorInfo& tensor : model->tensors) {
    if (tensor.dtype != DType::kI8 || tensor.shape.size() < 2 || tensor.bytes == 0) continue;
    const auto found = scale_of.find(tensor.name + "_scale");
    if (found == scale_of.end()) continue;
    const auto cols = static_cast<uint64_t>(tensor.shape.back());
    if (cols % Info(DType::kW8A8).block_elements != 0) {
      return absl::InvalidArgumentError(
          fmt::format("tensor '{}': rows of {} bytes with a scale each are not a multiple of {}",
                      tensor.name, cols, Info(DType::kW8A8).block_elements));
    }
    ASSIGN_OR_RETURN(std::vector<float> scales,
                     ReadScales(*model, model->tensors[found->second], tensor.bytes / cols));
    auto rows = std::make_unique<ScaledRows>(model->files[tensor.file].get(), tensor.offset, cols,
                                             std::move(scales));
    tensor.dtype = DType::kW8A8;
    tensor.file = static_cast<uint32_t>(model->files.size());
    tensor.offset = 0;
    tensor.bytes = rows->size();
    model->files.push_back(std::move(rows));
    merged.insert(found->first);
  }
  std::erase_if(model->tensors,
                [&](const TensorInfo& tensor) { return merged.contains(tensor.name); });
  return absl::OkStatus();
}

}  // namespace terrace::format
