// Tells a hung engine from a busy one. Used by one thread.
#ifndef TERRACE_SERVER_WATCHDOG_H_
#define TERRACE_SERVER_WATCHDOG_H_

#include <cstdint>

namespace terrace::server {

class Watchdog {
 public:
  // What is seen of the engine at one moment.
  struct Sample {
    int64_t now_us = 0;
    // The engine let nobody look at it: what this tells of its work is from before.
    bool stale = false;
    bool has_work = false;     // requests are waiting or running
    int64_t last_step_us = 0;  // clock time of the last finished step
    uint64_t pins = 0;         // segments of weights handed out: several a step
    uint64_t moved_bytes = 0;  // over all links since start
    int64_t cpu_us = 0;        // computed by the engine's threads since start
    bool runnable = false;     // one of them has something to compute, or pages come from a disk
    bool waits_for_store = false;  // beyond this machine, whose silence has bounds of its own
    bool waits = false;  // for bytes on their way, for memory, or because nothing can go on
  };
  // What a busy engine does without any progress for long: one layer of a large model on a slow
  // machine. It is believed this many times as long, since an
  // endless loop looks the same.
  static constexpr int kPatience = 20;
  // Looks further apart count as this far: the process, or the machine, stood still meanwhile.
  static constexpr int64_t kMostGapUs = 1'000'000;

  explicit Watchdog(int64_t timeout_us) : timeout_us_(timeout_us) {}

  // True if the engine is hung: it has had work for the time-out (by kPatience while its threads
  // compute or wait for something) without a step, a pin or a byte, and did not wait for a store.
  bool Look(const Sample& sample);

 private:
  const int64_t timeout_us_;
  Sample last_;  // the last that showed progress
  Sample before_;
  bool seen_ = false;
  int64_t still_us_ = 0;
};

}  // namespace terrace::server

#endif  // TERRACE_SERVER_WATCHDOG_H_
