#include "os/processors.h"

#include <pthread.h>

namespace terrace::os {

int ThisProcessor() { return ::sched_getcpu(); }

Processors Processors::OfThisThread() {
  Processors all;
  if (::sched_getaffinity(0, sizeof(all.set_), &all.set_) != 0) CPU_ZERO(&all.set_);
  return all;
}

bool Processors::KeepOff(int processor, std::thread& thread) const {
  cpu_set_t others = set_;
  if (processor >= 0 && processor < CPU_SETSIZE) CPU_CLR(static_cast<size_t>(processor), &others);
  if (CPU_COUNT(&others) == 0) return false;
  return ::pthread_setaffinity_np(thread.native_handle(), sizeof(others), &others) == 0;
}

}  // namespace terrace::os
