// A fixed number of named threads that run tasks in the order they were given. Thread-safe. Not for
// compute kernels (those have a thread team of their own) but for checksums, imports and fallback
// I/O.
#ifndef TERRACE_OS_WORKER_POOL_H_
#define TERRACE_OS_WORKER_POOL_H_

#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace terrace::os {

// Where work is handed to; the simulator has one that runs tasks when told.
class Executor {
 public:
  virtual ~Executor() = default;
  // Runs `task` later, on another thread. Tasks do not throw.
  virtual void Run(std::function<void()> task) = 0;
};

class WorkerPool final : public Executor {
 public:
  // `name` shows in debuggers and `top` (at most 15 letters).
  WorkerPool(const std::string& name, int threads);
  ~WorkerPool() override;  // runs what was given before, then ends
  void Run(std::function<void()> task) override;

 private:
  void Work();
  absl::Mutex mutex_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace terrace::os

#endif  // TERRACE_OS_WORKER_POOL_H_
