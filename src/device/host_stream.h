// Streams, events and kernels for devices that compute on the CPU's cores (cpu, sim): an ordered
// queue that a thread of its own works off, or, in stepped mode, that moves on only when Step() is
// called (the simulator). Shared by device/cpu and device/sim; not for users of the contract.
#ifndef TERRACE_DEVICE_HOST_STREAM_H_
#define TERRACE_DEVICE_HOST_STREAM_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "device/copy_counters.h"
#include "device/device.h"

namespace terrace::device {

class HostKernel final : public Kernel {
 public:
  explicit HostKernel(KernelSource source) : source_(std::move(source)) {}
  const KernelSource& source() const { return source_; }

 private:
  KernelSource source_;
};

// The point a recording stands for. Shared by the event, the stream that will reach it and the
// streams that wait for it, any of which may go first.
struct EventPoint {
  absl::Mutex mutex;
  bool reached ABSL_GUARDED_BY(mutex) = false;
  absl::Status status ABSL_GUARDED_BY(mutex);
};

class HostEvent final : public Event {
 public:
  absl::StatusOr<bool> Query() const override;
  absl::Status Synchronize() const override;
  std::shared_ptr<EventPoint> NewPoint();
  std::shared_ptr<EventPoint> point() const;

 private:
  mutable absl::Mutex mutex_;
  std::shared_ptr<EventPoint> point_ ABSL_GUARDED_BY(mutex_);
};

// How a device's copies behave. Thread-safe; outlives the streams.
class CopyModel {
 public:
  virtual ~CopyModel() = default;
  // Checks the ranges before a copy is queued.
  virtual absl::Status Check(CopyDirection direction, const std::byte* to, const std::byte* from,
                             uint64_t bytes) = 0;
  // Books the copy on its link, which it may enter from `ready_us` on, and returns when it is done;
  // both on the device's clock (0: at once).
  virtual int64_t Begin(CopyDirection direction, uint64_t bytes, int64_t ready_us) = 0;
  // Moves the bytes (or fails, or spoils them, where faults are injected).
  virtual absl::Status Finish(CopyDirection direction, std::byte* to, const std::byte* from,
                              uint64_t bytes) = 0;
  virtual int64_t NowUs() const = 0;
};

class HostStream final : public Stream {
 public:
  HostStream(CopyModel* model, bool stepped);
  ~HostStream() override;

  absl::Status CopyAsync(CopyDirection direction, std::byte* to, const std::byte* from,
                         uint64_t bytes) override;
  absl::Status HostCallback(std::function<void(absl::Status)> callback) override;
  absl::Status Launch(const Kernel& kernel, const LaunchShape& shape,
                      std::span<const KernelArgument> arguments) override;
  absl::Status Record(Event* event) override;
  absl::Status Wait(const Event& event) override;
  absl::Status Synchronize() override;
  void ClearError() override;

  // Stepped mode: runs the operations whose time has come; true if any ran.
  bool Step();

 private:
  struct Operation {
    enum class Type : uint8_t { kCopy, kCallback, kLaunch, kRecord, kWait } type;
    CopyDirection direction = CopyDirection::kHostToDevice;
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    uint64_t bytes = 0;
    std::function<void(absl::Status)> callback;
    std::function<absl::Status()> kernel;
    std::shared_ptr<EventPoint> point;
    bool begun = false;
    int64_t asked_us = 0;  // of a copy
    int64_t due_us = 0;
    absl::Status result;  // of a copy
  };
  absl::Status Push(Operation operation);
  void Work();
  bool ReadyToRun(Operation& operation);
  void Execute(Operation& operation);
  absl::Status status() const;
  void Fail(absl::Status status);

  CopyModel* const model_;
  const bool stepped_;
  // When the last kernel or wait was over; used by who runs operations.
  int64_t ready_us_ = 0;
  mutable absl::Mutex mutex_;
  std::deque<std::unique_ptr<Operation>> queue_ ABSL_GUARDED_BY(mutex_);
  bool running_ ABSL_GUARDED_BY(mutex_) = false;  // the front operation is being worked on
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::thread worker_;
};

}  // namespace terrace::device

#endif  // TERRACE_DEVICE_HOST_STREAM_H_
