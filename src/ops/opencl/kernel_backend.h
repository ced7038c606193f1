// Operators on a device with memory of its own and a run-time compiler: kernels of one dialect
// (kernels/*.cl), compiled on the device when they are first needed. Uses nothing but the device
// contract, so that every chip whose device compiles the dialect computes with it.
#ifndef TERRACE_OPS_OPENCL_KERNEL_BACKEND_H_
#define TERRACE_OPS_OPENCL_KERNEL_BACKEND_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "device/device.h"
#include "ops/backend.h"

namespace terrace::ops {

struct KernelOptions {
  // A row's result does not depend on how many others are computed with it.
  bool deterministic = false;
  // Rows of x from which F16 and BF16 matrices are multiplied by the maker's library, where the
  // device has one (device/matrix_stream.h); other formats from kLibraryFactor times as many, if
  // the device has no tile product. Both operands are rounded to bfloat16 then. 0: never.
  int32_t library_rows = 0;
  // Is told, once, why matrices are not multiplied by the library; may be null.
  std::function<void(const std::string&)> tell;
};
inline constexpr int32_t kLibraryFactor = 8;

// `device` must outlive the backend, which takes a few MiB of its memory for what goes to kernels
// in tables, and with a library for matrices 1/64 of it, 64 MiB at most, for its operands. Weights
// are read in Layout::kRows16, as on processors; matrices in plain rows are refused as
// Unimplemented. Sums are float32 throughout. On devices with a tile product matrices are
// multiplied with 16 rows or more through it, which rounds activations to bfloat16; not so if
// `deterministic`, or after SetUniform(true). A row's result never depends on what the other rows
// hold.
absl::StatusOr<std::unique_ptr<Backend>> CreateKernelBackend(device::Device* device,
                                                             KernelOptions options);
inline absl::StatusOr<std::unique_ptr<Backend>> CreateKernelBackend(device::Device* device,
                                                                    bool deterministic = false) {
  return CreateKernelBackend(device, KernelOptions{.deterministic = deterministic});
}

}  // namespace terrace::ops

#endif  // TERRACE_OPS_OPENCL_KERNEL_BACKEND_H_
