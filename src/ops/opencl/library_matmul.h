// Products of many rows by a library of the chip's maker (device/matrix_stream.h), for weights as
// the kernels have them: both operands become plain rows of bfloat16 in a part of the device's
// memory that is kept for that, a piece of the matrix at a time.
#ifndef TERRACE_OPS_OPENCL_LIBRARY_MATMUL_H_
#define TERRACE_OPS_OPENCL_LIBRARY_MATMUL_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "device/device.h"
#include "device/matrix_stream.h"
#include "ops/backend.h"

namespace terrace::ops {

class LibraryMatMul {
 public:
  // Queues a kernel of matmul.cl (`name`, macros) or, without macros, of elementwise.cl.
  using RunKernel = std::function<absl::Status(const char* name, const std::string& defines,
                                               const device::LaunchShape& shape,
                                               std::span<const device::KernelArgument> arguments)>;

  // `rows` as KernelOptions has it. All but `tell` must outlive this.
  LibraryMatMul(device::Device* device, device::Stream* stream, int32_t rows,
                std::function<void(const std::string&)> tell, RunKernel run);
  ~LibraryMatMul();
  LibraryMatMul(const LibraryMatMul&) = delete;
  LibraryMatMul& operator=(const LibraryMatMul&) = delete;

  // Whether a product should go this way.
  bool Takes(const Matrix& x, const Weight& w) const;
  // y = W x + b for the one target. False if it has to be computed otherwise, from the start;
  // `first`: x is not that of the call before.
  bool Multiply(const Matrix& x, const MatMulTarget& target, bool first);

 private:
  absl::Status TryMultiply(const Matrix& x, const MatMulTarget& target, bool first);
  void GiveUp(const absl::Status& why);

  device::Device* const device_;
  device::MatrixStream* const library_;  // null: none
  const int32_t rows_;
  const std::function<void(const std::string&)> tell_;
  const RunKernel run_;
  bool works_ = false;
  std::byte* room_ = nullptr;
  uint64_t room_bytes_ = 0;
};

}  // namespace terrace::ops

#endif  // TERRACE_OPS_OPENCL_LIBRARY_MATMUL_H_
