// A backend whose memory is a device's, behind the interface that tests use: operands lie on the
// host, and each call copies them to the device, runs there, and copies back what it may write. So
// one test serves backends of both kinds, and whatever a kernel writes beyond its result shows.
#ifndef TERRACE_TESTS_OPS_STAGED_BACKEND_H_
#define TERRACE_TESTS_OPS_STAGED_BACKEND_H_

#include <memory>

#include "ops/backend.h"

namespace terrace::ops {

// Whether this machine has a device that compiles kernels.
bool HaveKernelDevice();

// On one device for the whole program, so that kernels are compiled once. `scalar`: the kernels for
// chips whose work-items are lanes, as GPUs run them. REQUIRES: HaveKernelDevice().
std::unique_ptr<Backend> CreateStagedBackend(bool scalar);

}  // namespace terrace::ops

#endif  // TERRACE_TESTS_OPS_STAGED_BACKEND_H_
