// Sums over Cambricon MLUs by CNCL (libcncl.so), opened when it is wanted.
#ifndef TERRACE_DEVICE_CAMBRICON_CNCL_H_
#define TERRACE_DEVICE_CAMBRICON_CNCL_H_

#include <string>

#include "absl/status/statusor.h"
#include "device/driver_collectives.h"

namespace terrace::device::cambricon {

// For the MLU of a number. NotFound without the library, FailedPrecondition naming a function that
// it lacks.
absl::StatusOr<CollectiveCalls> LoadCncl(int ordinal, const std::string& library = "");

}  // namespace terrace::device::cambricon

#endif  // TERRACE_DEVICE_CAMBRICON_CNCL_H_
