#include "staged_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "device/opencl/opencl_device.h"
#include "ops/cpu/packing.h"
#include "ops/opencl/kernel_backend.h"

namespace terrace::ops {
namespace {

std::unique_ptr<device::Device> MakeDevice(Items items) {
  device::OpenClOptions options;
  options.memory_bytes = uint64_t{256} << 20;
  // Small, so that addresses lie in different buffers.
  options.buffer_bytes = uint64_t{64} << 20;
  options.scalar_items = items != Items::kVectors;
  options.wide_tiles = items == Items::kLanesWithWideTiles;
  options.tile_product = items == Items::kLanesWithTiles || options.wide_tiles;
  if (items == Items::kLanesWithSubgroups) {
    options.subgroups = device::OpenClOptions::Subgroups::kEmulated;
  }
  auto made = device::CreateOpenClDevice(options);
  EXPECT_TRUE(made.ok()) << made.status();
  return made.ok() ? *std::move(made) : nullptr;
}

device::Device* SharedDevice(Items items) {
  static std::map<Items, std::unique_ptr<device::Device>> devices;
  std::unique_ptr<device::Device>& device = devices[items];
  if (device == nullptr) device = MakeDevice(items);
  return device.get();
}

// The operands of one call: ranges of host memory, each with its place on the device.
class Staging {
 public:
  explicit Staging(device::Device* device)
      : device_(device), stream_(device_->CreateStream().value()) {}
  ~Staging() {
    for (auto& [host, range] : ranges_) device_->Free(range.device, range.bytes);
  }

  // Where the bytes of `host` are on the device.
  const std::byte* In(const void* host, size_t bytes) {
    if (host == nullptr) return nullptr;
    const auto* begin = static_cast<const std::byte*>(host);
    // A view inside one that is there already.
    for (const auto& [at, range] : ranges_) {
      if (begin >= at && begin + bytes <= at + range.bytes) return range.device + (begin - at);
    }
    std::byte* to = device_->Allocate(std::max<size_t>(bytes, 1)).value();
    EXPECT_TRUE(stream_->CopyAsync(device::CopyDirection::kHostToDevice, to, begin, bytes).ok());
    EXPECT_TRUE(stream_->Synchronize().ok());
    ranges_[begin] = {to, bytes, nullptr};
    return to;
  }
  std::byte* InOut(void* host, size_t bytes) {
    const std::byte* to = In(host, bytes);
    for (auto& [at, range] : ranges_) {
      if (to >= range.device && to < range.device + range.bytes) {
        range.back = const_cast<std::byte*>(at);
      }
    }
    return const_cast<std::byte*>(to);
  }

  Matrix In(Matrix m) {
    m.data = reinterpret_cast<float*>(const_cast<std::byte*>(In(m.data, Bytes(m))));
    return m;
  }
  Matrix InOut(Matrix m) {
    m.data = reinterpret_cast<float*>(InOut(m.data, Bytes(m)));
    return m;
  }
  Vector In(Vector v) {
    v.data = reinterpret_cast<const float*>(In(v.data, static_cast<size_t>(v.size) * 4));
    return v;
  }
  // Plain rows are packed on the way, as an importer does.
  Weight In(Weight w) {
    if (w.data == nullptr || w.rows <= 0 || w.cols <= 0) return w;
    if (!cpu::Packable(w.dtype) ||
        w.cols % static_cast<int32_t>(Info(w.dtype).block_elements) != 0) {
      return w;  // refused before it is read
    }
    const uint64_t bytes = cpu::PackedMatrixBytes(Layout::kRows16, w.dtype, w.rows, w.cols);
    if (w.layout == Layout::kPlain) {
      packed_.emplace_back(bytes);
      const uint64_t plain = cpu::PackedMatrixBytes(Layout::kPlain, w.dtype, w.rows, w.cols);
      EXPECT_TRUE(
          cpu::PackMatrix(Layout::kRows16, w.dtype, w.rows, w.cols, {w.data, plain}, packed_.back())
              .ok());
      w.layout = Layout::kRows16;
      w.data = packed_.back().data();
    }
    w.data = In(w.data, bytes);
    return w;
  }
  // A batch with its KV blocks on the device; valid as long as this.
  BatchRows In(const BatchRows& batch, const KvGeometry& geometry, bool written) {
    BatchRows out = batch;
    for (const SequenceRows& s : batch.sequences) {
      blocks_.emplace_back();
      for (std::byte* block : s.blocks) {
        blocks_.back().push_back(written
                                     ? InOut(block, geometry.block_bytes())
                                     : const_cast<std::byte*>(In(block, geometry.block_bytes())));
      }
      sequences_.push_back(s);
    }
    for (size_t i = 0; i < sequences_.size(); ++i) sequences_[i].blocks = blocks_[i];
    out.sequences = sequences_;
    return out;
  }

