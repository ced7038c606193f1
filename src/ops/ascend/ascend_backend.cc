#include "ops/ascend/ascend_backend.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/status.h"
#include "ops/ascend/aclnn.h"
#include "ops/check.h"
#include "ops/host_fallback.h"

namespace terrace::ops {
namespace {

using ascend::AclExecutor;
using ascend::Aclnn;
using ascend::AclScalar;
using ascend::AclTensor;

// A tensor's address must be a multiple of this; the rest goes into its offset.
constexpr uintptr_t kTensorAlignment = 32;

absl::Status Failed(const char* call, int code) {
  return absl::InternalError(fmt::format("{}: error {}", call, code));
}

// Device memory that grows, for results between two operators of one call.
class Room {
 public:
  explicit Room(device::Device* device) : device_(device) {}
  ~Room() { device_->Free(data_, bytes_); }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

  bool Fits(uint64_t bytes) const { return bytes <= bytes_; }
  absl::Status Grow(uint64_t bytes) {
    device_->Free(std::exchange(data_, nullptr), std::exchange(bytes_, 0));
    ASSIGN_OR_RETURN(data_, device_->Allocate(bytes));
    bytes_ = bytes;
    return absl::OkStatus();
  }
  std::byte* data() const { return data_; }

 private:
  device::Device* const device_;
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

int AclType(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ascend::kFloat;
    case DType::kF16:
      return ascend::kFloat16;
    case DType::kBF16:
      return ascend::kBf16;
    default:
      return -1;
  }
}

class AscendBackend final : public HostFallback {
 public:
  AscendBackend(device::DriverDevice* device, std::unique_ptr<device::Stream> stream,
                std::unique_ptr<Backend> host, const Aclnn& acl, void* own)
      : HostFallback(device, std::move(stream), std::move(host)),
        api_(device->api()),
        acl_(acl),
        own_(own),
        workspace_(device),
        narrow_in_(device),
        narrow_out_(device),
        between_(device) {}
  ~AscendBackend() override {
    FinishOwn().IgnoreError();
    if (api_.Enter().ok()) api_.DestroyStream(own_);
  }

  absl::Status RmsNorm(Matrix x, Vector weight, float eps, Matrix out) override {
    RETURN_IF_ERROR(CheckNorm(x, weight, out));
    return Norm(x, 1, weight, eps, out);
  }
  absl::Status RmsNormHeads(Matrix x, int32_t heads, Vector weight, float eps) override {
    RETURN_IF_ERROR(CheckNormHeads(x, heads, weight));
    return Norm(x, heads, weight, eps, x);
  }
  absl::Status MatMul(Matrix x, std::span<const MatMulTarget> targets) override;
  absl::Status Glu(Activation activation, Matrix gate, Matrix up, Matrix out) override;
  absl::Status Add(Matrix x, Matrix y) override;
  absl::Status Scale(Matrix x, float scale) override;
  absl::Status Zero(Matrix x) override;

 protected:
  absl::Status FinishOwn() override {
    RETURN_IF_ERROR(api_.Enter());
    return api_.SynchronizeStream(own_);
  }

 private:
  // Tensors and scalars of one call, destroyed at its end: the second phase has taken what it
  // needs.
  class Arguments {
   public:
    explicit Arguments(const Aclnn* acl) : acl_(acl) {}
    ~Arguments() {
      for (AclTensor* tensor : tensors_) acl_->DestroyTensor(tensor);
      for (AclScalar* scalar : scalars_) acl_->DestroyScalar(scalar);
    }
    Arguments(const Arguments&) = delete;
    Arguments& operator=(const Arguments&) = delete;

    // A view of `dims` with `strides` in elements. Null if the library makes none.
    AclTensor* Tensor(const void* data, int dtype, std::vector<int64_t> dims,
                      std::vector<int64_t> strides) {
      const int64_t element = dtype == ascend::kFloat ? 4 : 2;
      const auto address = reinterpret_cast<uintptr_t>(data);
      const auto offset = static_cast<int64_t>(address % kTensorAlignment) / element;
      int64_t storage = offset + 1;
      for (size_t i = 0; i < dims.size(); ++i) storage += (dims[i] - 1) * strides[i];
      AclTensor* tensor = acl_->CreateTensor(
          dims.data(), dims.size(), dtype, strides.data(), offset, ascend::kFormatNd, &storage, 1,
          reinterpret_cast<void*>(address - address % kTensorAlignment));
      if (tensor == nullptr) {
        complete_ = false;
      } else {
        tensors_.push_back(tensor);
      }
      return tensor;
    }
    AclTensor* Of(const Matrix& m) {
      return Tensor(m.data, ascend::kFloat, {m.rows, m.cols}, {m.stride, 1});
    }
    AclTensor* Of(const Vector& v) { return Tensor(v.data, ascend::kFloat, {v.size}, {1}); }
    AclScalar* Number(float value) {
      AclScalar* scalar = acl_->CreateScalar(&value, ascend::kFloat);
      if (scalar == nullptr) {
        complete_ = false;
      } else {
        scalars_.push_back(scalar);
      }
      return scalar;
    }
    bool complete() const { return complete_; }

