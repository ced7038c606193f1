#include "ops/host_fallback.h"

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "base/status.h"
#include "ops/check.h"

namespace terrace::ops {

using device::CopyDirection;

// The operands of one call in host memory. Copies are queued; the first error is kept and told at
// Finish, which also takes results back to the device.
class HostFallback::Staging {
 public:
  explicit Staging(HostFallback* backend)
      : stream_(backend->stream_.get()), status_(backend->FinishOwn()) {}

  Matrix In(const Matrix& m) { return Bring(m, true, false); }
  Matrix Out(const Matrix& m) { return Bring(m, false, true); }
  Matrix InOut(const Matrix& m) { return Bring(m, true, true); }
  Vector In(const Vector& v) {
    if (v.data == nullptr || v.size <= 0) return v;
    return {reinterpret_cast<const float*>(Bytes(v.data, static_cast<size_t>(v.size) * 4)), v.size};
  }
  Weight In(const Weight& w, uint64_t bytes) {
    Weight here = w;
    if (w.data != nullptr) here.data = Bytes(w.data, bytes);
    return here;
  }
  const std::byte* Bytes(const void* device, uint64_t bytes) {
    std::vector<std::byte>& room = rooms_.emplace_back(bytes);
    Copy(CopyDirection::kDeviceToHost, room.data(), static_cast<const std::byte*>(device), bytes);
    return room.data();
  }

  // A batch whose blocks hold `layer` alone, at its place; the rest of a block is not touched.
  BatchRows In(const BatchRows& batch, const KvGeometry& geometry, int32_t layer, bool written) {
    const uint64_t offset = geometry.key_offset(layer, 0), bytes = geometry.layer_bytes();
    BatchRows out = batch;
    for (const SequenceRows& s : batch.sequences) {
      std::vector<std::byte*>& blocks = blocks_.emplace_back();
      const int32_t used = (s.start + s.rows + kKvBlockTokens - 1) / kKvBlockTokens;
      for (int32_t i = 0; i < static_cast<int32_t>(s.blocks.size()); ++i) {
        std::byte* device = s.blocks[static_cast<size_t>(i)];
        if (device == nullptr || i >= used) {  // let go by a window, or not written yet
          blocks.push_back(nullptr);
          continue;
        }
        std::byte* here = const_cast<std::byte*>(Bytes(device + offset, bytes));
        blocks.push_back(here - offset);
        if (written && (i + 1) * kKvBlockTokens > s.start)
          backs_.push_back({device + offset, here, bytes});
      }
      SequenceRows& rows = sequences_.emplace_back(s);
      rows.blocks = blocks;
    }
    out.sequences = sequences_;
    return out;
  }

  // Waits for what was asked for. To be called before the host computes.
  absl::Status Arrive() {
    if (!status_.ok()) return status_;
    return Settle();
  }
  // After the host has computed with `status`.
  absl::Status Finish(const absl::Status& status) {
    RETURN_IF_ERROR(status);
    for (const Back& back : backs_)
      Copy(CopyDirection::kHostToDevice, back.to, back.from, back.bytes);
    if (!status_.ok()) return status_;
    return Settle();
  }

 private:
  struct Back {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    uint64_t bytes = 0;
  };

