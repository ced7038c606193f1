// A persistent team of threads for fork-join work of a few microseconds and up. Workers spin for a
// short while between calls, so that a layer's operators follow each other without a system call,
// and sleep when nothing comes: an idle team costs nothing, and a shared machine is not spun
// against. A sleeper wakes away from its caller's processor: where all others are busy for a
// moment, the kernel would put it behind the caller, which then does the work of both.
//
// Run and ParallelFor are called by one thread at a time (the caller is worker 0) and are not
// re-entrant. Memory written by a worker is visible to the caller when they return.
#ifndef TERRACE_DEVICE_CPU_THREAD_TEAM_H_
#define TERRACE_DEVICE_CPU_THREAD_TEAM_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

#include "os/processors.h"

namespace terrace {

class ThreadTeam {
 public:
  // `size` workers with the caller; see CpuCount() for how many the machine grants.
  // REQUIRES: size >= 1.
  explicit ThreadTeam(int size);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return size_; }

  // Calls fn(worker) once for each worker in [0, size()), at the same time; returns when all have.
  template <typename F>
  void Run(F&& fn) {
    using Callable = std::remove_reference_t<F>;
    RunErased([](void* context, int worker) { (*static_cast<Callable*>(context))(worker); },
              const_cast<void*>(static_cast<const void*>(&fn)));
  }

  // Splits [0, count) into chunks of at least `grain` (but for the last) and calls
  // fn(begin, end, worker) for each; a worker takes the next chunk when it is done with one, so a
  // slow core does not hold the others. Chunks shrink as the end comes near: long ones stream well,
  // short ones end together. Runs on the caller alone when `count` is at most `grain`.
  template <typename F>
  void ParallelFor(int64_t count, int64_t grain, F&& fn) {
    if (count <= 0) return;
    if (grain < 1) grain = 1;
    if (size_ == 1 || count <= grain) {
      fn(int64_t{0}, count, 0);
      return;
    }
    std::atomic<int64_t> next{0};
    Run([&](int worker) {
      int64_t begin = next.load(std::memory_order_relaxed);
      while (begin < count) {
        int64_t length = (count - begin) * 3 / (4 * size_);
        if (length < grain) length = grain < count - begin ? grain : count - begin;
        if (next.compare_exchange_weak(begin, begin + length, std::memory_order_relaxed)) {
          fn(begin, begin + length, worker);
          begin = next.load(std::memory_order_relaxed);
        }
      }
    });
  }

 private:
  using Function = void (*)(void* context, int worker);
  void RunErased(Function function, void* context);
  void Work(int worker);
  void WakeSleepers();

  const int size_;
  // What the generation now running calls; written before generation_ is raised.
  Function function_ = nullptr;
  void* context_ = nullptr;
  bool stop_ = false;
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<uint32_t> remaining_{0};
  alignas(64) std::atomic<int> sleepers_{0};
  std::vector<std::thread> threads_;
  const os::Processors processors_ = os::Processors::OfThisThread();
  int kept_off_ = -1;  // the processor that workers keep off
};

}  // namespace terrace

#endif  // TERRACE_DEVICE_CPU_THREAD_TEAM_H_
