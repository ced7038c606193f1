// A stream of the CUDA driver behind a stream of ours (device/driver_stream.h), and kernels.
#ifndef TERRACE_DEVICE_CUDA_CUDA_QUEUE_H_
#define TERRACE_DEVICE_CUDA_CUDA_QUEUE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "device/cuda/cuda_api.h"
#include "device/device.h"
#include "device/driver_stream.h"
#include "device/range_allocator.h"

namespace terrace::device::cuda {

struct Counters {
  std::atomic<uint64_t> to_device{0};
  std::atomic<uint64_t> to_host{0};
  std::atomic<uint64_t> on_device{0};
};

// The device's one allocation and what of it is given out. Thread-safe.
class Memory {
 public:
  Memory(Address base, uint64_t bytes) : base_(base), bytes_(bytes), ranges_(bytes) {}

  absl::StatusOr<std::byte*> Allocate(uint64_t bytes, const std::string& device);
  void Free(const std::byte* data);
  uint64_t allocated() const;
  // True if [data, data + bytes) lies in one allocation.
  bool Holds(const std::byte* data, uint64_t bytes) const;

 private:
  const Address base_;
  const uint64_t bytes_;
  mutable absl::Mutex mutex_;
  RangeAllocator ranges_ ABSL_GUARDED_BY(mutex_);
};

struct Shared {
  const Driver* driver = nullptr;
  ContextHandle context = nullptr;
  Memory* memory = nullptr;
  Counters* counters = nullptr;
  uint32_t max_group_items = 0;

  // Every thread that calls the driver says first which device it means.
  absl::Status Enter() const {
    return ToStatus(*driver, driver->CtxSetCurrent(context), "cuCtxSetCurrent");
  }
};

// A function of a module that the device keeps loaded.
class CudaKernel final : public Kernel {
 public:
  explicit CudaKernel(FunctionHandle function) : function_(function) {}
  FunctionHandle function() const { return function_; }

 private:
  FunctionHandle const function_;
};

class CudaQueue final : public DriverQueue {
 public:
  // Takes `stream` over. What `shared` points to must outlive it.
  CudaQueue(const Shared& shared, StreamHandle stream) : shared_(shared), stream_(stream) {}
  ~CudaQueue() override;

  absl::Status CheckCopy(CopyDirection direction, const std::byte* to, const std::byte* from,
                         uint64_t bytes) const override;
  absl::Status CheckLaunch(const Kernel& kernel, const LaunchShape& shape,
                           std::span<const KernelArgument> arguments) const override;
  absl::Status Copy(CopyDirection direction, std::byte* to, const std::byte* from,
                    uint64_t bytes) override;
  absl::Status Launch(const Kernel& kernel, const LaunchShape& shape,
                      std::span<const KernelArgument> arguments) override;
  absl::StatusOr<std::unique_ptr<DriverMark>> Mark() override;
  absl::Status WaitFor(const DriverMark& mark) override;
  absl::Status Flush() override { return absl::OkStatus(); }  // streams begin by themselves
  absl::Status Finish() override;

 private:
  const Shared shared_;
  StreamHandle const stream_;
};

}  // namespace terrace::device::cuda

#endif  // TERRACE_DEVICE_CUDA_CUDA_QUEUE_H_
