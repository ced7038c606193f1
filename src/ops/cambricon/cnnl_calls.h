// CNNL's operators over one queue, each with descriptors and workspace as it wants them. Used by
// one thread at a time. Private to this folder.
#ifndef TERRACE_OPS_CAMBRICON_CNNL_CALLS_H_
#define TERRACE_OPS_CAMBRICON_CNNL_CALLS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "device/driver_device.h"
#include "ops/cambricon/cnnl.h"

namespace terrace::ops::cambricon {

// A tensor without gaps on the device.
struct Dense {
  const void* data = nullptr;
  int dtype = kFloat;
  std::vector<int> dims;
};

// Numbers that only trials tell; -1: the operator is not to be used.
struct Numbers {
  int transpose_b = -1;                                            // the attribute of a product
  int add = -1;                                                    // the operation
  int to_half = -1, from_half = -1, to_bf16 = -1, from_bf16 = -1;  // conversions
  bool norm = false;
  bool fill = false;
};

class CnnlCalls {
 public:
  // Takes `queue` over. `device` must outlive this.
  static absl::StatusOr<std::unique_ptr<CnnlCalls>> Create(device::DriverDevice* device,
                                                           const Cnnl& cnnl, void* queue);
  ~CnnlCalls();
  CnnlCalls(const CnnlCalls&) = delete;
  CnnlCalls& operator=(const CnnlCalls&) = delete;

  // d = a b^T; a [n, k], b [m, k], d [n, m].
  absl::Status MatMul(int transpose_b, const Dense& a, const Dense& b, const Dense& d);
  // y = x / rms(x) * weight over the last dimension; `rms` has the others.
  absl::Status RmsNorm(const Dense& x, const Dense& weight, float eps, const Dense& y,
                       const Dense& rms);
  // a = a + b; b may have only the last dimension.
  absl::Status Add(int operation, const Dense& a, const Dense& b);
  absl::Status Cast(int direction, const Dense& in, const Dense& out);
  absl::Status Zero(const Dense& x);
  absl::Status Synchronize();

 private:
  class Descriptors;
  CnnlCalls(device::DriverDevice* device, const Cnnl& cnnl, void* queue)
      : device_(device), cnnl_(cnnl), queue_(queue) {}
  absl::Status Check(int code, const char* call) const;
  // Room for `bytes`; null for none.
  absl::StatusOr<void*> Workspace(size_t bytes);

  device::DriverDevice* const device_;
  const Cnnl cnnl_;
  void* const queue_;
  Handle handle_ = nullptr;
  std::byte* workspace_ = nullptr;
  uint64_t workspace_bytes_ = 0;
};

}  // namespace terrace::ops::cambricon

#endif  // TERRACE_OPS_CAMBRICON_CNNL_CALLS_H_
