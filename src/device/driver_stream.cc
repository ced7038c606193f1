#include "device/driver_stream.h"

#include <utility>

#include "base/status.h"

namespace terrace::device {
namespace {

// Drivers may hold operations until they are told to begin; not each is worth telling.
constexpr uint32_t kFlushEvery = 16;

}  // namespace

void DriverPoint::Submit(std::unique_ptr<DriverMark> mark, absl::Status status) {
  absl::MutexLock lock(&mutex_);
  mark_ = std::move(mark);
  status_ = std::move(status);
  submitted_ = true;
}

bool DriverPoint::submitted() const {
  absl::MutexLock lock(&mutex_);
  return submitted_;
}

void DriverPoint::AwaitSubmitted() const {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&submitted_));
}

const DriverMark* DriverPoint::mark() const {
  absl::MutexLock lock(&mutex_);
  return mark_.get();
}

absl::Status DriverPoint::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

absl::StatusOr<bool> DriverPoint::Query() const {
  if (!submitted()) return false;
  if (const DriverMark* set = mark(); set != nullptr) {
    ASSIGN_OR_RETURN(const bool reached, set->Query());
    if (!reached) return false;
  }
  RETURN_IF_ERROR(status());
  return true;
}

absl::Status DriverPoint::Synchronize() const {
  AwaitSubmitted();
  if (const DriverMark* set = mark(); set != nullptr) RETURN_IF_ERROR(set->Wait());
  return status();
}

absl::StatusOr<bool> DriverEvent::Query() const {
  const std::shared_ptr<DriverPoint> current = point();
  return current == nullptr ? absl::StatusOr<bool>(true) : current->Query();
}

absl::Status DriverEvent::Synchronize() const {
  const std::shared_ptr<DriverPoint> current = point();
  return current == nullptr ? absl::OkStatus() : current->Synchronize();
}

std::shared_ptr<DriverPoint> DriverEvent::NewPoint() {
  absl::MutexLock lock(&mutex_);
  point_ = std::make_shared<DriverPoint>();
  return point_;
}

std::shared_ptr<DriverPoint> DriverEvent::point() const {
  absl::MutexLock lock(&mutex_);
  return point_;
}

DriverStream::DriverStream(std::unique_ptr<DriverQueue> queue) : queue_(std::move(queue)) {
  worker_ = std::thread([this] { Work(); });
}

DriverStream::~DriverStream() {
  {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
  }
  worker_.join();
}

absl::Status DriverStream::CopyAsync(CopyDirection direction, std::byte* to, const std::byte* from,
                                     uint64_t bytes) {
  if (bytes > 0 && (to == nullptr || from == nullptr)) {
    return absl::InvalidArgumentError("copy with a null address");
  }
  RETURN_IF_ERROR(queue_->CheckCopy(direction, to, from, bytes));
  if (bytes == 0) return absl::OkStatus();
  Operation operation{Operation::Type::kCopy};
  operation.direction = direction;
  operation.to = to;
  operation.from = from;
  operation.bytes = bytes;
  return Submit(std::move(operation));
}

absl::Status DriverStream::HostCallback(std::function<void(absl::Status)> callback) {
  if (callback == nullptr) return absl::InvalidArgumentError("empty callback");
  Operation operation{Operation::Type::kCallback};
  operation.callback = std::move(callback);
  absl::MutexLock lock(&mutex_);
  held_back_.push_back(std::move(operation));
  return absl::OkStatus();
}

absl::Status DriverStream::Launch(const Kernel& kernel, const LaunchShape& shape,
                                  std::span<const KernelArgument> arguments) {
  for (size_t i = 0; i < 3; ++i) {
    if (shape.groups[i] == 0 || shape.items[i] == 0) {
      return absl::InvalidArgumentError("launch of no work");
    }
  }
  RETURN_IF_ERROR(queue_->CheckLaunch(kernel, shape, arguments));
  Operation operation{Operation::Type::kLaunch};
  operation.kernel = &kernel;
  operation.shape = shape;
  absl::MutexLock lock(&mutex_);
  if (DirectLocked()) {
    HandOverLocked(operation, arguments);
    return absl::OkStatus();
  }
  operation.arguments.assign(arguments.begin(), arguments.end());
  held_back_.push_back(std::move(operation));
  return absl::OkStatus();
}

