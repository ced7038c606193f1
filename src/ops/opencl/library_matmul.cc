#include "ops/opencl/library_matmul.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/status.h"
#include "base/units.h"
#include "ops/cpu/packing.h"
#include "ops/opencl/kernel_backend.h"
#include "ops/opencl/kernel_sources.h"

namespace terrace::ops {
namespace {

using device::KernelArgument;

constexpr uint64_t kMostRoom = 64 * kMiB;
constexpr int32_t kGroupRows = 16;
constexpr int32_t kUnpackColumns = 64;  // matmul.cl
constexpr int32_t kAlignedColumns = 8;  // 16 bytes, which libraries want of rows
constexpr uint32_t kItems = 64;

device::LaunchShape Elements(int64_t count) {
  const auto groups = static_cast<uint32_t>((count + kItems - 1) / kItems);
  return {{groups, 1, 1}, {kItems, 1, 1}};
}

}  // namespace

LibraryMatMul::LibraryMatMul(device::Device* device, device::Stream* stream, int32_t rows,
                             std::function<void(const std::string&)> tell, RunKernel run)
    : device_(device),
      library_(dynamic_cast<device::MatrixStream*>(stream)),
      rows_(rows),
      tell_(std::move(tell)),
      run_(std::move(run)) {
  if (library_ == nullptr || rows <= 0) return;
  if (absl::Status opened = library_->OpenMatrices(); !opened.ok()) {
    GiveUp(opened);
    return;
  }
  room_bytes_ = std::min(kMostRoom, device->info().memory_bytes / 64) / kMiB * kMiB;
  absl::StatusOr<std::byte*> room = device->Allocate(std::max(room_bytes_, kMiB));
  if (!room.ok()) {
    GiveUp(room.status());
    return;
  }
  room_bytes_ = std::max(room_bytes_, kMiB);
  room_ = *room;
  works_ = true;
}

LibraryMatMul::~LibraryMatMul() { device_->Free(room_, room_bytes_); }

void LibraryMatMul::GiveUp(const absl::Status& why) {
  works_ = false;
  if (tell_ != nullptr) {
    tell_(
        fmt::format("matrices are multiplied by kernels of this program alone: {}", Message(why)));
  }
}

bool LibraryMatMul::Takes(const Matrix& x, const Weight& w) const {
  if (!works_ || w.dtype == DType::kF32 || w.cols % kAlignedColumns != 0) return false;
  // At most half of the room is for x, the rest for at least one group of W.
  const uint64_t row_bytes = static_cast<uint64_t>(w.cols) * 2;
  if (static_cast<uint64_t>(x.rows) * row_bytes > room_bytes_ / 2) return false;
  if (kGroupRows * row_bytes > room_bytes_ / 2) return false;
  if (w.dtype == DType::kF16 || w.dtype == DType::kBF16) return x.rows >= rows_;
  return !device_->info().tile_product && x.rows >= int64_t{kLibraryFactor} * rows_;
}

bool LibraryMatMul::Multiply(const Matrix& x, const MatMulTarget& target, bool first) {
  const absl::Status status = TryMultiply(x, target, first);
  if (!status.ok()) GiveUp(status);
  return status.ok();
}

absl::Status LibraryMatMul::TryMultiply(const Matrix& x, const MatMulTarget& target, bool first) {
  const Weight& w = target.weight;
  const std::string defines = MatMulDefines(w.dtype);
  const uint64_t row_bytes = static_cast<uint64_t>(w.cols) * 2;
  if (first) {
    const KernelArgument arguments[] = {
        KernelArgument::Memory(x.data), KernelArgument::Memory(room_),
        KernelArgument::Value(x.rows), KernelArgument::Value(x.cols),
        KernelArgument::Value(x.stride)};
    RETURN_IF_ERROR(run_("to_bf16", defines, Elements(int64_t{x.rows} * (x.cols / 2)), arguments));
  }
  std::byte* const piece = room_ + room_bytes_ / 2;
  const auto most = static_cast<int32_t>(room_bytes_ / 2 / row_bytes) / kGroupRows * kGroupRows;
  for (int32_t row = 0; row < w.rows; row += most) {
    const int32_t rows = std::min(most, w.rows - row);
    const KernelArgument arguments[] = {
        KernelArgument::Memory(w.data),
        KernelArgument::Memory(piece),
        KernelArgument::Value(row),
        KernelArgument::Value(rows),
        KernelArgument::Value(w.cols),
        KernelArgument::Value(static_cast<int64_t>(cpu::PackedGroupBytes(w.dtype, w.cols)))};
    device::LaunchShape shape;
    shape.groups = {static_cast<uint32_t>((rows + kGroupRows - 1) / kGroupRows),
                    static_cast<uint32_t>((w.cols + kUnpackColumns - 1) / kUnpackColumns), 1};
    if (!device_->info().vector_items) shape.items = {kGroupRows, 8, 1};
    RETURN_IF_ERROR(run_("unpack", defines, shape, arguments));
    device::MatrixProduct product{piece, rows, w.cols, room_, x.rows, w.cols, w.cols};
    product.out = target.out.data + row;
    product.out_stride = target.out.stride;
    RETURN_IF_ERROR(library_->Multiply(product));
  }
  if (target.bias.data == nullptr) return absl::OkStatus();
  const KernelArgument arguments[] = {
      KernelArgument::Memory(target.out.data), KernelArgument::Memory(target.bias.data),
      KernelArgument::Value(target.out.rows), KernelArgument::Value(target.out.cols),
      KernelArgument::Value(target.out.stride)};
  return run_("add_bias", "", Elements(int64_t{target.out.rows} * target.out.cols), arguments);
}

}  // namespace terrace::ops