   private:
    const Aclnn* const acl_;
    std::vector<AclTensor*> tensors_;
    std::vector<AclScalar*> scalars_;
    bool complete_ = true;
  };

  // Both phases of an operator, into the own stream.
  template <typename... A>
  absl::Status Run(const char* name, const ascend::TwoPhase<A...>& op, const Arguments& arguments,
                   A... values) {
    if (!arguments.complete()) return absl::ResourceExhaustedError("aclnn made no tensor");
    RETURN_IF_ERROR(api_.Enter());
    uint64_t bytes = 0;
    AclExecutor* executor = nullptr;
    if (const int code = op.first(values..., &bytes, &executor); code != 0) {
      return Failed(name, code);
    }
    if (absl::Status room = MakeRoom(&workspace_, bytes); !room.ok()) {
      // Only an executor that is made repeatable may be destroyed without having been used.
      acl_.SetRepeatable(executor);
      acl_.DestroyExecutor(executor);
      return room;
    }
    const int code = op.second(bytes > 0 ? workspace_.data() : nullptr, bytes, executor, own_);
    return code == 0 ? absl::OkStatus() : Failed(name, code);
  }
  absl::Status MakeRoom(Room* room, uint64_t bytes) {
    if (room->Fits(bytes)) return absl::OkStatus();
    RETURN_IF_ERROR(FinishOwn());  // what is queued may use the old one
    return room->Grow(bytes);
  }

  absl::Status Norm(const Matrix& x, int32_t heads, const Vector& weight, float eps,
                    const Matrix& out);
  absl::Status MultiplyOne(const Matrix& x, const MatMulTarget& target);
  absl::Status Cast(const Matrix& from, int dtype, std::byte* to);

