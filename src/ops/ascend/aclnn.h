// The operators of Huawei's aclnn library (CANN 8.1 and later) that this build uses: declared here,
// found by dlopen. Each is called in two phases: the first checks, plans and says what workspace it
// needs, the second queues it.
#ifndef TERRACE_OPS_ASCEND_ACLNN_H_
#define TERRACE_OPS_ASCEND_ACLNN_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace terrace::ops::ascend {

inline constexpr int kFloat = 0;  // aclDataType
inline constexpr int kFloat16 = 1;
inline constexpr int kBf16 = 27;
inline constexpr int kFormatNd = 2;      // aclFormat
inline constexpr int8_t kKeepDtype = 0;  // cubeMathType: no conversion to a smaller type

struct AclTensor;
struct AclScalar;
struct AclExecutor;

// The two phases of an operator with the parameters A before the workspace.
template <typename... A>
struct TwoPhase {
  using First = int (*)(A..., uint64_t*, AclExecutor**);
  using Second = int (*)(void*, uint64_t, AclExecutor*, void*);
  First first = nullptr;
  Second second = nullptr;
};

struct Aclnn {
  AclTensor* (*CreateTensor)(const int64_t* view_dims, uint64_t view_count, int dtype,
                             const int64_t* strides, int64_t offset, int format,
                             const int64_t* storage_dims, uint64_t storage_count,
                             void* data) = nullptr;
  int (*DestroyTensor)(const AclTensor*) = nullptr;
  AclScalar* (*CreateScalar)(void* value, int dtype) = nullptr;
  int (*DestroyScalar)(const AclScalar*) = nullptr;
  int (*SetRepeatable)(AclExecutor*) = nullptr;
  int (*DestroyExecutor)(AclExecutor*) = nullptr;

  TwoPhase<AclTensor*, AclTensor*, AclTensor*, int8_t> Matmul;  // self, mat2, out, cubeMathType
  TwoPhase<AclTensor*, AclTensor*, double, AclTensor*, AclTensor*> RmsNorm;  // x, gamma, eps, y, r
  TwoPhase<AclTensor*, int, AclTensor*> Cast;                                // self, dtype, out
  TwoPhase<AclTensor*, AclTensor*> Silu;                                     // self, out
  TwoPhase<AclTensor*, AclTensor*> Gelu;                                     // the tanh form
  TwoPhase<AclTensor*, AclTensor*, AclTensor*> Mul;
  TwoPhase<AclTensor*, AclTensor*, AclScalar*> InplaceAdd;  // self, other, alpha
  TwoPhase<AclTensor*, AclScalar*> InplaceMuls;
  TwoPhase<AclTensor*> InplaceZero;
};

// From libnnopbase.so and libopapi.so, or both from `library` if not empty. NotFound without them,
// FailedPrecondition naming a function that is lacking.
absl::StatusOr<Aclnn> LoadAclnn(const std::string& library = "");

}  // namespace terrace::ops::ascend

#endif  // TERRACE_OPS_ASCEND_ACLNN_H_
