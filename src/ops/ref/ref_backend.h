// The reference backend: float32 activations, sums in double, plain layout only, weights
// dequantised row by row. It defines what every other backend must compute; speed is not its aim.
#ifndef TERRACE_OPS_REF_REF_BACKEND_H_
#define TERRACE_OPS_REF_REF_BACKEND_H_

#include <memory>

#include "device/cpu/thread_team.h"
#include "ops/backend.h"

namespace terrace::ops {

// `team` must outlive the backend and not be used by others while a call runs.
std::unique_ptr<Backend> CreateRefBackend(ThreadTeam* team);

}  // namespace terrace::ops

#endif  // TERRACE_OPS_REF_REF_BACKEND_H_