  Matrix Bring(const Matrix& m, bool in, bool out) {
    if (m.data == nullptr || m.rows <= 0 || m.cols <= 0) return m;
    // The same rows twice are one operand.
    for (const auto& [device, here] : matrices_) {
      if (device.data != m.data || device.stride != m.stride) continue;
      if (device.rows < m.rows || device.cols < m.cols) continue;
      if (out) GoBack(m, here);
      return {here.data, m.rows, m.cols, here.stride};
    }
    std::vector<std::byte>& room =
        rooms_.emplace_back(static_cast<size_t>(m.rows) * static_cast<size_t>(m.cols) * 4);
    Matrix here{reinterpret_cast<float*>(room.data()), m.rows, m.cols, m.cols};
    for (int32_t r = 0; in && r < m.rows; ++r) {
      Copy(CopyDirection::kDeviceToHost, reinterpret_cast<std::byte*>(here.row(r)),
           reinterpret_cast<const std::byte*>(m.row(r)), static_cast<uint64_t>(m.cols) * 4);
    }
    matrices_.emplace_back(m, here);
    if (out) GoBack(m, here);
    return here;
  }
  void GoBack(const Matrix& device, const Matrix& here) {
    for (int32_t r = 0; r < device.rows; ++r) {
      backs_.push_back({reinterpret_cast<std::byte*>(device.row(r)),
                        reinterpret_cast<const std::byte*>(here.row(r)),
                        static_cast<uint64_t>(device.cols) * 4});
    }
  }
  void Copy(CopyDirection direction, std::byte* to, const std::byte* from, uint64_t bytes) {
    if (status_.ok()) status_ = stream_->CopyAsync(direction, to, from, bytes);
  }
  absl::Status Settle() {
    absl::Status status = stream_->Synchronize();
    if (!status.ok()) stream_->ClearError();
    return status;
  }

