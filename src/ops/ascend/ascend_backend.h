// Operators on a Huawei Ascend NPU: the maker's where aclnn has one that fits, the host's otherwise
// (docs/DEVICES.md lists which).
#ifndef TERRACE_OPS_ASCEND_ASCEND_BACKEND_H_
#define TERRACE_OPS_ASCEND_ASCEND_BACKEND_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "device/driver_device.h"
#include "ops/backend.h"

namespace terrace::ops {

inline constexpr const char* kAscendNote =
    "the host computes embedding, rope, KV, attention, quantised matrices and experts' sums";

// `host` computes what the chip does not; `device` must outlive the backend. `library` as in
// ascend::LoadAclnn.
absl::StatusOr<std::unique_ptr<Backend>> CreateAscendBackend(device::DriverDevice* device,
                                                             std::unique_ptr<Backend> host,
                                                             const std::string& library = "");

}  // namespace terrace::ops

#endif  // TERRACE_OPS_ASCEND_ASCEND_BACKEND_H_