  // Copies back what was InOut.
  absl::Status Finish(absl::Status status, Backend& backend) {
    const absl::Status waited = backend.Synchronize();
    if (status.ok()) status = waited;
    for (auto& [host, range] : ranges_) {
      if (range.back == nullptr) continue;
      EXPECT_TRUE(stream_
                      ->CopyAsync(device::CopyDirection::kDeviceToHost, range.back, range.device,
                                  range.bytes)
                      .ok());
    }
    EXPECT_TRUE(stream_->Synchronize().ok());
    return status;
  }

 private:
  struct Range {
    std::byte* device = nullptr;
    size_t bytes = 0;
    std::byte* back = nullptr;
  };
  static size_t Bytes(const Matrix& m) {
    if (m.data == nullptr || m.rows <= 0) return 0;
    return (static_cast<size_t>(m.rows - 1) * static_cast<size_t>(m.stride) +
            static_cast<size_t>(m.cols)) *
           4;
  }

  device::Device* const device_;
  std::unique_ptr<device::Stream> stream_;
  std::map<const std::byte*, Range> ranges_;
  std::vector<std::vector<std::byte>> packed_;
  std::vector<std::vector<std::byte*>> blocks_;
  std::vector<SequenceRows> sequences_;
};

class StagedBackend final : public Backend {
 public:
  StagedBackend(device::Device* device, std::unique_ptr<Backend> inner)
      : device_(device), inner_(std::move(inner)) {}

