#include "ops/cambricon/cnnl_calls.h"

#include <utility>

#include <fmt/format.h>

#include "base/status.h"

namespace terrace::ops::cambricon {

// What one call describes its operands by; gone when it returns.
class CnnlCalls::Descriptors {
 public:
  explicit Descriptors(const CnnlCalls* calls) : calls_(calls), cnnl_(calls->cnnl_) {}
  ~Descriptors() {
    for (Tensor tensor : tensors_) cnnl_.DestroyTensorDescriptor(tensor);
    if (op_ != nullptr) cnnl_.DestroyOpTensorDescriptor(op_);
    if (plan_ != nullptr) cnnl_.DestroyMatMulHeuristicResult(plan_);
    if (algo_ != nullptr) cnnl_.MatMulAlgoDestroy(algo_);
    if (matmul_ != nullptr) cnnl_.MatMulDescDestroy(matmul_);
  }
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;

  absl::StatusOr<Tensor> Of(const Dense& dense) {
    Tensor tensor = nullptr;
    RETURN_IF_ERROR(
        calls_->Check(cnnl_.CreateTensorDescriptor(&tensor), "cnnlCreateTensorDescriptor"));
    tensors_.push_back(tensor);
    std::vector<int> strides(dense.dims.size(), 1);
    for (size_t i = dense.dims.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * dense.dims[i];
    RETURN_IF_ERROR(calls_->Check(cnnl_.SetTensorDescriptorEx(tensor, kArray, dense.dtype,
                                                              static_cast<int>(dense.dims.size()),
                                                              dense.dims.data(), strides.data()),
                                  "cnnlSetTensorDescriptorEx"));
    return tensor;
  }
  absl::StatusOr<OpDesc> Operation(int operation) {
    RETURN_IF_ERROR(
        calls_->Check(cnnl_.CreateOpTensorDescriptor(&op_), "cnnlCreateOpTensorDescriptor"));
    RETURN_IF_ERROR(calls_->Check(cnnl_.SetOpTensorDescriptor(op_, operation, kFloat, kNoNan),
                                  "cnnlSetOpTensorDescriptor"));
    return op_;
  }
  // Makes the three that a product needs.
  absl::Status Product() {
    RETURN_IF_ERROR(calls_->Check(cnnl_.MatMulDescCreate(&matmul_), "cnnlMatMulDescCreate"));
    RETURN_IF_ERROR(calls_->Check(cnnl_.MatMulAlgoCreate(&algo_), "cnnlMatMulAlgoCreate"));
    return calls_->Check(cnnl_.CreateMatMulHeuristicResult(&plan_),
                         "cnnlCreateMatMulHeuristicResult");
  }
  MatMulDesc matmul() const { return matmul_; }
  MatMulAlgo algo() const { return algo_; }
  MatMulPlan* plan() { return &plan_; }

 private:
  const CnnlCalls* const calls_;
  const Cnnl& cnnl_;
  std::vector<Tensor> tensors_;
  OpDesc op_ = nullptr;
  MatMulDesc matmul_ = nullptr;
  MatMulAlgo algo_ = nullptr;
  MatMulPlan plan_ = nullptr;
};

absl::StatusOr<std::unique_ptr<CnnlCalls>> CnnlCalls::Create(device::DriverDevice* device,
                                                             const Cnnl& cnnl, void* queue) {
  std::unique_ptr<CnnlCalls> calls(new CnnlCalls(device, cnnl, queue));
  RETURN_IF_ERROR(device->api().Enter());
  RETURN_IF_ERROR(calls->Check(cnnl.Create(&calls->handle_), "cnnlCreate"));
  RETURN_IF_ERROR(calls->Check(cnnl.SetQueue(calls->handle_, queue), "cnnlSetQueue"));
  return calls;
}

CnnlCalls::~CnnlCalls() {
  if (!device_->api().Enter().ok()) return;
  device_->api().SynchronizeStream(queue_).IgnoreError();
  if (handle_ != nullptr) cnnl_.Destroy(handle_);
  device_->api().DestroyStream(queue_);
  device_->Free(workspace_, workspace_bytes_);
}

absl::Status CnnlCalls::Check(int code, const char* call) const {
  if (code == 0) return absl::OkStatus();
  const char* text = cnnl_.GetErrorString(code);
  return absl::InternalError(
      fmt::format("{}: {} ({})", call, text != nullptr ? text : "unknown error", code));
}

absl::Status CnnlCalls::Synchronize() {
  RETURN_IF_ERROR(device_->api().Enter());
  return device_->api().SynchronizeStream(queue_);
}

absl::StatusOr<void*> CnnlCalls::Workspace(size_t bytes) {
  if (bytes == 0) return nullptr;
  if (bytes > workspace_bytes_) {
    RETURN_IF_ERROR(Synchronize());  // what is queued may use the old one
    device_->Free(std::exchange(workspace_, nullptr), std::exchange(workspace_bytes_, 0));
    ASSIGN_OR_RETURN(workspace_, device_->Allocate(bytes));
    workspace_bytes_ = bytes;
  }
  return workspace_;
}

absl::Status CnnlCalls::MatMul(int transpose_b, const Dense& a, const Dense& b, const Dense& d) {
  RETURN_IF_ERROR(device_->api().Enter());
  Descriptors of(this);
  RETURN_IF_ERROR(of.Product());
  ASSIGN_OR_RETURN(Tensor da, of.Of(a));
  ASSIGN_OR_RETURN(Tensor db, of.Of(b));
  ASSIGN_OR_RETURN(Tensor dd, of.Of(d));
  const int32_t yes = 1;
  RETURN_IF_ERROR(Check(cnnl_.SetMatMulDescAttr(of.matmul(), transpose_b, &yes, sizeof(yes)),
                        "cnnlSetMatMulDescAttr"));
  int found = 0;
  RETURN_IF_ERROR(Check(cnnl_.GetMatMulAlgoHeuristic(handle_, of.matmul(), da, db, dd, dd, nullptr,
                                                     1, of.plan(), &found),
                        "cnnlGetMatMulAlgoHeuristic"));
  if (found < 1) return absl::InternalError("cnnlGetMatMulAlgoHeuristic: no way");
  size_t bytes = 0;
  RETURN_IF_ERROR(Check(cnnl_.GetMatMulHeuristicResult(*of.plan(), of.algo(), &bytes),
                        "cnnlGetMatMulHeuristicResult"));
  ASSIGN_OR_RETURN(void* room, Workspace(bytes));
  const float one = 1.0f, zero = 0.0f;
  void* const out = const_cast<void*>(d.data);
  return Check(cnnl_.MatMul_v2(handle_, of.matmul(), of.algo(), &one, da, a.data, db, b.data, &zero,
                               dd, out, room, bytes, dd, out),
               "cnnlMatMul_v2");
}

absl::Status CnnlCalls::RmsNorm(const Dense& x, const Dense& weight, float eps, const Dense& y,
                                const Dense& rms) {
  RETURN_IF_ERROR(device_->api().Enter());
  Descriptors of(this);
  ASSIGN_OR_RETURN(Tensor dx, of.Of(x));
  ASSIGN_OR_RETURN(Tensor dw, of.Of(weight));
  ASSIGN_OR_RETURN(Tensor dy, of.Of(y));
  ASSIGN_OR_RETURN(Tensor dr, of.Of(rms));
  const int axis = static_cast<int>(x.dims.size()) - 1;
  size_t bytes = 0;
  RETURN_IF_ERROR(Check(cnnl_.GetRmsNormOpWorkspaceSize(handle_, axis, dx, &bytes),
                        "cnnlGetRmsNormOpWorkspaceSize"));
  ASSIGN_OR_RETURN(void* room, Workspace(bytes));
  return Check(
      cnnl_.RmsNormForward(handle_, axis, dx, x.data, dw, weight.data, nullptr, eps, room, bytes,
                           dy, const_cast<void*>(y.data), dr, const_cast<void*>(rms.data)),
      "cnnlRmsNormForward");
}

absl::Status CnnlCalls::Add(int operation, const Dense& a, const Dense& b) {
  RETURN_IF_ERROR(device_->api().Enter());
  Descriptors of(this);
  ASSIGN_OR_RETURN(OpDesc op, of.Operation(operation));
  ASSIGN_OR_RETURN(Tensor da, of.Of(a));
  ASSIGN_OR_RETURN(Tensor db, of.Of(b));
  size_t bytes = 0;
  RETURN_IF_ERROR(Check(cnnl_.GetOpTensorWorkspaceSize(handle_, da, db, da, &bytes),
                        "cnnlGetOpTensorWorkspaceSize"));
  ASSIGN_OR_RETURN(void* room, Workspace(bytes));
  const float one = 1.0f, zero = 0.0f;
  return Check(cnnl_.OpTensor(handle_, op, &one, da, a.data, &one, db, b.data, room, bytes, &zero,
                              da, const_cast<void*>(a.data)),
               "cnnlOpTensor");
}

absl::Status CnnlCalls::Cast(int direction, const Dense& in, const Dense& out) {
  RETURN_IF_ERROR(device_->api().Enter());
  Descriptors of(this);
  ASSIGN_OR_RETURN(Tensor from, of.Of(in));
  ASSIGN_OR_RETURN(Tensor to, of.Of(out));
  return Check(
      cnnl_.CastDataType(handle_, from, in.data, direction, to, const_cast<void*>(out.data)),
      "cnnlCastDataType");
}

absl::Status CnnlCalls::Zero(const Dense& x) {
  RETURN_IF_ERROR(device_->api().Enter());
  Descriptors of(this);
  ASSIGN_OR_RETURN(Tensor dx, of.Of(x));
  const float zero = 0.0f;
  return Check(cnnl_.Fill_v3(handle_, kHostPointer, &zero, dx, const_cast<void*>(x.data)),
               "cnnlFill_v3");
}

}  // namespace terrace::ops::cambricon
