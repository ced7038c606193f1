// Sums over Ascend NPUs by HCCL (libhccl.so), opened when it is wanted.
#ifndef TERRACE_DEVICE_ASCEND_HCCL_H_
#define TERRACE_DEVICE_ASCEND_HCCL_H_

#include <string>

#include "absl/status/statusor.h"
#include "device/driver_collectives.h"

namespace terrace::device::ascend {

// NotFound without the library, FailedPrecondition naming a function that it lacks.
absl::StatusOr<CollectiveCalls> LoadHccl(const std::string& library = "");

}  // namespace terrace::device::ascend

#endif  // TERRACE_DEVICE_ASCEND_HCCL_H_
