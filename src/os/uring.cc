#include "os/uring.h"

#include <liburing.h>
#include <pthread.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "os/prompt_thread.h"
#include "os/worker_pool.h"

namespace terrace::os {
namespace {

struct Request {
  bool write;
  int fd;
  uint64_t offset;
  std::byte* data;
  size_t bytes;
  AsyncIo::Done done;
};

class UringIo final : public AsyncIo {
 public:
  UringIo(const io_uring& ring, const AsyncIoOptions& options)
      : ring_(ring), depth_(std::max(options.depth, 1u)), registered_(options.registered) {
    RegisterBuffers();
    reaper_ = std::thread([this] { Reap(); });
    pthread_setname_np(reaper_.native_handle(), "terrace-io");
  }

  ~UringIo() override {
    {
      absl::MutexLock lock(&mutex_);
      ending_ = true;
      // A request without an owner wakes the reaper, which ends once nothing is in flight.
      if (io_uring_sqe* sqe = io_uring_get_sqe(&ring_)) {
        io_uring_prep_nop(sqe);
        io_uring_sqe_set_data(sqe, nullptr);
        io_uring_submit(&ring_);
      }
    }
    reaper_.join();
    io_uring_queue_exit(&ring_);
  }

  void Read(int fd, uint64_t offset, std::span<std::byte> out, Done done) override {
    Add(new Request{false, fd, offset, out.data(), out.size(), std::move(done)});
  }
  void Write(int fd, uint64_t offset, std::span<const std::byte> data, Done done) override {
    Add(new Request{true, fd, offset, const_cast<std::byte*>(data.data()), data.size(),
                    std::move(done)});
  }
  bool uses_uring() const override { return true; }

 private:
  void RegisterBuffers() {
    std::vector<iovec> vectors;
    for (std::span<std::byte> memory : registered_)
      vectors.push_back({memory.data(), memory.size()});
    if (vectors.empty() ||
        io_uring_register_buffers(&ring_, vectors.data(), static_cast<unsigned>(vectors.size()))) {
      registered_.clear();
    }
  }

  void Add(Request* request) {
    absl::MutexLock lock(&mutex_);
    waiting_.push_back(request);
    StartLocked();
  }

  void StartLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (in_flight_ < depth_ && !waiting_.empty()) {
      io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
      if (sqe == nullptr) return;  // the reaper tries again after the next completion
      Request* request = waiting_.front();
      waiting_.pop_front();
      Prepare(sqe, *request);
      io_uring_sqe_set_data(sqe, request);
      ++in_flight_;
      io_uring_submit(&ring_);
    }
  }

  void Prepare(io_uring_sqe* sqe, const Request& request) {
    const auto bytes = static_cast<unsigned>(request.bytes);
    for (size_t i = 0; i < registered_.size(); ++i) {
      const std::span<std::byte>& memory = registered_[i];
      if (request.data < memory.data() ||
          request.data + request.bytes > memory.data() + memory.size()) {
        continue;
      }
      const int index = static_cast<int>(i);
      if (request.write) {
        io_uring_prep_write_fixed(sqe, request.fd, request.data, bytes, request.offset, index);
      } else {
        io_uring_prep_read_fixed(sqe, request.fd, request.data, bytes, request.offset, index);
      }
      return;
    }
    if (request.write) {
      io_uring_prep_write(sqe, request.fd, request.data, bytes, request.offset);
    } else {
      io_uring_prep_read(sqe, request.fd, request.data, bytes, request.offset);
    }
  }

  void Reap() {
    WakePromptly();
    for (;;) {
      io_uring_cqe* cqe = nullptr;
      int error = io_uring_wait_cqe(&ring_, &cqe);
      if (error == -EINTR || cqe == nullptr) continue;
      auto* request = static_cast<Request*>(io_uring_cqe_get_data(cqe));
      const int64_t result = cqe->res;
      io_uring_cqe_seen(&ring_, cqe);
      {
        absl::MutexLock lock(&mutex_);
        if (request != nullptr) {
          --in_flight_;
          StartLocked();
        }
      }
      if (request != nullptr) {
        request->done(result);
        delete request;
      }
      absl::MutexLock lock(&mutex_);
      if (ending_ && in_flight_ == 0 && waiting_.empty()) return;
    }
  }

  io_uring ring_;
  const uint32_t depth_;
  std::vector<std::span<std::byte>> registered_;
  absl::Mutex mutex_;
  std::deque<Request*> waiting_ ABSL_GUARDED_BY(mutex_);
  uint32_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread reaper_;
};

class ThreadIo final : public AsyncIo {
 public:
  explicit ThreadIo(const AsyncIoOptions& options)
      : pool_("terrace-io", static_cast<int>(std::max(1u, options.fallback_threads))) {}

  void Read(int fd, uint64_t offset, std::span<std::byte> out, Done done) override {
    pool_.Run([=, done = std::move(done)] {
      ssize_t n;
      do {
        n = ::pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
      } while (n < 0 && errno == EINTR);
      done(n < 0 ? -errno : n);
    });
  }
  void Write(int fd, uint64_t offset, std::span<const std::byte> data, Done done) override {
    pool_.Run([=, done = std::move(done)] {
      ssize_t n;
      do {
        n = ::pwrite(fd, data.data(), data.size(), static_cast<off_t>(offset));
      } while (n < 0 && errno == EINTR);
      done(n < 0 ? -errno : n);
    });
  }
  bool uses_uring() const override { return false; }

 private:
  WorkerPool pool_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<AsyncIo>> AsyncIo::Create(const AsyncIoOptions& options) {
  if (options.allow_uring) {
    io_uring ring;
    if (io_uring_queue_init(std::max(options.depth, 1u) + 1, &ring, 0) == 0) {
      return std::unique_ptr<AsyncIo>(std::make_unique<UringIo>(ring, options));
    }
  }
  return std::unique_ptr<AsyncIo>(std::make_unique<ThreadIo>(options));
}

}  // namespace terrace::os
