// Operators on a Cambricon MLU. The signatures of its operator library (CNNL) are not public, so
// none of them is called yet: the host computes all, and the chip holds weights and KV.
#ifndef TERRACE_OPS_CAMBRICON_CAMBRICON_BACKEND_H_
#define TERRACE_OPS_CAMBRICON_CAMBRICON_BACKEND_H_

#include <memory>

#include "absl/status/statusor.h"
#include "device/device.h"
#include "ops/backend.h"

namespace terrace::ops {

inline constexpr const char* kCambriconNote = "the host computes all operators";

// `host` computes; `device` must outlive the backend.
absl::StatusOr<std::unique_ptr<Backend>> CreateCambriconBackend(device::Device* device,
                                                                std::unique_ptr<Backend> host);

}  // namespace terrace::ops

#endif  // TERRACE_OPS_CAMBRICON_CAMBRICON_BACKEND_H_
