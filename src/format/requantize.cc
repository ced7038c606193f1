#include "format/requantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/status.h"
#include "format/gguf_writer.h"
#include "tensor/dequantize.h"
#include "tensor/quantize.h"

namespace terrace::format {
namespace {

// Any byte range of a tensor's new rows, asked for in order: the row at hand is kept.
class RowConverter {
 public:
  RowConverter(const ModelSource* source, const TensorInfo* tensor, DType to)
      : source_(*source), tensor_(*tensor), to_(to) {
    const auto cols = static_cast<uint64_t>(tensor->shape.empty() ? 1 : tensor->shape.back());
    from_.resize(RowBytes(tensor->dtype, cols));
    values_.resize(cols);
    row_.resize(RowBytes(to, cols));
  }

  // Bytes [first, first + count) of each row count: the tensor is those of all rows.
  absl::Status Fill(uint64_t first, uint64_t count, uint64_t offset, std::span<std::byte> out) {
    while (!out.empty()) {
      const uint64_t row = offset / count;
      const uint64_t within = offset % count;
      RETURN_IF_ERROR(Convert(row));
      const size_t bytes = std::min<uint64_t>(count - within, out.size());
      std::memcpy(out.data(), row_.data() + first + within, bytes);
      out = out.subspan(bytes);
      offset += bytes;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Convert(uint64_t row) {
    if (row == at_) return absl::OkStatus();
    RETURN_IF_ERROR(source_.ReadTensor(tensor_, row * from_.size(), from_));
    DequantizeRow(tensor_.dtype, from_.data(), values_);
    RETURN_IF_ERROR(QuantizeRow(to_, values_, row_));
    at_ = row;
    return absl::OkStatus();
  }

  const ModelSource& source_;
  const TensorInfo& tensor_;
  const DType to_;
  uint64_t at_ = UINT64_MAX;
  std::vector<std::byte> from_;
  std::vector<float> values_;
  std::vector<std::byte> row_;
};

bool IsMatrix(const TensorInfo& tensor) {
  return tensor.shape.size() >= 2 && !tensor.name.ends_with(".bias") &&
         !tensor.name.ends_with("_norm.weight") && !tensor.name.ends_with("_inp.weight");
}

// Embeddings and the output matrix, which suffer most from few bits.
bool IsVocabulary(const TensorInfo& tensor) {
  return tensor.name == "token_embd.weight" || tensor.name == "output.weight";
}

double BitsPerWeight(DType dtype) {
  return 8.0 * Info(dtype).block_bytes / Info(dtype).block_elements;
}

void AddTensor(const ModelSource* source, const TensorInfo* tensor, DType to, GgufWriter* writer) {
  auto converter = std::make_shared<RowConverter>(source, tensor, to);
  const auto cols = static_cast<uint64_t>(tensor->shape.empty() ? 1 : tensor->shape.back());
  const uint64_t row_bytes = RowBytes(to, cols);
  const auto part = [&](const std::string& name, DType dtype, std::span<const int64_t> shape,
                        uint64_t first, uint64_t count) {
    writer->AddTensor(name, dtype, shape, [=](uint64_t offset, std::span<std::byte> out) {
      return converter->Fill(first, count, offset, out);
    });
  };
  if (to != DType::kW8A8) return part(tensor->name, to, tensor->shape, 0, row_bytes);
  const uint64_t header = Info(to).row_header_bytes;
  part(tensor->name, DType::kI8, tensor->shape, header, row_bytes - header);
  part(tensor->name + "_scale", DType::kF32,
       std::span(tensor->shape).first(tensor->shape.size() - 1), 0, header);
}

}  // namespace

DType TypeForRows(DType wanted, int64_t cols) {
  if (cols % Info(wanted).block_elements == 0) return wanted;
  if (cols % 32 != 0) return DType::kF16;
  switch (wanted) {
    case DType::kQ4_K:
      return DType::kQ5_0;
    case DType::kQ5_K:
      return DType::kQ5_1;
    default:
      return DType::kQ8_0;
  }
}

absl::Status Requantize(const ModelSource& source, DType matrices, const std::string& path) {
  // A type without a quantiser is refused before anything is written.
  std::vector<float> zeros(256);
  std::vector<std::byte> bytes(RowBytes(matrices, zeros.size()));
  const absl::Status known = QuantizeRow(matrices, zeros, bytes);
  if (!known.ok()) return absl::InvalidArgumentError(std::string(Message(known)));
  GgufWriter writer;
  writer.AddMetadata(source.metadata);
  for (const TensorInfo& tensor : source.tensors) {
    if (tensor.bytes == 0) {
      writer.AddTensor(tensor.name, DType::kF32, tensor.shape, std::vector<std::byte>());
      continue;
    }
    DType to = IsMatrix(tensor) ? matrices : DType::kF32;
    if (IsMatrix(tensor) && IsVocabulary(tensor) && BitsPerWeight(matrices) < 6) to = DType::kQ6_K;
    AddTensor(&source, &tensor, TypeForRows(to, tensor.shape.empty() ? 1 : tensor.shape.back()),
              &writer);
  }
  return writer.Write(path);
}

}  // namespace terrace::format
