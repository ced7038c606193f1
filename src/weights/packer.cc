#include "weights/packer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/status.h"
#include "base/units.h"
#include "tensor/dequantize.h"

namespace terrace::weights {
namespace {

// Source bytes read at once.
constexpr uint64_t kChunkBytes = 2 * kMiB;

void Zero(std::span<std::byte> out) {
  if (!out.empty()) std::memset(out.data(), 0, out.size());
}

}  // namespace

absl::Status Packer::Fill(uint32_t segment, uint64_t begin, std::span<std::byte> out,
                          Scratch* scratch) const {
  const PlannedSegment& plan = plan_->segments[segment];
  uint64_t end = begin + out.size(), done = begin;
  // The first tensor that ends after `begin`.
  auto first = std::partition_point(plan.tensors.begin(), plan.tensors.end(), [&](uint32_t index) {
    const TensorPlace& place = plan_->tensors[index].place;
    return place.offset + place.bytes <= begin;
  });
  for (auto it = first; it != plan.tensors.end(); ++it) {
    const PlannedTensor& tensor = plan_->tensors[*it];
    if (tensor.place.offset >= end) break;
    if (tensor.place.bytes == 0) continue;
    uint64_t from = std::max(done, tensor.place.offset);
    uint64_t to = std::min(end, tensor.place.offset + tensor.place.bytes);
    Zero(out.subspan(done - begin, from - done));
    // Of a spread stack this segment has one matrix.
    const uint64_t skip =
        tensor.place.spread ? static_cast<uint64_t>(plan.expert) * tensor.matrix_bytes : 0;
    absl::Status status = FillTensor(tensor, skip + from - tensor.place.offset,
                                     out.subspan(from - begin, to - from), scratch);
    if (!status.ok()) {
      return WithContext(status, fmt::format("packing tensor '{}'", tensor.place.name));
    }
    done = to;
  }
  Zero(out.subspan(done - begin));
  return absl::OkStatus();
}

absl::Status Packer::FillTensor(const PlannedTensor& tensor, uint64_t begin,
                                std::span<std::byte> out, Scratch* scratch) const {
  while (!out.empty()) {
    uint64_t matrix = begin / tensor.matrix_bytes, inside = begin % tensor.matrix_bytes;
    uint64_t count = std::min<uint64_t>(out.size(), tensor.matrix_bytes - inside);
    RETURN_IF_ERROR(FillMatrix(tensor, matrix, inside, out.first(count), scratch));
    begin += count;
    out = out.subspan(count);
  }
  return absl::OkStatus();
}

absl::Status Packer::FillMatrix(const PlannedTensor& tensor, uint64_t matrix, uint64_t begin,
                                std::span<std::byte> out, Scratch* scratch) const {
  const uint64_t groups = CeilDiv(tensor.rows, tensor.group_rows);
  const uint64_t group_source = tensor.group_rows * tensor.source_row_bytes;
  const uint64_t chunk_groups = std::max<uint64_t>(1, kChunkBytes / group_source);
  auto group_end = [&](uint64_t group) {  // where groups up to and with `group` end
    return group + 1 == groups ? tensor.matrix_bytes : (group + 1) * tensor.group_bytes;
  };
  const uint64_t end = begin + out.size();
  while (begin < end) {
    uint64_t group = std::min(begin / tensor.group_bytes, groups - 1);
    uint64_t group_start = group * tensor.group_bytes;
    uint64_t last = group;  // whole groups from `group` to `last` fit
    while (last + 1 < groups && last + 1 - group < chunk_groups && group_end(last + 1) <= end)
      ++last;
    uint64_t first_row = group * tensor.group_rows;
    uint64_t rows = std::min(tensor.rows, (last + 1) * tensor.group_rows) - first_row;
    uint64_t bytes = group_end(last) - group_start;
    uint64_t count;
    if (group_start == begin && group_end(last) <= end) {
      count = bytes;
      RETURN_IF_ERROR(
          ConvertRows(tensor, matrix * tensor.rows + first_row, rows, out.first(count), scratch));
    } else {
      // The range cuts this group: make all of it and take the part.
      rows = std::min(tensor.group_rows, tensor.rows - first_row);
      bytes = group_end(group) - group_start;
      scratch->group.resize(bytes);
      RETURN_IF_ERROR(ConvertRows(tensor, matrix * tensor.rows + first_row, rows,
                                  std::span(scratch->group), scratch));
      count = std::min(end, group_start + bytes) - begin;
      std::memcpy(out.data(), scratch->group.data() + (begin - group_start), count);
    }
    out = out.subspan(count);
    begin += count;
  }
  return absl::OkStatus();
}

absl::Status Packer::ConvertRows(const PlannedTensor& tensor, uint64_t first_row, uint64_t rows,
                                 std::span<std::byte> out, Scratch* scratch) const {
  const format::TensorInfo& info = source_->tensors[tensor.source];
  uint64_t bytes = rows * tensor.source_row_bytes;
  uint64_t offset = first_row * tensor.source_row_bytes;
  if (tensor.conversion == Conversion::kCopy) return source_->ReadTensor(info, offset, out);
  if (scratch->source.size() < bytes) scratch->source.resize(bytes);
  std::span<std::byte> source(scratch->source.data(), bytes);
  RETURN_IF_ERROR(source_->ReadTensor(info, offset, source));
  if (tensor.conversion == Conversion::kFloats) {
    uint64_t elements = rows * Info(info.dtype).block_elements;
    // Groups start at multiples of 4 bytes of a tensor that is 64-byte aligned in the segment.
    DequantizeRow(info.dtype, source.data(),
                  std::span(reinterpret_cast<float*>(out.data()), elements));
    return absl::OkStatus();
  }
  // A last group of fewer rows may leave some of its bytes unwritten.
  if (rows % tensor.group_rows != 0) Zero(out.last(std::min(out.size(), tensor.group_bytes)));
  return backend_->Pack(tensor.place.layout, info.dtype, static_cast<int32_t>(rows), tensor.cols,
                        source, out);
}

}  // namespace terrace::weights
