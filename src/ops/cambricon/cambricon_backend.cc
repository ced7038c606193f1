#include "ops/cambricon/cambricon_backend.h"

#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/status.h"
#include "ops/cambricon/cnnl.h"
#include "ops/cambricon/cnnl_calls.h"
#include "ops/cambricon/cnnl_trials.h"
#include "ops/check.h"
#include "ops/host_fallback.h"

namespace terrace::ops {
namespace {

using cambricon::CnnlCalls;
using cambricon::Dense;
using cambricon::Numbers;

bool IsDense(const Matrix& m) { return m.rows > 0 && m.stride == m.cols; }
Dense Of(const Matrix& m) { return {m.data, cambricon::kFloat, {m.rows, m.cols}}; }
Dense Of(const Vector& v) { return {v.data, cambricon::kFloat, {v.size}}; }

// What CNNL has; an operator that fails is not used again, and the host computes instead.
class CnnlBackend final : public HostFallback {
 public:
  CnnlBackend(device::DriverDevice* device, std::unique_ptr<device::Stream> stream,
              std::unique_ptr<Backend> host, std::unique_ptr<CnnlCalls> calls,
              const Numbers& numbers)
      : HostFallback(device, std::move(stream), std::move(host)),
        calls_(std::move(calls)),
        numbers_(numbers) {}
  ~CnnlBackend() override {
    FinishOwn().IgnoreError();
    device()->Free(room_, room_bytes_);
  }

  absl::Status RmsNorm(Matrix x, Vector weight, float eps, Matrix out) override {
    RETURN_IF_ERROR(CheckNorm(x, weight, out));
    if (Norm(x, 1, weight, eps, out)) return absl::OkStatus();
    return HostFallback::RmsNorm(x, weight, eps, out);
  }
  absl::Status RmsNormHeads(Matrix x, int32_t heads, Vector weight, float eps) override {
    RETURN_IF_ERROR(CheckNormHeads(x, heads, weight));
    if (Norm(x, heads, weight, eps, x)) return absl::OkStatus();
    return HostFallback::RmsNormHeads(x, heads, weight, eps);
  }
  absl::Status MatMul(Matrix x, std::span<const MatMulTarget> targets) override {
    RETURN_IF_ERROR(CheckMatMul(x, targets));
    for (const MatMulTarget& target : targets) {
      if (MultiplyOne(x, target)) continue;
      RETURN_IF_ERROR(HostFallback::MatMul(x, {&target, 1}));
    }
    return absl::OkStatus();
  }
  absl::Status Add(Matrix x, Matrix y) override {
    RETURN_IF_ERROR(CheckSameShape("Add", x, y));
    if (numbers_.add >= 0 && IsDense(x) && IsDense(y)) {
      if (calls_->Add(numbers_.add, Of(x), Of(y)).ok()) return absl::OkStatus();
      numbers_.add = -1;
    }
    return HostFallback::Add(x, y);
  }
  absl::Status Zero(Matrix x) override {
    RETURN_IF_ERROR(CheckMatrix("Zero", "output", x));
    if (numbers_.fill && IsDense(x)) {
      if (calls_->Zero(Of(x)).ok()) return absl::OkStatus();
      numbers_.fill = false;
    }
    return HostFallback::Zero(x);
  }

 protected:
  absl::Status FinishOwn() override { return calls_->Synchronize(); }

 private:
  bool Norm(const Matrix& x, int32_t heads, const Vector& weight, float eps, const Matrix& out) {
    if (!numbers_.norm || !IsDense(x) || !IsDense(out)) return false;
    const int rows = x.rows * heads;
    if (!Room(static_cast<uint64_t>(rows) * sizeof(float)).ok()) return false;
    const absl::Status status = calls_->RmsNorm(
        {x.data, cambricon::kFloat, {rows, weight.size}}, Of(weight), eps,
        {out.data, cambricon::kFloat, {rows, weight.size}}, {room_, cambricon::kFloat, {rows}});
    numbers_.norm = status.ok();
    return status.ok();
  }

  bool MultiplyOne(const Matrix& x, const MatMulTarget& target) {
    const Weight& w = target.weight;
    if (numbers_.transpose_b < 0 || w.layout != Layout::kPlain || !IsDense(x) ||
        !IsDense(target.out) || (target.bias.data != nullptr && numbers_.add < 0)) {
      return false;
    }
    absl::Status status;
    if (w.dtype == DType::kF32) {
      status = calls_->MatMul(numbers_.transpose_b, Of(x),
                              {w.data, cambricon::kFloat, {w.rows, w.cols}}, Of(target.out));
    } else if (w.dtype == DType::kF16 && numbers_.to_half >= 0 && numbers_.from_half >= 0) {
      status = Narrow(x, target, cambricon::kHalf, numbers_.to_half, numbers_.from_half);
    } else if (w.dtype == DType::kBF16 && numbers_.to_bf16 >= 0 && numbers_.from_bf16 >= 0) {
      status = Narrow(x, target, cambricon::kBf16, numbers_.to_bf16, numbers_.from_bf16);
    } else {
      return false;
    }
    if (status.ok() && target.bias.data != nullptr) {
      status = calls_->Add(numbers_.add, Of(target.out), Of(target.bias));
    }
    if (!status.ok()) numbers_.transpose_b = -1;
    return status.ok();
  }

