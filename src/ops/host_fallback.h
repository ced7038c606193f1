// Operators for a device whose memory the host can't reach and which has none of its own: operands
// are copied to the host, another backend computes, results are copied back. Right on any device
// and slow on all; a chip's folder derives from it and overrides what the chip can do. Weights lie
// as plain rows.
#ifndef TERRACE_OPS_HOST_FALLBACK_H_
#define TERRACE_OPS_HOST_FALLBACK_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "device/device.h"
#include "ops/backend.h"

namespace terrace::ops {

class HostFallback : public Backend {
 public:
  // `host` computes; `device` must outlive this.
  HostFallback(device::Device* device, std::unique_ptr<device::Stream> stream,
               std::unique_ptr<Backend> host);
  ~HostFallback() override;

  std::string_view name() const override { return name_; }
  bool host_addressable() const override { return false; }
  void SetUniform(bool uniform) override {
    uniform_ = uniform;
    host_->SetUniform(uniform);
  }
  Layout PreferredLayout(DType, int32_t, int32_t) const override { return Layout::kPlain; }
  uint64_t PackedBytes(Layout layout, DType dtype, int32_t rows, int32_t cols) const override {
    return host_->PackedBytes(layout, dtype, rows, cols);
  }
  absl::Status Pack(Layout layout, DType dtype, int32_t rows, int32_t cols,
                    std::span<const std::byte> source, std::span<std::byte> packed) const override {
    return host_->Pack(layout, dtype, rows, cols, source, packed);
  }

  absl::Status EmbedRows(const Weight& table, std::span<const int32_t> ids, float scale,
                         Matrix out) override;
  absl::Status RmsNorm(Matrix x, Vector weight, float eps, Matrix out) override;
  absl::Status RmsNormHeads(Matrix x, int32_t heads, Vector weight, float eps) override;
  absl::Status MatMul(Matrix x, std::span<const MatMulTarget> targets) override;
  absl::Status Rope(Matrix x, int32_t heads, int32_t head_dim, const BatchRows& batch,
                    const RopeParams& params) override;
  absl::Status StoreKv(Matrix k, Matrix v, int32_t layer, const KvGeometry& geometry,
                       const BatchRows& batch) override;
  absl::Status Attention(Matrix q, const AttentionParams& params, const KvGeometry& geometry,
                         const BatchRows& batch, Matrix out) override;
  absl::Status Glu(Activation activation, Matrix gate, Matrix up, Matrix out) override;
  absl::Status GluClamped(const GluClamp& clamp, Matrix gate, Matrix up, Matrix out) override;
  absl::Status ScaleBySigmoid(Matrix x, Vector gate, Matrix out) override;
  absl::Status Add(Matrix x, Matrix y) override;
  absl::Status Scale(Matrix x, float scale) override;
  absl::Status Softcap(Matrix x, float cap) override;
  absl::Status GatherRows(Matrix x, std::span<const int32_t> rows, Matrix out) override;
  absl::Status Zero(Matrix x) override;
  absl::Status AddScaledRows(Matrix x, std::span<const int32_t> rows, std::span<const float> shares,
                             Matrix out) override;
  absl::Status LayerNorm(Matrix x, Vector weight, Vector bias, float eps) override;
  absl::Status GeluErf(Matrix x) override;
  absl::Status AttendAll(Matrix q, Matrix k, Matrix v, int32_t heads, float scale,
                         const BatchRows& batch, Matrix out) override;
  absl::Status Pool(Matrix x, const BatchRows& batch, bool mean, bool normalize,
                    Matrix out) override;
  absl::Status Read(Matrix x, std::span<float> out) override;
  absl::Status Write(std::span<const float> in, Matrix x) override;
  absl::Status Synchronize() override;

 protected:
  device::Device* device() const { return device_; }
  device::Stream* stream() const { return stream_.get(); }
  // Waits for what the chip computes in other streams than stream(), before the host reads it.
  virtual absl::Status FinishOwn() { return absl::OkStatus(); }

 private:
  class Staging;

  device::Device* const device_;
  const std::string name_;
  std::unique_ptr<device::Stream> const stream_;
  std::unique_ptr<Backend> const host_;
};

}  // namespace terrace::ops

#endif  // TERRACE_OPS_HOST_FALLBACK_H_
