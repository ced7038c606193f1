// The operators of Cambricon's CNNL that this build may use: found by dlopen, declared here as
// public programs call them, since the maker's headers are not public. Where even the number of an
// option is unknown, a trial finds it (cambricon_backend.cc).
#ifndef TERRACE_OPS_CAMBRICON_CNNL_H_
#define TERRACE_OPS_CAMBRICON_CNNL_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace terrace::ops::cambricon {

inline constexpr int kHalf = 1;  // cnnlDataType_t
inline constexpr int kFloat = 2;
inline constexpr int kBf16 = 17;
inline constexpr int kArray = 4;           // cnnlTensorLayout_t
inline constexpr int kNoNan = 0;           // cnnlNanPropagation_t: not propagated
inline constexpr int kHostPointer = 0;     // cnnlPointerMode_t
inline constexpr int kLastAttribute = 16;  // where trials end
inline constexpr int kLastOperation = 4;
inline constexpr int kLastCast = 64;

using Handle = struct CnnlHandle*;
using Tensor = struct CnnlTensor*;
using MatMulDesc = struct CnnlMatMulDesc*;
using MatMulAlgo = struct CnnlMatMulAlgo*;
using MatMulPlan = struct CnnlMatMulPlan*;  // cnnlMatMulHeuristicResult_t
using OpDesc = struct CnnlOpDesc*;

// Members by their names without "cnnl"; all but one give a cnnlStatus_t, 0 for success.
struct Cnnl {
  int (*Create)(Handle*) = nullptr;
  int (*Destroy)(Handle) = nullptr;
  int (*SetQueue)(Handle, void*) = nullptr;
  const char* (*GetErrorString)(int) = nullptr;
  int (*CreateTensorDescriptor)(Tensor*) = nullptr;
  int (*DestroyTensorDescriptor)(Tensor) = nullptr;
  int (*SetTensorDescriptorEx)(Tensor, int layout, int dtype, int count, const int* dims,
                               const int* strides) = nullptr;
  int (*MatMulDescCreate)(MatMulDesc*) = nullptr;
  int (*MatMulDescDestroy)(MatMulDesc) = nullptr;
  int (*SetMatMulDescAttr)(MatMulDesc, int attribute, const void*, size_t) = nullptr;
  int (*MatMulAlgoCreate)(MatMulAlgo*) = nullptr;
  int (*MatMulAlgoDestroy)(MatMulAlgo) = nullptr;
  int (*CreateMatMulHeuristicResult)(MatMulPlan*) = nullptr;
  int (*DestroyMatMulHeuristicResult)(MatMulPlan) = nullptr;
  int (*GetMatMulAlgoHeuristic)(Handle, MatMulDesc, Tensor a, Tensor b, Tensor c, Tensor d,
                                void* preference, int wanted, MatMulPlan*, int* found) = nullptr;
  int (*GetMatMulHeuristicResult)(MatMulPlan, MatMulAlgo, size_t* workspace) = nullptr;
  int (*MatMul_v2)(Handle, MatMulDesc, MatMulAlgo, const float* alpha, Tensor, const void* a,
                   Tensor, const void* b, const float* beta, Tensor, const void* c, void*, size_t,
                   Tensor, void* d) = nullptr;
  int (*GetRmsNormOpWorkspaceSize)(Handle, int axis, Tensor x, size_t*) = nullptr;
  int (*RmsNormForward)(Handle, int axis, Tensor, const void* x, Tensor, const void* weight,
                        const void* bias, float eps, void*, size_t, Tensor, void* y, Tensor,
                        void* rms) = nullptr;
  int (*CreateOpTensorDescriptor)(OpDesc*) = nullptr;
  int (*DestroyOpTensorDescriptor)(OpDesc) = nullptr;
  int (*SetOpTensorDescriptor)(OpDesc, int operation, int dtype, int nan) = nullptr;
  int (*GetOpTensorWorkspaceSize)(Handle, Tensor a, Tensor b, Tensor c, size_t*) = nullptr;
  int (*OpTensor)(Handle, OpDesc, const void* alpha1, Tensor, const void* a, const void* alpha2,
                  Tensor, const void* b, void*, size_t, const void* beta, Tensor,
                  void* c) = nullptr;
  int (*CastDataType)(Handle, Tensor, const void* in, int direction, Tensor, void* out) = nullptr;
  int (*Fill_v3)(Handle, int mode, const void* value, Tensor, void* x) = nullptr;
};

// From libcnnl.so, or `library` if not empty. NotFound without it, FailedPrecondition naming a
// function that is lacking.
absl::StatusOr<Cnnl> LoadCnnl(const std::string& library = "");

}  // namespace terrace::ops::cambricon

#endif  // TERRACE_OPS_CAMBRICON_CNNL_H_
