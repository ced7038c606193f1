// Which processors threads run on.
#ifndef TERRACE_OS_PROCESSORS_H_
#define TERRACE_OS_PROCESSORS_H_

#include <sched.h>

#include <thread>

namespace terrace::os {

// The processor that this thread runs on now; -1 if the system does not say.
int ThisProcessor();

// A set of processors that threads may be given. Immutable.
class Processors {
 public:
  // Those of the calling thread; none if the system does not say, or has more than 1,024.
  static Processors OfThisThread();

  int count() const { return CPU_COUNT(&set_); }
  // From now on `thread` runs on any of these but `processor`. False, with nothing changed, if
  // there is no other or the system refuses.
  bool KeepOff(int processor, std::thread& thread) const;

 private:
  Processors() { CPU_ZERO(&set_); }
  cpu_set_t set_;
};

}  // namespace terrace::os

#endif  // TERRACE_OS_PROCESSORS_H_
