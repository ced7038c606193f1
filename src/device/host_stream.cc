#include "device/host_stream.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace terrace::device {

absl::StatusOr<bool> HostEvent::Query() const {
  std::shared_ptr<EventPoint> current = point();
  if (current == nullptr) return true;
  absl::MutexLock lock(&current->mutex);
  if (current->reached && !current->status.ok()) return current->status;
  return current->reached;
}

absl::Status HostEvent::Synchronize() const {
  std::shared_ptr<EventPoint> current = point();
  if (current == nullptr) return absl::OkStatus();
  absl::MutexLock lock(&current->mutex);
  current->mutex.Await(absl::Condition(&current->reached));
  return current->status;
}

std::shared_ptr<EventPoint> HostEvent::NewPoint() {
  absl::MutexLock lock(&mutex_);
  point_ = std::make_shared<EventPoint>();
  return point_;
}

std::shared_ptr<EventPoint> HostEvent::point() const {
  absl::MutexLock lock(&mutex_);
  return point_;
}

HostStream::HostStream(CopyModel* model, bool stepped) : model_(model), stepped_(stepped) {
  if (!stepped_) worker_ = std::thread([this] { Work(); });
}

HostStream::~HostStream() {
  {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
  }
  if (worker_.joinable()) worker_.join();
}

absl::Status HostStream::Push(Operation operation) {
  absl::MutexLock lock(&mutex_);
  queue_.push_back(std::make_unique<Operation>(std::move(operation)));
  return absl::OkStatus();
}

absl::Status HostStream::CopyAsync(CopyDirection direction, std::byte* to, const std::byte* from,
                                   uint64_t bytes) {
  if (bytes > 0 && (to == nullptr || from == nullptr)) {
    return absl::InvalidArgumentError("copy with a null address");
  }
  absl::Status checked = model_->Check(direction, to, from, bytes);
  if (!checked.ok()) return checked;
  Operation operation{Operation::Type::kCopy};
  operation.direction = direction;
  operation.to = to;
  operation.from = from;
  operation.bytes = bytes;
  operation.asked_us = model_->NowUs();
  return Push(std::move(operation));
}

absl::Status HostStream::HostCallback(std::function<void(absl::Status)> callback) {
  if (callback == nullptr) return absl::InvalidArgumentError("empty callback");
  Operation operation{Operation::Type::kCallback};
  operation.callback = std::move(callback);
  return Push(std::move(operation));
}

absl::Status HostStream::Launch(const Kernel& kernel, const LaunchShape&,
                                std::span<const KernelArgument> arguments) {
  const auto* host = dynamic_cast<const HostKernel*>(&kernel);
  if (host == nullptr) return absl::InvalidArgumentError("kernel of another device");
  Operation operation{Operation::Type::kLaunch};
  operation.kernel = [function = host->source().host,
                      list = std::vector<KernelArgument>(arguments.begin(), arguments.end())] {
    return function(list);
  };
  return Push(std::move(operation));
}

absl::Status HostStream::Record(Event* event) {
  auto* host = dynamic_cast<HostEvent*>(event);
  if (host == nullptr) return absl::InvalidArgumentError("event of another device");
  Operation operation{Operation::Type::kRecord};
  operation.point = host->NewPoint();
  return Push(std::move(operation));
}

absl::Status HostStream::Wait(const Event& event) {
  const auto* host = dynamic_cast<const HostEvent*>(&event);
  if (host == nullptr) return absl::InvalidArgumentError("event of another device");
  Operation operation{Operation::Type::kWait};
  operation.point = host->point();
  if (operation.point == nullptr) return absl::OkStatus();
  return Push(std::move(operation));
}

absl::Status HostStream::Synchronize() {
  absl::MutexLock lock(&mutex_);
  if (stepped_ && !queue_.empty()) {
    return absl::FailedPreconditionError("a stepped stream moves on by Step() only");
  }
  mutex_.Await(absl::Condition(
      +[](HostStream* stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stream->mutex_) {
        return stream->queue_.empty() && !stream->running_;
      },
      this));
  return status_;
}

