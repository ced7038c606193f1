// How much weights of other models may move while a model decodes. Moving them takes memory
// bandwidth, and on small machines processor time, from the steps that run meanwhile; here that
// cost is measured, and what loads may move in a step is set so that steps grow by a set share at
// most. Pure book-keeping, as the transfer queues: its user asks before it starts a transfer.
//
// The cost is a time a byte: what steps with bytes moving took beyond equal steps without, over
// those bytes. While loads are held back, now and then some steps run without any, to compare with.
//
// Not thread-safe: guarded by its user's lock.
#ifndef TERRACE_TIER_LOAD_BRAKE_H_
#define TERRACE_TIER_LOAD_BRAKE_H_

#include <cstdint>
#include <map>
#include <utility>

#include "tier/compute_step.h"

namespace terrace::tier {

class LoadBrake {
 public:
  // `slowdown`: by which share of its time a step may grow; 0: nothing is ever held back.
  explicit LoadBrake(double slowdown) : slowdown_(slowdown) {}

  void Begin(const ComputeStep& step, int64_t now_us);
  // `busy_us`: what the step took without waiting for bytes of its own; 0: it failed.
  void End(int64_t busy_us, int64_t now_us);
  // Nobody computes any more: nothing is held back until the next step begins.
  void Pause() { active_ = false; }
  bool paused() const { return !active_; }
  // Nothing is held back until the next step begins: the one under way waits for what loads hold.
  void Lift() { lifted_ = true; }

  // Whether a transfer that nobody waits for has to wait now. A step of which nothing has been
  // heard for long holds nothing back.
  bool Holds(int64_t now_us) const;
  // One had to.
  void Held() { held_ = true; }
  bool held() const { return held_; }  // in this step

  // A transfer has started: one that may be held back (it is paid for), or another.
  void Started(uint64_t bytes, bool may_be_held);
  void Ended(uint64_t bytes, bool moved);

  const ComputeStep& step() const { return step_; }
  int64_t began_us() const { return began_us_; }
  // Time that a byte costs the steps it moves in.
  double us_per_byte() const { return us_per_byte_; }
  // What loads may take in a second of steps like the last one; 0: no limit.
  double bytes_per_s(int64_t now_us) const;

 private:
  struct Alone {
    double us = 0;  // moving average of steps without transfers; 0: not measured yet
    int64_t at_us = 0;
    double least_us = 0;  // of all steps of the kind, lately
  };
  uint64_t StepBytes() const;
  void Learn(const Alone& alone, double busy_us, double bytes);

  const double slowdown_;
  ComputeStep step_;
  int64_t began_us_ = 0;
  int64_t heard_us_ = 0;  // of a step's begin or end
  bool active_ = false;
  bool lifted_ = false;
  bool held_ = false;
  bool learns_ = false;
  bool quiet_ = false;  // nothing was under way when the step began
  double credit_ = 0;   // bytes that may start; below 0 for the rest of one that was begun
  uint32_t under_way_ = 0;
  uint64_t moved_ = 0;       // since the last step's end
  int32_t quiet_steps_ = 0;  // in a row

  std::map<std::pair<ModelId, int32_t>, Alone> alone_;  // by model and rows
  double last_us_ = 0;
  int32_t since_quiet_ = 0;      // comparable steps since `alone_` was measured
  int32_t quiet_left_ = 0;       // steps that hold everything back, to measure it
  double us_per_byte_ = 0.2e-3;  // at first: 1 GB/s costs a fifth, as on a small machine
  double extra_us_ = 0;          // of steps since the last estimate
  double bytes_ = 0;
  int32_t steps_ = 0;
};

}  // namespace terrace::tier

#endif  // TERRACE_TIER_LOAD_BRAKE_H_