absl::Status DriverStream::Record(Event* event) {
  auto* own = dynamic_cast<DriverEvent*>(event);
  if (own == nullptr) return absl::InvalidArgumentError("event of another device");
  Operation operation{Operation::Type::kRecord};
  operation.point = own->NewPoint();
  return Submit(std::move(operation));
}

absl::Status DriverStream::Wait(const Event& event) {
  const auto* own = dynamic_cast<const DriverEvent*>(&event);
  if (own == nullptr) return absl::InvalidArgumentError("event of another device");
  Operation operation{Operation::Type::kWait};
  operation.point = own->point();
  if (operation.point == nullptr) return absl::OkStatus();
  return Submit(std::move(operation));
}

absl::Status DriverStream::Synchronize() {
  {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](DriverStream* stream)
             ABSL_SHARED_LOCKS_REQUIRED(stream->mutex_) { return stream->DirectLocked(); },
        this));
  }
  Finish();
  absl::MutexLock lock(&mutex_);
  return status_;
}

absl::Status DriverStream::Multiply(const MatrixProduct& product) {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(
      +[](DriverStream* stream)
           ABSL_SHARED_LOCKS_REQUIRED(stream->mutex_) { return stream->DirectLocked(); },
      this));
  FailLocked(queue_->HandOver());
  RETURN_IF_ERROR(status_);
  return queue_->Multiply(product);
}

void DriverStream::ClearError() {
  absl::MutexLock lock(&mutex_);
  status_ = absl::OkStatus();
}

absl::Status DriverStream::Submit(Operation operation) {
  absl::MutexLock lock(&mutex_);
  const bool waits = operation.type == Operation::Type::kWait && !operation.point->submitted();
  if (DirectLocked() && !waits) {
    HandOverLocked(operation, operation.arguments);
  } else {
    held_back_.push_back(std::move(operation));
  }
  return absl::OkStatus();
}

void DriverStream::HandOverLocked(Operation& operation, std::span<const KernelArgument> arguments) {
  switch (operation.type) {
    case Operation::Type::kCopy:
      if (!status_.ok()) return;
      FailLocked(queue_->Copy(operation.direction, operation.to, operation.from, operation.bytes));
      break;
    case Operation::Type::kLaunch:
      if (!status_.ok()) return;
      FailLocked(queue_->Launch(*operation.kernel, operation.shape, arguments));
      break;
    case Operation::Type::kRecord:
      RecordLocked(*operation.point);
      return;
    case Operation::Type::kWait:
      WaitLocked(*operation.point);
      return;
    case Operation::Type::kCallback:
      return;  // the thread's own
  }
  if (++unflushed_ >= kFlushEvery) {
    unflushed_ = 0;
    FailLocked(queue_->Flush());
  }
}

void DriverStream::RecordLocked(DriverPoint& point) {
  absl::StatusOr<std::unique_ptr<DriverMark>> mark = queue_->Mark();
  unflushed_ = 0;
  FailLocked(mark.status());
  point.Submit(mark.ok() ? *std::move(mark) : nullptr, status_);
}

void DriverStream::WaitLocked(const DriverPoint& point) {
  FailLocked(point.status());
  if (const DriverMark* mark = point.mark(); mark != nullptr) FailLocked(queue_->WaitFor(*mark));
}

void DriverStream::FailLocked(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

void DriverStream::Finish() {
  absl::Status finished = queue_->Finish();
  absl::MutexLock lock(&mutex_);
  FailLocked(std::move(finished));
}

void DriverStream::Work() {
  absl::MutexLock lock(&mutex_);
  for (;;) {
    working_ = false;
    mutex_.Await(absl::Condition(
        +[](DriverStream* stream) ABSL_SHARED_LOCKS_REQUIRED(stream->mutex_) {
          return stream->ending_ || !stream->held_back_.empty();
        },
        this));
    if (held_back_.empty()) return;
    Operation operation = std::move(held_back_.front());
    held_back_.pop_front();
    working_ = true;
    if (operation.type == Operation::Type::kCallback) {
      mutex_.Unlock();
      Finish();
      mutex_.Lock();
      const absl::Status so_far = status_;
      mutex_.Unlock();
      operation.callback(so_far);
      operation.callback = nullptr;
      mutex_.Lock();
      continue;
    }
    if (operation.type == Operation::Type::kWait) {
      mutex_.Unlock();
      operation.point->AwaitSubmitted();
      mutex_.Lock();
    }
    HandOverLocked(operation, operation.arguments);
  }
}

}  // namespace terrace::device
