#include "device/cpu/thread_team.h"

#include <chrono>
#include <string>

#include "os/thread_usage.h"

namespace terrace {
namespace {

// How long a worker looks for the next call before it sleeps. A layer's operators come every 5 to
// 100 us; waking a sleeper costs 5 to 50 us.
constexpr std::chrono::microseconds kSpin{60};

void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until done() or the time is up; true if done. Gives its time slice away now and then, so
// that on a machine with more runnable threads than cores the one waited for gets to run.
template <typename F>
bool Spin(F done) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  while (true) {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      Relax();
    }
    if (std::chrono::steady_clock::now() >= deadline) return done();
    std::this_thread::yield();
  }
}

}  // namespace

ThreadTeam::ThreadTeam(int size) : size_(size < 1 ? 1 : size) {
  threads_.reserve(static_cast<size_t>(size_ - 1));
  for (int worker = 1; worker < size_; ++worker) {
    threads_.emplace_back([this, worker] { Work(worker); });
  }
}

ThreadTeam::~ThreadTeam() {
  stop_ = true;
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadTeam::RunErased(Function function, void* context) {
  if (size_ == 1) {
    function(context, 0);
    return;
  }
  function_ = function;
  context_ = context;
  remaining_.store(static_cast<uint32_t>(size_ - 1), std::memory_order_relaxed);
  // Sequentially consistent with a sleeper's registration: either it sees the new generation or we
  // see it in sleepers_.
  generation_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) WakeSleepers();
  function(context, 0);
  if (Spin([&] { return remaining_.load(std::memory_order_acquire) == 0; })) return;
  while (true) {
    const uint32_t left = remaining_.load(std::memory_order_acquire);
    if (left == 0) return;
    remaining_.wait(left, std::memory_order_acquire);
  }
}

void ThreadTeam::WakeSleepers() {
  // With fewer workers than processors there is always another one to wake on.
  if (size_ >= processors_.count() && os::ThisProcessor() != kept_off_) {
    kept_off_ = os::ThisProcessor();
    for (std::thread& thread : threads_) (void)processors_.KeepOff(kept_off_, thread);
  }
  generation_.notify_all();
}

void ThreadTeam::Work(int worker) {
  os::NameThisThread("engine-" + std::to_string(worker));
  uint32_t seen = 0;
  while (true) {
    const auto arrived = [&] { return generation_.load(std::memory_order_acquire) != seen; };
    if (!Spin(arrived)) {
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      generation_.wait(seen, std::memory_order_seq_cst);
      sleepers_.fetch_sub(1, std::memory_order_relaxed);
      if (!arrived()) continue;
    }
    seen = generation_.load(std::memory_order_acquire);
    if (stop_) return;
    function_(context_, worker);
    if (remaining_.fetch_sub(1, std::memory_order_acq_rel) == 1) remaining_.notify_one();
  }
}

}  // namespace terrace
