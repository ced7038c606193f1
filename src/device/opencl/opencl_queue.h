// An in-order queue of OpenCL's behind a stream (device/driver_stream.h), and kernels.
#ifndef TERRACE_DEVICE_OPENCL_OPENCL_QUEUE_H_
#define TERRACE_DEVICE_OPENCL_OPENCL_QUEUE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "device/device.h"
#include "device/driver_stream.h"
#include "device/opencl/opencl_api.h"
#include "device/opencl/opencl_memory.h"

namespace terrace::device::cl {

struct Counters {
  std::atomic<uint64_t> to_device{0};
  std::atomic<uint64_t> to_host{0};
  std::atomic<uint64_t> on_device{0};
};

// What queues and kernels need of their device.
struct Shared {
  const Api* api = nullptr;
  Memory* memory = nullptr;
  Counters* counters = nullptr;
  uint32_t max_group_items = 0;
};

class OpenClKernel final : public Kernel {
 public:
  // Takes `kernel` over; it has `parameters` of OpenCL's.
  OpenClKernel(const Api* api, KernelHandle kernel, Uint parameters)
      : api_(api), parameters_(parameters), kernel_(kernel) {}
  ~OpenClKernel() override { api_->ReleaseKernel(kernel_); }
  OpenClKernel(const OpenClKernel&) = delete;
  OpenClKernel& operator=(const OpenClKernel&) = delete;

  // Sets the arguments and queues a run. Thread-safe, which OpenCL's own calls are not.
  Int Enqueue(const Shared& shared, Queue queue, const LaunchShape& shape,
              std::span<const KernelArgument> arguments) const;

 private:
  Int SetArguments(const Shared& shared, std::span<const KernelArgument> arguments) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Api* const api_;
  const Uint parameters_;
  mutable absl::Mutex mutex_;
  KernelHandle const kernel_ ABSL_PT_GUARDED_BY(mutex_);
};

class OpenClQueue final : public DriverQueue {
 public:
  // Takes `queue` over. What `shared` points to must outlive it.
  OpenClQueue(const Shared& shared, Queue queue) : shared_(shared), queue_(queue) {}
  ~OpenClQueue() override;

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
  absl::Status Flush() override;
  absl::Status Finish() override;

 private:
  const Shared shared_;
  Queue const queue_;
};

}  // namespace terrace::device::cl

#endif  // TERRACE_DEVICE_OPENCL_OPENCL_QUEUE_H_