  std::string_view name() const override { return inner_->name(); }
  Layout PreferredLayout(DType dtype, int32_t rows, int32_t cols) const override {
    return inner_->PreferredLayout(dtype, rows, cols);
  }
  uint64_t PackedBytes(Layout layout, DType dtype, int32_t rows, int32_t cols) const override {
    return inner_->PackedBytes(layout, dtype, rows, cols);
  }
  absl::Status Pack(Layout layout, DType dtype, int32_t rows, int32_t cols,
                    std::span<const std::byte> source, std::span<std::byte> packed) const override {
    return inner_->Pack(layout, dtype, rows, cols, source, packed);
  }
  absl::Status EmbedRows(const Weight& table, std::span<const int32_t> ids, float scale,
                         Matrix out) override {
    Staging s(device_);
    return s.Finish(inner_->EmbedRows(s.In(table), ids, scale, s.InOut(out)), *inner_);
  }
  absl::Status RmsNorm(Matrix x, Vector weight, float eps, Matrix out) override {
    Staging s(device_);
    return s.Finish(inner_->RmsNorm(s.In(x), s.In(weight), eps, s.InOut(out)), *inner_);
  }
  absl::Status RmsNormHeads(Matrix x, int32_t heads, Vector weight, float eps) override {
    Staging s(device_);
    return s.Finish(inner_->RmsNormHeads(s.InOut(x), heads, s.In(weight), eps), *inner_);
  }
  absl::Status MatMul(Matrix x, std::span<const MatMulTarget> targets) override {
    Staging s(device_);
    const Matrix input = s.In(x);
    std::vector<MatMulTarget> staged(targets.begin(), targets.end());
    for (MatMulTarget& target : staged) {
      target.weight = s.In(target.weight);
      target.bias = s.In(target.bias);
      target.out = s.InOut(target.out);
    }
    return s.Finish(inner_->MatMul(input, staged), *inner_);
  }
  absl::Status Rope(Matrix x, int32_t heads, int32_t head_dim, const BatchRows& batch,
                    const RopeParams& params) override {
    Staging s(device_);
    return s.Finish(inner_->Rope(s.InOut(x), heads, head_dim, batch, params), *inner_);
  }
  absl::Status StoreKv(Matrix k, Matrix v, int32_t layer, const KvGeometry& geometry,
                       const BatchRows& batch) override {
    Staging s(device_);
    const BatchRows staged = s.In(batch, geometry, true);
    return s.Finish(inner_->StoreKv(s.In(k), s.In(v), layer, geometry, staged), *inner_);
  }
  absl::Status Attention(Matrix q, const AttentionParams& params, const KvGeometry& geometry,
                         const BatchRows& batch, Matrix out) override {
    Staging s(device_);
    AttentionParams with_sinks = params;
    with_sinks.sinks = s.In(params.sinks);
    const BatchRows staged = s.In(batch, geometry, false);
    return s.Finish(inner_->Attention(s.In(q), with_sinks, geometry, staged, s.InOut(out)),
                    *inner_);
  }
  absl::Status Glu(Activation activation, Matrix gate, Matrix up, Matrix out) override {
    Staging s(device_);
    return s.Finish(inner_->Glu(activation, s.In(gate), s.In(up), s.InOut(out)), *inner_);
  }
  absl::Status GluClamped(const GluClamp& clamp, Matrix gate, Matrix up, Matrix out) override {
    Staging s(device_);
    return s.Finish(inner_->GluClamped(clamp, s.In(gate), s.In(up), s.InOut(out)), *inner_);
  }
  absl::Status ExpertFfn(Matrix x, const ExpertRouting& routing, const ExpertWeights& weights,
                         const ExpertScratch& scratch, Matrix out) override {
    Staging s(device_);
    ExpertWeights w = weights;
    for (WeightStack* stack : {&w.gate, &w.up, &w.down}) {
      stack->first.data =
          s.In(stack->first.data, stack->stride * static_cast<uint64_t>(stack->count));
    }
    for (Vector* bias : {&w.gate_bias, &w.up_bias, &w.down_bias}) *bias = s.In(*bias);
    const ExpertScratch room = {s.InOut(scratch.gathered), s.InOut(scratch.gate),
                                s.InOut(scratch.up), s.InOut(scratch.down)};
    return s.Finish(inner_->ExpertFfn(s.In(x), routing, w, room, s.InOut(out)), *inner_);
  }
  absl::Status Add(Matrix x, Matrix y) override {
    Staging s(device_);
    return s.Finish(inner_->Add(s.InOut(x), s.In(y)), *inner_);
  }
  absl::Status Scale(Matrix x, float scale) override {
    Staging s(device_);
    return s.Finish(inner_->Scale(s.InOut(x), scale), *inner_);
  }
  absl::Status Softcap(Matrix x, float cap) override {
    Staging s(device_);
    return s.Finish(inner_->Softcap(s.InOut(x), cap), *inner_);
  }
  absl::Status GatherRows(Matrix x, std::span<const int32_t> rows, Matrix out) override {
    Staging s(device_);
    return s.Finish(inner_->GatherRows(s.In(x), rows, s.InOut(out)), *inner_);
  }
  void SetUniform(bool uniform) override { inner_->SetUniform(uniform); }
  absl::Status Synchronize() override { return inner_->Synchronize(); }

 private:
  device::Device* const device_;
  std::unique_ptr<Backend> inner_;
};

}  // namespace

bool HaveKernelDevice() {
  const auto found = device::ListOpenClDevices();
  return found.ok() && !found->empty();
}

std::unique_ptr<Backend> CreateStagedBackend(Items items) {
  auto inner = CreateKernelBackend(SharedDevice(items));
  EXPECT_TRUE(inner.ok()) << inner.status();
  if (!inner.ok()) return nullptr;
  return std::make_unique<StagedBackend>(SharedDevice(items), *std::move(inner));
}

std::unique_ptr<Backend> CreateStagedBackend(device::Device* device,
                                             std::unique_ptr<Backend> backend) {
  return std::make_unique<StagedBackend>(device, std::move(backend));
}

}  // namespace terrace::ops
