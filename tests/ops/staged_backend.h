// A backend whose memory is a device's, behind the interface that tests use: operands lie on the
// host, and each call copies them to the device, runs there, and copies back what it may write. So
// one test serves backends of both kinds, and whatever a kernel writes beyond its result shows.
#ifndef TERRACE_TESTS_OPS_STAGED_BACKEND_H_
#define TERRACE_TESTS_OPS_STAGED_BACKEND_H_

#include <cstdint>
#include <memory>

#include "device/device.h"
#include "ops/backend.h"

namespace terrace::ops {

// Whether this machine has a device that compiles kernels.
bool HaveKernelDevice();

// How kernels are run: an item with vector registers, as processors have them; an item a lane, as
// GPUs run them; or that with the tile product of either kind, or with sub-groups, both
// emulated.
enum class Items : uint8_t {
  kVectors,
  kLanes,
  kLanesWithTiles,
  kLanesWithWideTiles,
  kLanesWithSubgroups
};

// On one device of each kind for the whole program, so that kernels are compiled once. REQUIRES:
// HaveKernelDevice().
std::unique_ptr<Backend> CreateStagedBackend(Items items);
// Of a backend of one's own on `device`, which must outlive it.
std::unique_ptr<Backend> CreateStagedBackend(device::Device* device,
                                             std::unique_ptr<Backend> backend);

}  // namespace terrace::ops

#endif  // TERRACE_TESTS_OPS_STAGED_BACKEND_H_
