// Which of CNNL's operators can be used, and by which numbers of options that its makers do not
// publish: each is tried on small operands whose result is known.
#ifndef TERRACE_OPS_CAMBRICON_CNNL_TRIALS_H_
#define TERRACE_OPS_CAMBRICON_CNNL_TRIALS_H_

#include "absl/status/statusor.h"
#include "device/driver_device.h"
#include "ops/cambricon/cnnl_calls.h"

namespace terrace::ops::cambricon {

// ResourceExhausted without a little of the device's memory; copies' errors.
absl::StatusOr<Numbers> FindNumbers(device::DriverDevice* device, device::Stream* stream,
                                    CnnlCalls* calls);

}  // namespace terrace::ops::cambricon

#endif  // TERRACE_OPS_CAMBRICON_CNNL_TRIALS_H_