void HostStream::ClearError() {
  absl::MutexLock lock(&mutex_);
  status_ = absl::OkStatus();
}

absl::Status HostStream::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

void HostStream::Fail(absl::Status status) {
  absl::MutexLock lock(&mutex_);
  if (status_.ok()) status_ = std::move(status);
}

// True if `operation` may run now; otherwise waits (threaded mode) or says no (stepped mode).
bool HostStream::ReadyToRun(Operation& operation) {
  if (operation.type == Operation::Type::kWait) {
    absl::MutexLock lock(&operation.point->mutex);
    if (!stepped_) operation.point->mutex.Await(absl::Condition(&operation.point->reached));
    return operation.point->reached;
  }
  if (operation.type != Operation::Type::kCopy) return true;
  if (!operation.begun) {
    operation.begun = true;
    const bool skipped = !status().ok();
    // A copy engine takes the next copy by itself, however late our thread wakes up; only kernels
    // and waits hold it up.
    operation.due_us = skipped ? 0
                               : model_->Begin(operation.direction, operation.bytes,
                                               std::max(operation.asked_us, ready_us_));
    // The bytes move while the link is "busy", so that our own memory copy costs no extra time; in
    // stepped mode they move when the copy is due.
    if (!stepped_ && !skipped) {
      operation.result =
          model_->Finish(operation.direction, operation.to, operation.from, operation.bytes);
    }
  }
  while (operation.due_us != 0) {
    const int64_t left_us = operation.due_us - model_->NowUs();
    if (left_us <= 0) break;
    if (stepped_) return false;
    absl::SleepFor(absl::Microseconds(left_us));
  }
  return true;
}

void HostStream::Execute(Operation& operation) {
  const absl::Status before = status();
  switch (operation.type) {
    case Operation::Type::kCopy: {
      if (!before.ok()) return;
      if (stepped_) {
        operation.result =
            model_->Finish(operation.direction, operation.to, operation.from, operation.bytes);
      }
      if (!operation.result.ok()) Fail(operation.result);
      return;
    }
    case Operation::Type::kLaunch: {
      if (!before.ok()) return;
      absl::Status run = operation.kernel();
      ready_us_ = model_->NowUs();
      if (!run.ok()) Fail(std::move(run));
      return;
    }
    case Operation::Type::kCallback:
      operation.callback(before);
      return;
    case Operation::Type::kRecord: {
      absl::MutexLock lock(&operation.point->mutex);
      operation.point->reached = true;
      operation.point->status = before;
      return;
    }
    case Operation::Type::kWait: {
      absl::Status other;
      {
        absl::MutexLock lock(&operation.point->mutex);
        other = operation.point->status;
      }
      if (!other.ok()) Fail(std::move(other));
      ready_us_ = model_->NowUs();
      return;
    }
  }
}

void HostStream::Work() {
  for (;;) {
    std::unique_ptr<Operation> operation;
    {
      absl::MutexLock lock(&mutex_);
      running_ = false;
      mutex_.Await(absl::Condition(
          +[](HostStream* stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stream->mutex_) {
            return stream->ending_ || !stream->queue_.empty();
          },
          this));
      if (queue_.empty()) return;
      operation = std::move(queue_.front());
      queue_.pop_front();
      running_ = true;
    }
    ReadyToRun(*operation);
    Execute(*operation);
  }
}

bool HostStream::Step() {
  bool ran = false;
  for (;;) {
    Operation* operation = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      if (running_ || queue_.empty()) return ran;  // running_: a callback stepped its own stream
      operation = queue_.front().get();
    }
    if (!ReadyToRun(*operation)) return ran;
    std::unique_ptr<Operation> owned;
    {
      absl::MutexLock lock(&mutex_);
      owned = std::move(queue_.front());
      queue_.pop_front();
      running_ = true;
    }
    Execute(*owned);
    ran = true;
    absl::MutexLock lock(&mutex_);
    running_ = false;
  }
}

}  // namespace terrace::device
