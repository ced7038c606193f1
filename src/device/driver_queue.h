// A driver's stream behind a stream of ours (device/driver_stream.h), over any DriverApi; and the
// kernels of such devices.
#ifndef TERRACE_DEVICE_DRIVER_QUEUE_H_
#define TERRACE_DEVICE_DRIVER_QUEUE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "device/copy_counters.h"
#include "device/device.h"
#include "device/driver_api.h"
#include "device/driver_graphs.h"
#include "device/driver_matrices.h"
#include "device/driver_memory.h"
#include "device/driver_stream.h"

namespace terrace::device {

// What a device's queues share.
struct QueueParts {
  const DriverApi* api = nullptr;
  const DriverMemory* memory = nullptr;
  CopyCounters* counters = nullptr;
  uint32_t max_group_items = 0;
  // Launches that come again in the same order become graphs; `tell` hears if that goes wrong.
  bool graphs = false;
  std::function<void(const std::string&)> tell;
  // The maker's library for matrices, opened when it is first asked for; null: there is none.
  std::function<absl::StatusOr<const MatrixCalls*>()> matrices;
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
  // Takes `stream` over. What `parts` points to must outlive it. With graphs, launches are gathered
  // and handed over with whatever comes after them that is no launch.
  ApiQueue(const QueueParts& parts, void* stream);
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
  absl::Status HandOver() override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Finish() override;
  absl::Status OpenMatrices() override;
  absl::Status Multiply(const MatrixProduct& product) override;

 private:
  const QueueParts parts_;
  void* const stream_;
  const MatrixCalls* matrix_calls_ = nullptr;  // null until it is opened
  void* matrices_ = nullptr;                   // the library's handle for this stream
  absl::Mutex mutex_;                          // Finish may come from any thread
  std::unique_ptr<LaunchGraphs> graphs_ ABSL_PT_GUARDED_BY(mutex_);  // null: launched at once
  LaunchRun gathered_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace::device

#endif  // TERRACE_DEVICE_DRIVER_QUEUE_H_
