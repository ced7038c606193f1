// The memory of an OpenCL device as one range of addresses: a few large buffers, and a stretch of
// the host's address space, never accessible, whose addresses stand for theirs. A host that reads
// through such an address is stopped by the system at once. Thread-safe.
#ifndef TERRACE_DEVICE_OPENCL_OPENCL_MEMORY_H_
#define TERRACE_DEVICE_OPENCL_OPENCL_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "device/opencl/opencl_api.h"
#include "device/range_allocator.h"

namespace terrace::device::cl {

// Kernels that read addresses from tables take every buffer as a parameter: there are this many.
inline constexpr size_t kMaxBuffers = 4;
inline constexpr uint64_t kAlignment = 4096;

// Where an address lies.
struct Place {
  Mem buffer = nullptr;
  size_t index = 0;
  uint64_t offset = 0;
};

class Memory {
 public:
  // `bytes` in buffers of at most `buffer_bytes` (both multiples of kAlignment, at most kMaxBuffers
  // of them). `api` and `context` must outlive it.
  static absl::StatusOr<std::unique_ptr<Memory>> Create(const Api* api, Context context,
                                                        uint64_t bytes, uint64_t buffer_bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  absl::StatusOr<std::byte*> Allocate(uint64_t bytes, const std::string& device);
  void Free(std::byte* data);
  uint64_t allocated() const;
  uint64_t bytes() const { return bytes_; }

  // True if [data, data + bytes) lies in one allocation.
  bool Holds(const std::byte* data, uint64_t bytes) const;
  // True if any of [data, data + bytes) is a device address.
  bool Overlaps(const std::byte* data, uint64_t bytes) const {
    return data < base_ + bytes_ && data + bytes > base_;
  }
  // REQUIRES: a device address.
  Place At(const std::byte* data) const;
  Mem buffer(size_t index) const { return buffers_[index < buffers_.size() ? index : 0]; }

 private:
  Memory(const Api* api, uint64_t bytes, uint64_t buffer_bytes)
      : api_(api), bytes_(bytes), buffer_bytes_(buffer_bytes) {}

  const Api* const api_;
  const uint64_t bytes_;
  const uint64_t buffer_bytes_;  // of each but the last
  std::byte* base_ = nullptr;
  std::vector<Mem> buffers_;
  mutable absl::Mutex mutex_;
  std::vector<RangeAllocator> ranges_ ABSL_GUARDED_BY(mutex_);  // of each buffer
};

}  // namespace terrace::device::cl

#endif  // TERRACE_DEVICE_OPENCL_OPENCL_MEMORY_H_
