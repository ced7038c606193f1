// The clock interface that everything takes instead of reading the time itself, so that tests and
// the simulator decide what time it is. Thread-safe.
#ifndef TERRACE_BASE_CLOCK_H_
#define TERRACE_BASE_CLOCK_H_

#include <atomic>
#include <cstdint>

namespace terrace {

class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic microseconds since an arbitrary start.
  virtual int64_t NowUs() const = 0;
  // Wall-clock microseconds since the Unix epoch.
  virtual int64_t WallUs() const = 0;
};

class RealClock final : public Clock {
 public:
  int64_t NowUs() const override;
  int64_t WallUs() const override;
};

// A clock that stands still until told; starts at `start_us`.
class ManualClock final : public Clock {
 public:
  explicit ManualClock(int64_t start_us = 0) : now_us_(start_us) {}
  int64_t NowUs() const override { return now_us_.load(std::memory_order_relaxed); }
  int64_t WallUs() const override { return NowUs(); }
  void AdvanceUs(int64_t us) { now_us_.fetch_add(us, std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> now_us_;
};

}  // namespace terrace

#endif  // TERRACE_BASE_CLOCK_H_
