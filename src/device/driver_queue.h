// A driver's stream behind a stream of ours (device/driver_stream.h), over any DriverApi; and the
// kernels of such devices.
#ifndef TERRACE_DEVICE_DRIVER_QUEUE_H_
#define TERRACE_DEVICE_DRIVER_QUEUE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "device/copy_counters.h"
#include "device/device.h"
#include "device/driver_api.h"
#include "device/driver_memory.h"
#include "device/driver_stream.h"

namespace terrace::device {

// What a device's queues share.
struct QueueParts {
  const DriverApi* api = nullptr;
  const DriverMemory* memory = nullptr;
  CopyCounters* counters = nullptr;
  uint32_t max_group_items = 0;
};

// A function of a module that the device keeps loaded.
class DriverKernel final : public Kernel {
 public:
  explicit DriverKernel(void* function) : function_(function) {}
  void* function() const { return function_; }

 private:
  void* const function_;
};

class ApiQueue final : public DriverQueue {
 public:
  // Takes `stream` over. What `parts` points to must outlive it.
  ApiQueue(const QueueParts& parts, void* stream) : parts_(parts), stream_(stream) {}
  ~ApiQueue() override;

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
  const QueueParts parts_;
  void* const stream_;
};

}  // namespace terrace::device

#endif  // TERRACE_DEVICE_DRIVER_QUEUE_H_