  // By operands and a result of 16 bits.
  absl::Status Narrow(const Matrix& x, const MatMulTarget& target, int dtype, int to, int from) {
    const Weight& w = target.weight;
    const auto in_bytes = static_cast<uint64_t>(x.rows) * static_cast<uint64_t>(w.cols) * 2;
    const auto out_bytes = static_cast<uint64_t>(x.rows) * static_cast<uint64_t>(w.rows) * 2;
    constexpr uint64_t kAlignment = 256;
    const uint64_t out_at = (in_bytes + kAlignment - 1) / kAlignment * kAlignment;
    RETURN_IF_ERROR(Room(out_at + out_bytes));
    const Dense in{room_, dtype, {x.rows, w.cols}}, out{room_ + out_at, dtype, {x.rows, w.rows}};
    RETURN_IF_ERROR(calls_->Cast(to, Of(x), in));
    RETURN_IF_ERROR(
        calls_->MatMul(numbers_.transpose_b, in, {w.data, dtype, {w.rows, w.cols}}, out));
    return calls_->Cast(from, out, Of(target.out));
  }

  absl::Status Room(uint64_t bytes) {
    if (bytes <= room_bytes_) return absl::OkStatus();
    RETURN_IF_ERROR(FinishOwn());  // what is queued may use the old one
    device()->Free(std::exchange(room_, nullptr), std::exchange(room_bytes_, 0));
    ASSIGN_OR_RETURN(room_, device()->Allocate(bytes));
    room_bytes_ = bytes;
    return absl::OkStatus();
  }

  const std::unique_ptr<CnnlCalls> calls_;
  Numbers numbers_;
  std::byte* room_ = nullptr;
  uint64_t room_bytes_ = 0;
};

std::string NoteOf(const Numbers& n) {
  std::string used;
  const auto add = [&](bool there, const char* name) {
    if (there) used += fmt::format("{}{}", used.empty() ? "" : ", ", name);
  };
  add(n.transpose_b >= 0, "matrices of F32");
  add(n.transpose_b >= 0 && n.to_half >= 0 && n.from_half >= 0, "of F16");
  add(n.transpose_b >= 0 && n.to_bf16 >= 0 && n.from_bf16 >= 0, "of BF16");
  add(n.norm, "RMS norms");
  add(n.add >= 0, "sums");
  add(n.fill, "zeros");
  if (used.empty()) return "the host computes all operators: none of CNNL's was right in its trial";
  return fmt::format("CNNL computes {}, which were right in their trials; the host the rest", used);
}

absl::StatusOr<CambriconBackend> WithLibrary(device::DriverDevice* device,
                                             std::unique_ptr<Backend>* host,
                                             const std::string& library) {
  ASSIGN_OR_RETURN(const cambricon::Cnnl cnnl, cambricon::LoadCnnl(library));
  ASSIGN_OR_RETURN(std::unique_ptr<device::Stream> stream, device->CreateStream());
  ASSIGN_OR_RETURN(void* queue, device->CreateDriverStream());
  ASSIGN_OR_RETURN(std::unique_ptr<CnnlCalls> calls, CnnlCalls::Create(device, cnnl, queue));
  ASSIGN_OR_RETURN(const Numbers numbers, FindNumbers(device, stream.get(), calls.get()));
  CambriconBackend made;
  made.note = NoteOf(numbers);
  made.backend = std::make_unique<CnnlBackend>(device, std::move(stream), std::move(*host),
                                               std::move(calls), numbers);
  return made;
}

}  // namespace

absl::StatusOr<CambriconBackend> CreateCambriconBackend(device::DriverDevice* device,
                                                        std::unique_ptr<Backend> host,
                                                        const CambriconBackendOptions& options) {
  CambriconBackend made;
  made.note = "the host computes all operators (device.unproven_operators)";
  if (options.library) {
    absl::StatusOr<CambriconBackend> with = WithLibrary(device, &host, options.library_name);
    if (with.ok()) return with;
    made.note = fmt::format("the host computes all operators: {}", Message(with.status()));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<device::Stream> stream, device->CreateStream());
  made.backend = std::make_unique<HostFallback>(device, std::move(stream), std::move(host));
  return made;
}

}  // namespace terrace::ops