  device::Stream* const stream_;
  absl::Status status_;
  std::deque<std::vector<std::byte>> rooms_;
  std::vector<std::pair<Matrix, Matrix>> matrices_;
  std::vector<Back> backs_;
  std::deque<std::vector<std::byte*>> blocks_;
  std::vector<SequenceRows> sequences_;
};

HostFallback::HostFallback(device::Device* device, std::unique_ptr<device::Stream> stream,
                           std::unique_ptr<Backend> host)
    : device_(device),
      name_(device->info().kind),
      stream_(std::move(stream)),
      host_(std::move(host)) {}

HostFallback::~HostFallback() { stream_->Synchronize().IgnoreError(); }

absl::Status HostFallback::EmbedRows(const Weight& table, std::span<const int32_t> ids, float scale,
                                     Matrix out) {
  RETURN_IF_ERROR(CheckEmbed(table, ids, out));
  if (table.layout != Layout::kPlain) {
    return absl::UnimplementedError("EmbedRows: only plain rows can be fetched one by one");
  }
  // Only the rows that are asked for, one after the other.
  Staging s(this);
  const uint64_t row_bytes = RowBytes(table.dtype, static_cast<uint64_t>(table.cols));
  std::vector<std::byte> rows(row_bytes * ids.size());
  std::vector<int32_t> all(ids.size());
  std::vector<const std::byte*> arrived;
  for (size_t i = 0; i < ids.size(); ++i) {
    arrived.push_back(s.Bytes(table.data + row_bytes * static_cast<uint64_t>(ids[i]), row_bytes));
    all[i] = static_cast<int32_t>(i);
  }
  const Matrix to = s.Out(out);
  RETURN_IF_ERROR(s.Arrive());
  for (size_t i = 0; i < ids.size(); ++i) {
    std::copy_n(arrived[i], row_bytes, rows.begin() + static_cast<ptrdiff_t>(row_bytes * i));
  }
  Weight here = table;
  here.data = rows.data();
  here.rows = static_cast<int32_t>(ids.size());
  return s.Finish(ids.empty() ? absl::OkStatus() : host_->EmbedRows(here, all, scale, to));
}

absl::Status HostFallback::RmsNorm(Matrix x, Vector weight, float eps, Matrix out) {
  Staging s(this);
  const Matrix from = s.In(x), to = s.Out(out);
  const Vector w = s.In(weight);
  RETURN_IF_ERROR(s.Arrive());
  return s.Finish(host_->RmsNorm(from, w, eps, to));
}

absl::Status HostFallback::RmsNormHeads(Matrix x, int32_t heads, Vector weight, float eps) {
  Staging s(this);
  const Matrix here = s.InOut(x);
  const Vector w = s.In(weight);
  RETURN_IF_ERROR(s.Arrive());
  return s.Finish(host_->RmsNormHeads(here, heads, w, eps));
}

absl::Status HostFallback::MatMul(Matrix x, std::span<const MatMulTarget> targets) {
  RETURN_IF_ERROR(CheckMatMul(x, targets));
  Staging s(this);
  const Matrix from = s.In(x);
  std::vector<MatMulTarget> here;
  for (const MatMulTarget& target : targets) {
    const Weight& w = target.weight;
    here.push_back({s.In(w, host_->PackedBytes(w.layout, w.dtype, w.rows, w.cols)),
                    s.In(target.bias), s.Out(target.out)});
  }
  RETURN_IF_ERROR(s.Arrive());
  return s.Finish(host_->MatMul(from, here));
}

absl::Status HostFallback::Rope(Matrix x, int32_t heads, int32_t head_dim, const BatchRows& batch,
                                const RopeParams& params) {
  Staging s(this);
  const Matrix here = s.InOut(x);
  RETURN_IF_ERROR(s.Arrive());
  return s.Finish(host_->Rope(here, heads, head_dim, batch, params));
}

absl::Status HostFallback::StoreKv(Matrix k, Matrix v, int32_t layer, const KvGeometry& geometry,
                                   const BatchRows& batch) {
  RETURN_IF_ERROR(CheckStoreKv(k, v, layer, geometry, batch));
  Staging s(this);
  const Matrix keys = s.In(k), values = s.In(v);
  const BatchRows here = s.In(batch, geometry, layer, true);
  RETURN_IF_ERROR(s.Arrive());
  return s.Finish(host_->StoreKv(keys, values, layer, geometry, here));
}

absl::Status HostFallback::Attention(Matrix q, const AttentionParams& params,
                                     const KvGeometry& geometry, const BatchRows& batch,
                                     Matrix out) {
  RETURN_IF_ERROR(CheckAttention(q, params, geometry, batch, out));
  Staging s(this);
  const Matrix queries = s.In(q), to = s.InOut(out);
  AttentionParams with_sinks = params;
  with_sinks.sinks = s.In(params.sinks);
  const BatchRows here = s.In(batch, geometry, params.layer, false);
  RETURN_IF_ERROR(s.Arrive());
  return s.Finish(host_->Attention(queries, with_sinks, geometry, here, to));
}

absl::Status HostFallback::Glu(Activation activation, Matrix gate, Matrix up, Matrix out) {
  Staging s(this);
  const Matrix g = s.In(gate), u = s.In(up), to = s.Out(out);
  RETURN_IF_ERROR(s.Arrive());
  return s.Finish(host_->Glu(activation, g, u, to));
}

absl::Status HostFallback::GluClamped(const GluClamp& clamp, Matrix gate, Matrix up, Matrix out) {
  Staging s(this);
  const Matrix g = s.In(gate), u = s.In(up), to = s.Out(out);
  RETURN_IF_ERROR(s.Arrive());
  return s.Finish(host_->GluClamped(clamp, g, u, to));
}

absl::Status HostFallback::ScaleBySigmoid(Matrix x, Vector gate, Matrix out) {
  Staging s(this);
  const Matrix from = s.In(x), to = s.InOut(out);
  const Vector g = s.In(gate);
  RETURN_IF_ERROR(s.Arrive());
  return s.Finish(host_->ScaleBySigmoid(from, g, to));
}

absl::Status HostFallback::Add(Matrix x, Matrix y) {
  Staging s(this);
  const Matrix to = s.InOut(x), from = s.In(y);
  RETURN_IF_ERROR(s.Arrive());
  return s.Finish(host_->Add(to, from));
}

absl::Status HostFallback::Scale(Matrix x, float scale) {
  Staging s(this);
  const Matrix here = s.InOut(x);
  RETURN_IF_ERROR(s.Arrive());
  return s.Finish(host_->Scale(here, scale));
}

absl::Status HostFallback::Softcap(Matrix x, float cap) {
  Staging s(this);
  const Matrix here = s.InOut(x);
  RETURN_IF_ERROR(s.Arrive());
  return s.Finish(host_->Softcap(here, cap));
}

absl::Status HostFallback::GatherRows(Matrix x, std::span<const int32_t> rows, Matrix out) {
  Staging s(this);
  const Matrix from = s.In(x), to = s.Out(out);
  RETURN_IF_ERROR(s.Arrive());
  return s.Finish(host_->GatherRows(from, rows, to));
}

absl::Status HostFallback::Zero(Matrix x) {
  Staging s(this);
  const Matrix here = s.Out(x);
  RETURN_IF_ERROR(s.Arrive());
  return s.Finish(host_->Zero(here));
}

absl::Status HostFallback::AddScaledRows(Matrix x, std::span<const int32_t> rows,
                                         std::span<const float> shares, Matrix out) {
  Staging s(this);
  const Matrix from = s.In(x), to = s.InOut(out);
  RETURN_IF_ERROR(s.Arrive());
  return s.Finish(host_->AddScaledRows(from, rows, shares, to));
}

absl::Status HostFallback::LayerNorm(Matrix x, Vector weight, Vector bias, float eps) {
  Staging s(this);
  const Matrix here = s.InOut(x);
  const Vector w = s.In(weight), b = s.In(bias);
  RETURN_IF_ERROR(s.Arrive());
  return s.Finish(host_->LayerNorm(here, w, b, eps));
}

absl::Status HostFallback::GeluErf(Matrix x) {
  Staging s(this);
  const Matrix here = s.InOut(x);
  RETURN_IF_ERROR(s.Arrive());
  return s.Finish(host_->GeluErf(here));
}

absl::Status HostFallback::AttendAll(Matrix q, Matrix k, Matrix v, int32_t heads, float scale,
                                     const BatchRows& batch, Matrix out) {
  Staging s(this);
  const Matrix queries = s.In(q), keys = s.In(k), values = s.In(v), to = s.InOut(out);
  RETURN_IF_ERROR(s.Arrive());
  return s.Finish(host_->AttendAll(queries, keys, values, heads, scale, batch, to));
}

absl::Status HostFallback::Pool(Matrix x, const BatchRows& batch, bool mean, bool normalize,
                                Matrix out) {
  Staging s(this);
  const Matrix from = s.In(x), to = s.Out(out);
  RETURN_IF_ERROR(s.Arrive());
  return s.Finish(host_->Pool(from, batch, mean, normalize, to));
}

absl::Status HostFallback::Read(Matrix x, std::span<float> out) {
  RETURN_IF_ERROR(CheckRead(x, out));
  RETURN_IF_ERROR(FinishOwn());
  for (int32_t r = 0; r < x.rows; ++r) {
    RETURN_IF_ERROR(stream_->CopyAsync(
        CopyDirection::kDeviceToHost,
        reinterpret_cast<std::byte*>(out.data() + int64_t{r} * x.cols),
        reinterpret_cast<const std::byte*>(x.row(r)), static_cast<uint64_t>(x.cols) * 4));
  }
  return Synchronize();
}

absl::Status HostFallback::Write(std::span<const float> in, Matrix x) {
  RETURN_IF_ERROR(CheckRead(x, in));
  RETURN_IF_ERROR(FinishOwn());
  for (int32_t r = 0; r < x.rows; ++r) {
    RETURN_IF_ERROR(
        stream_->CopyAsync(CopyDirection::kHostToDevice, reinterpret_cast<std::byte*>(x.row(r)),
                           reinterpret_cast<const std::byte*>(in.data() + int64_t{r} * x.cols),
                           static_cast<uint64_t>(x.cols) * 4));
  }
  return Synchronize();
}

absl::Status HostFallback::Synchronize() {
  absl::Status status = stream_->Synchronize();
  if (!status.ok()) stream_->ClearError();
  const absl::Status own = FinishOwn();
  return status.ok() ? own : status;
}

}  // namespace terrace::ops
