// Small arrays on their way from the host to kernels: token ids, positions, block tables. A ring in
// device memory and its image in host memory; what is uploaded stays until the ring is full and
// everything queued has run. Used by one thread at a time.
#ifndef TERRACE_OPS_OPENCL_UPLOAD_RING_H_
#define TERRACE_OPS_OPENCL_UPLOAD_RING_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "device/device.h"

namespace terrace::ops {

class UploadRing {
 public:
  // Both must outlive the ring. Copies are queued on `stream`.
  UploadRing(device::Device* device, device::Stream* stream) : device_(device), stream_(stream) {}
  ~UploadRing();
  UploadRing(const UploadRing&) = delete;
  UploadRing& operator=(const UploadRing&) = delete;

  absl::Status Grow(uint64_t bytes);
  // The device address of a copy of `data`, in stream order.
  absl::StatusOr<const std::byte*> Upload(std::span<const std::byte> data);
  template <typename T>
  absl::StatusOr<const std::byte*> UploadArray(std::span<const T> values) {
    return Upload(std::as_bytes(values));
  }
  // What was uploaded is no longer needed, and everything queued has run: what comes next goes to
  // the same addresses as after the last Rewind.
  void Rewind() {
    used_ = 0;
    ++generation_;
  }
  // Changes whenever earlier uploads are gone.
  uint64_t generation() const { return generation_; }

 private:
  device::Device* const device_;
  device::Stream* const stream_;
  std::vector<std::byte> host_;
  std::byte* memory_ = nullptr;
  uint64_t used_ = 0;
  uint64_t generation_ = 0;
};

}  // namespace terrace::ops

#endif  // TERRACE_OPS_OPENCL_UPLOAD_RING_H_
