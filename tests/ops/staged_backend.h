// A backend whose memory is a device's, behind the interface that tests use: operands lie on the
// host, and each call copies them to the device, runs there, and copies back what it may write. So
// one test serves backends of both kinds, and whatever a kernel writes beyond its result shows.
#ifndef TERRACE_TESTS_OPS_STAGED_BACKEND_H_
#define TERRACE_TESTS_OPS_STAGED_BACKEND_H_

#include <cstdint>
#include <memory>

#include "ops/backend.h"

namespace terrace::ops {

// Whether this machine has a device that compiles kernels.
bool HaveKernelDevice();

// How kernels are run: an item with vector registers, as processors have them; an item a lane, as
// GPUs run them; or that with the tile product, emulated.
enum class Items : uint8_t { kVectors, kLanes, kLanesWithTiles };

// On one device of each kind for the whole program, so that kernels are compiled once. REQUIRES:
// HaveKernelDevice().
std::unique_ptr<Backend> CreateStagedBackend(Items items);

}  // namespace terrace::ops

#endif  // TERRACE_TESTS_OPS_STAGED_BACKEND_H_
