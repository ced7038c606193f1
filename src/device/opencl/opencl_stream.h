// Streams and events over OpenCL's in-order queues. What OpenCL can order by itself is handed to it
// at once; a host callback, or a wait for an event that is not recorded yet, holds back what
// follows, which a thread of the stream then hands over.
#ifndef TERRACE_DEVICE_OPENCL_OPENCL_STREAM_H_
#define TERRACE_DEVICE_OPENCL_OPENCL_STREAM_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "device/device.h"
#include "device/opencl/opencl_api.h"
#include "device/opencl/opencl_memory.h"

namespace terrace::device::cl {

struct Counters {
  std::atomic<uint64_t> to_device{0};
  std::atomic<uint64_t> to_host{0};
  std::atomic<uint64_t> on_device{0};
};

// What streams, events and kernels need of their device.
struct Shared {
  const Api* api = nullptr;
  Memory* memory = nullptr;
  Counters* counters = nullptr;
  uint32_t max_group_items = 0;
};

class DeviceKernel final : public device::Kernel {
 public:
  // Takes `kernel` over; it has `parameters` of OpenCL's.
  DeviceKernel(const Api* api, KernelHandle kernel, Uint parameters)
      : api_(api), parameters_(parameters), kernel_(kernel) {}
  ~DeviceKernel() override { api_->ReleaseKernel(kernel_); }
  DeviceKernel(const DeviceKernel&) = delete;
  DeviceKernel& operator=(const DeviceKernel&) = delete;

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

// The point that a recording stands for; shared by the event and the streams that reach it or wait
// for it.
class Point {
 public:
  explicit Point(const Api* api) : api_(api) {}
  ~Point();
  Point(const Point&) = delete;
  Point& operator=(const Point&) = delete;

  // Takes `event` (null: already reached) over. `status` of the recording stream so far.
  void Submit(EventHandle event, absl::Status status);
  bool submitted() const;
  void AwaitSubmitted() const;
  // After AwaitSubmitted: what to wait for (null: nothing), and the recording stream's status.
  EventHandle event() const;
  absl::Status status() const;
  absl::StatusOr<bool> Query() const;
  absl::Status Synchronize() const;

 private:
  const Api* const api_;
  mutable absl::Mutex mutex_;
  bool submitted_ ABSL_GUARDED_BY(mutex_) = false;
  EventHandle event_ ABSL_GUARDED_BY(mutex_) = nullptr;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

class DeviceEvent final : public device::Event {
 public:
  explicit DeviceEvent(const Api* api) : api_(api) {}
  absl::StatusOr<bool> Query() const override;
  absl::Status Synchronize() const override;
  std::shared_ptr<Point> NewPoint();
  std::shared_ptr<Point> point() const;

 private:
  const Api* const api_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<Point> point_ ABSL_GUARDED_BY(mutex_);
};

class DeviceStream final : public Stream {
 public:
  // Takes `queue` over. What `shared` points to must outlive the stream.
  DeviceStream(const Shared& shared, Queue queue);
  ~DeviceStream() override;

  absl::Status CopyAsync(CopyDirection direction, std::byte* to, const std::byte* from,
                         uint64_t bytes) override;
  absl::Status HostCallback(std::function<void(absl::Status)> callback) override;
  absl::Status Launch(const device::Kernel& kernel, const LaunchShape& shape,
                      std::span<const KernelArgument> arguments) override;
  absl::Status Record(device::Event* event) override;
  absl::Status Wait(const device::Event& event) override;
  absl::Status Synchronize() override;
  void ClearError() override;

 private:
  struct Operation {
    enum class Type : uint8_t { kCopy, kCallback, kLaunch, kRecord, kWait } type;
    CopyDirection direction = CopyDirection::kHostToDevice;
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    uint64_t bytes = 0;
    std::function<void(absl::Status)> callback;
    const DeviceKernel* kernel = nullptr;
    LaunchShape shape;
    std::vector<KernelArgument> arguments;
    std::shared_ptr<Point> point;
  };

  absl::Status Submit(Operation operation);
  // Hands an operation to the queue; nothing in it waits.
  void HandOverLocked(Operation& operation, std::span<const KernelArgument> arguments)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Int CopyLocked(const Operation& operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RecordLocked(Point& point) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WaitLocked(const Point& point) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool DirectLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return held_back_.empty() && !working_;
  }
  void FailLocked(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits for the queue, without the lock.
  void Finish();
  void Work();

  const Shared shared_;
  Queue const queue_;
  mutable absl::Mutex mutex_;
  std::deque<Operation> held_back_ ABSL_GUARDED_BY(mutex_);
  bool working_ ABSL_GUARDED_BY(mutex_) = false;  // the thread carries out an operation
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  uint32_t unflushed_ ABSL_GUARDED_BY(mutex_) = 0;  // operations since the queue was told to begin
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::thread worker_;
};

}  // namespace terrace::device::cl

#endif  // TERRACE_DEVICE_OPENCL_OPENCL_STREAM_H_
