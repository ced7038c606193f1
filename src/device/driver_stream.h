// Streams and events for devices whose driver has in-order queues of its own. What the driver can
// order by itself is handed to it at once; a host callback, or a wait for an event that is not
// recorded yet, holds back what follows, which a thread of the stream then hands over. Shared by
// the folders of such devices; not for users of the contract.
#ifndef TERRACE_DEVICE_DRIVER_STREAM_H_
#define TERRACE_DEVICE_DRIVER_STREAM_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "device/device.h"
#include "device/matrix_stream.h"

namespace terrace::device {

// A point in a driver's queue. Thread-safe.
class DriverMark {
 public:
  virtual ~DriverMark() = default;
  virtual absl::StatusOr<bool> Query() const = 0;
  virtual absl::Status Wait() const = 0;
};

// One in-order queue of a driver. What queues is called by one thread at a time, checks and Finish
// by any. Only Finish and the destructor wait.
class DriverQueue {
 public:
  virtual ~DriverQueue() = default;
  // InvalidArgument for what must not be queued. Thread-safe.
  virtual absl::Status CheckCopy(CopyDirection direction, const std::byte* to,
                                 const std::byte* from, uint64_t bytes) const = 0;
  virtual absl::Status CheckLaunch(const Kernel& kernel, const LaunchShape& shape,
                                   std::span<const KernelArgument> arguments) const = 0;

  virtual absl::Status Copy(CopyDirection direction, std::byte* to, const std::byte* from,
                            uint64_t bytes) = 0;
  virtual absl::Status Launch(const Kernel& kernel, const LaunchShape& shape,
                              std::span<const KernelArgument> arguments) = 0;
  // Also makes the driver begin with what is queued.
  virtual absl::StatusOr<std::unique_ptr<DriverMark>> Mark() = 0;
  // What is queued later runs after `mark` of any queue of the device.
  virtual absl::Status WaitFor(const DriverMark& mark) = 0;
  virtual absl::Status Flush() = 0;
  // Gives the driver what the queue has gathered.
  virtual absl::Status HandOver() { return absl::OkStatus(); }
  virtual absl::Status Finish() = 0;

  // As MatrixStream has them.
  virtual absl::Status OpenMatrices() {
    return absl::NotFoundError("the device has no library for matrices");
  }
  virtual absl::Status Multiply(const MatrixProduct&) {
    return absl::UnimplementedError("the device has no library for matrices");
  }
};

// What a recording stands for; shared by the event and the streams that reach it or wait for it.
class DriverPoint {
 public:
  // `status` of the recording stream so far; `mark` may be null: reached already.
  void Submit(std::unique_ptr<DriverMark> mark, absl::Status status);
  bool submitted() const;
  void AwaitSubmitted() const;
  // After AwaitSubmitted.
  const DriverMark* mark() const;
  absl::Status status() const;
  absl::StatusOr<bool> Query() const;
  absl::Status Synchronize() const;

 private:
  mutable absl::Mutex mutex_;
  bool submitted_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<DriverMark> mark_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

class DriverEvent final : public Event {
 public:
  absl::StatusOr<bool> Query() const override;
  absl::Status Synchronize() const override;
  std::shared_ptr<DriverPoint> NewPoint();
  std::shared_ptr<DriverPoint> point() const;

 private:
  mutable absl::Mutex mutex_;
  std::shared_ptr<DriverPoint> point_ ABSL_GUARDED_BY(mutex_);
};

class DriverStream final : public Stream, public MatrixStream {
 public:
  explicit DriverStream(std::unique_ptr<DriverQueue> queue);
  ~DriverStream() override;

  absl::Status CopyAsync(CopyDirection direction, std::byte* to, const std::byte* from,
                         uint64_t bytes) override;
  absl::Status HostCallback(std::function<void(absl::Status)> callback) override;
  absl::Status Launch(const Kernel& kernel, const LaunchShape& shape,
                      std::span<const KernelArgument> arguments) override;
  absl::Status Record(Event* event) override;
  absl::Status Wait(const Event& event) override;
  absl::Status Synchronize() override;
  void ClearError() override;
  absl::Status OpenMatrices() override { return queue_->OpenMatrices(); }
  absl::Status Multiply(const MatrixProduct& product) override;

 private:
  struct Operation {
    enum class Type : uint8_t { kCopy, kCallback, kLaunch, kRecord, kWait } type;
    CopyDirection direction = CopyDirection::kHostToDevice;
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    uint64_t bytes = 0;
    std::function<void(absl::Status)> callback;
    const Kernel* kernel = nullptr;
    LaunchShape shape;
    std::vector<KernelArgument> arguments;
    std::shared_ptr<DriverPoint> point;
  };

  absl::Status Submit(Operation operation);
  // Hands an operation to the queue; nothing in it waits.
  void HandOverLocked(Operation& operation, std::span<const KernelArgument> arguments)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RecordLocked(DriverPoint& point) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WaitLocked(const DriverPoint& point) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool DirectLocked() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return held_back_.empty() && !working_;
  }
  void FailLocked(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits for the queue, without the lock.
  void Finish();
  void Work();

  std::unique_ptr<DriverQueue> const queue_;
  mutable absl::Mutex mutex_;
  std::deque<Operation> held_back_ ABSL_GUARDED_BY(mutex_);
  bool working_ ABSL_GUARDED_BY(mutex_) = false;  // the thread carries out an operation
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  uint32_t unflushed_ ABSL_GUARDED_BY(mutex_) = 0;  // operations since the queue was told to begin
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::thread worker_;
};

}  // namespace terrace::device

#endif  // TERRACE_DEVICE_DRIVER_STREAM_H_
