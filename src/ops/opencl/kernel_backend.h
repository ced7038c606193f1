// Operators on a device with memory of its own and a run-time compiler: kernels of one dialect
// (kernels/*.cl), compiled on the device when they are first needed. Uses nothing but the device
// contract, so that every chip whose device compiles the dialect computes with it.
#ifndef TERRACE_OPS_OPENCL_KERNEL_BACKEND_H_
#define TERRACE_OPS_OPENCL_KERNEL_BACKEND_H_

#include <memory>

#include "absl/status/statusor.h"
#include "device/device.h"
#include "ops/backend.h"

namespace terrace::ops {

// `device` must outlive the backend, which takes a few MiB of its memory for what goes to kernels
// in tables. Weights are read in Layout::kRows16, as on processors; matrices in plain rows are
// refused as Unimplemented. Sums are float32 throughout. On devices with a tile product matrices
// are multiplied with 16 rows or more through it, which rounds activations to bfloat16; not so if
// `deterministic`, or after SetUniform(true). A row's result never depends on what the other rows
// hold.
absl::StatusOr<std::unique_ptr<Backend>> CreateKernelBackend(device::Device* device,
                                                             bool deterministic = false);

}  // namespace terrace::ops

#endif  // TERRACE_OPS_OPENCL_KERNEL_BACKEND_H_