  const device::DriverApi& api_;
  const Aclnn acl_;
  void* const own_;
  Room workspace_;
  Room narrow_in_, narrow_out_;  // activations in the type of 16-bit weights
  Room between_;
};

absl::Status AscendBackend::Norm(const Matrix& x, int32_t heads, const Vector& weight, float eps,
                                 const Matrix& out) {
  if (x.rows == 0) return absl::OkStatus();
  RETURN_IF_ERROR(MakeRoom(
      &between_, static_cast<uint64_t>(x.rows) * static_cast<uint64_t>(heads) * sizeof(float)));
  Arguments arguments(&acl_);
  const std::vector<int64_t> dims = {x.rows, heads, weight.size};
  AclTensor* from = arguments.Tensor(x.data, ascend::kFloat, dims, {x.stride, weight.size, 1});
  AclTensor* to = arguments.Tensor(out.data, ascend::kFloat, dims, {out.stride, weight.size, 1});
  AclTensor* reciprocals =
      arguments.Tensor(between_.data(), ascend::kFloat, {x.rows, heads, 1}, {heads, 1, 1});
  return Run("aclnnRmsNorm", acl_.RmsNorm, arguments, from, arguments.Of(weight), double{eps}, to,
             reciprocals);
}

absl::Status AscendBackend::MatMul(Matrix x, std::span<const MatMulTarget> targets) {
  RETURN_IF_ERROR(CheckMatMul(x, targets));
  if (x.rows == 0) return absl::OkStatus();
  for (const MatMulTarget& target : targets) {
    const bool native = target.weight.layout == Layout::kPlain && AclType(target.weight.dtype) >= 0;
    RETURN_IF_ERROR(native ? MultiplyOne(x, target) : HostFallback::MatMul(x, {&target, 1}));
  }
  return absl::OkStatus();
}

absl::Status AscendBackend::Cast(const Matrix& from, int dtype, std::byte* to) {
  Arguments arguments(&acl_);
  AclTensor* wide = arguments.Of(from);
  AclTensor* narrow = arguments.Tensor(to, dtype, {from.rows, from.cols}, {from.cols, 1});
  return Run("aclnnCast", acl_.Cast, arguments, wide, dtype, narrow);
}

absl::Status AscendBackend::MultiplyOne(const Matrix& x, const MatMulTarget& target) {
  const Weight& w = target.weight;
  const Matrix& out = target.out;
  const int dtype = AclType(w.dtype);
  Arguments arguments(&acl_);
  AclTensor *input = nullptr, *product = nullptr;
  if (dtype == ascend::kFloat) {
    input = arguments.Of(x);
    product = arguments.Of(out);
  } else {
    const auto rows = static_cast<uint64_t>(x.rows);
    RETURN_IF_ERROR(MakeRoom(&narrow_in_, rows * static_cast<uint64_t>(w.cols) * 2));
    RETURN_IF_ERROR(MakeRoom(&narrow_out_, rows * static_cast<uint64_t>(w.rows) * 2));
    RETURN_IF_ERROR(Cast(x, dtype, narrow_in_.data()));
    input = arguments.Tensor(narrow_in_.data(), dtype, {x.rows, w.cols}, {w.cols, 1});
    product = arguments.Tensor(narrow_out_.data(), dtype, {x.rows, w.rows}, {w.rows, 1});
  }
  // A transposed operand is a view: [in, out] of rows [out][in].
  AclTensor* weight = arguments.Tensor(w.data, dtype, {w.cols, w.rows}, {1, w.cols});
  RETURN_IF_ERROR(
      Run("aclnnMatmul", acl_.Matmul, arguments, input, weight, product, ascend::kKeepDtype));
  if (dtype != ascend::kFloat) {
    RETURN_IF_ERROR(
        Run("aclnnCast", acl_.Cast, arguments, product, ascend::kFloat, arguments.Of(out)));
  }
  if (target.bias.data == nullptr) return absl::OkStatus();
  // One row of bias for all rows.
  return Run("aclnnInplaceAdd", acl_.InplaceAdd, arguments, arguments.Of(out),
             arguments.Of(target.bias), arguments.Number(1.0f));
}

absl::Status AscendBackend::Glu(Activation activation, Matrix gate, Matrix up, Matrix out) {
  RETURN_IF_ERROR(CheckSameShape("Glu", gate, up));
  RETURN_IF_ERROR(CheckSameShape("Glu", gate, out));
  if (gate.rows == 0) return absl::OkStatus();
  Matrix active{nullptr, gate.rows, gate.cols, gate.cols};
  RETURN_IF_ERROR(MakeRoom(&between_, static_cast<uint64_t>(gate.rows) *
                                          static_cast<uint64_t>(gate.cols) * sizeof(float)));
  active.data = reinterpret_cast<float*>(between_.data());
  Arguments arguments(&acl_);
  AclTensor* middle = arguments.Of(active);
  if (activation == Activation::kSilu) {
    RETURN_IF_ERROR(Run("aclnnSilu", acl_.Silu, arguments, arguments.Of(gate), middle));
  } else {
    RETURN_IF_ERROR(Run("aclnnGelu", acl_.Gelu, arguments, arguments.Of(gate), middle));
  }
  return Run("aclnnMul", acl_.Mul, arguments, middle, arguments.Of(up), arguments.Of(out));
}

absl::Status AscendBackend::Add(Matrix x, Matrix y) {
  RETURN_IF_ERROR(CheckSameShape("Add", x, y));
  if (x.rows == 0) return absl::OkStatus();
  Arguments arguments(&acl_);
  return Run("aclnnInplaceAdd", acl_.InplaceAdd, arguments, arguments.Of(x), arguments.Of(y),
             arguments.Number(1.0f));
}

absl::Status AscendBackend::Scale(Matrix x, float scale) {
  RETURN_IF_ERROR(CheckMatrix("Scale", "input", x));
  if (x.rows == 0) return absl::OkStatus();
  Arguments arguments(&acl_);
  return Run("aclnnInplaceMuls", acl_.InplaceMuls, arguments, arguments.Of(x),
             arguments.Number(scale));
}

absl::Status AscendBackend::Zero(Matrix x) {
  RETURN_IF_ERROR(CheckMatrix("Zero", "output", x));
  if (x.rows == 0) return absl::OkStatus();
  Arguments arguments(&acl_);
  return Run("aclnnInplaceZero", acl_.InplaceZero, arguments, arguments.Of(x));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateAscendBackend(device::DriverDevice* device,
                                                             std::unique_ptr<Backend> host,
                                                             const std::string& library) {
  ASSIGN_OR_RETURN(const Aclnn acl, ascend::LoadAclnn(library));
  ASSIGN_OR_RETURN(std::unique_ptr<device::Stream> stream, device->CreateStream());
  ASSIGN_OR_RETURN(void* own, device->CreateDriverStream());
  return std::unique_ptr<Backend>(
      std::make_unique<AscendBackend>(device, std::move(stream), std::move(host), acl, own));
}

}  // namespace terrace::ops
