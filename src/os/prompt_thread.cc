#include "os/prompt_thread.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace terrace::os {
namespace {

// The first form of the kernel's struct sched_attr, which Debian 12's libc does not declare.
struct SchedulingAttributes {
  uint32_t size = sizeof(SchedulingAttributes);
  uint32_t policy = SCHED_OTHER;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime_ns = 0;  // of SCHED_OTHER: the slice
  uint64_t deadline_ns = 0;
  uint64_t period_ns = 0;
};
static_assert(sizeof(SchedulingAttributes) == 48);

}  // namespace

void WakePromptly() {
  constexpr int kNice = -10;
  constexpr uint64_t kSliceNs = 100'000;
  const auto thread = static_cast<id_t>(::syscall(SYS_gettid));
  // First, because the call after it carries the nice value along.
  const bool nicer = ::setpriority(PRIO_PROCESS, thread, kNice) == 0;
  SchedulingAttributes attributes;
  attributes.nice = nicer ? kNice : ::getpriority(PRIO_PROCESS, thread);
  attributes.runtime_ns = kSliceNs;
  (void)::syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace terrace::os
