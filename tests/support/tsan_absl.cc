// Makes absl's locks known to ThreadSanitizer: the distribution's absl is not built with it, so
// that what its locks order would be reported as races. Linked into every program of a
// thread-sanitizer build; the program's symbols come before those of the shared library, which are
// called from here.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/base/options.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);

// The graph by which absl finds deadlocks lies behind a spin lock inside the library, which is not
// seen; its memmove is.
const char* __tsan_default_suppressions() { return "race:synchronization_internal::GraphCycles\n"; }
}

namespace {

#define TERRACE_TEXT(x) #x
#define TERRACE_TEXT_OF(x) TERRACE_TEXT(x)

// The library's own function; `name` is its mangled name without the namespace, which differs from
// version to version, and with a K before it if it is a const member.
template <typename Function>
Function* Next(const std::string& name) {
  const std::string space = TERRACE_TEXT_OF(ABSL_OPTION_INLINE_NAMESPACE_NAME);
  const bool is_const = name.starts_with("K");
  std::string symbol = (is_const ? "_ZNK4absl" : "_ZN4absl") + std::to_string(space.size()) +
                       space + name.substr(is_const ? 1 : 0);
  void* found = dlsym(RTLD_NEXT, symbol.c_str());
  if (found == nullptr) {
    std::fprintf(stderr, "absl has no %s\n", symbol.c_str());
    std::abort();
  }
  return reinterpret_cast<Function*>(found);
}

// Conditions of waiters are evaluated by whichever thread unlocks, between what this file says of
// the lock and what really happens to it.
class IgnoreReads {
 public:
  IgnoreReads() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~IgnoreReads() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
};

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  static auto* const next = Next<void(Mutex*)>("5Mutex4LockEv");
  next(this);
  __tsan_acquire(this);
}

void Mutex::Unlock() {
  static auto* const next = Next<void(Mutex*)>("5Mutex6UnlockEv");
  __tsan_release(this);
  const IgnoreReads ignore;
  next(this);
}

bool Mutex::TryLock() {
  static auto* const next = Next<bool(Mutex*)>("5Mutex7TryLockEv");
  const bool locked = next(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::ReaderLock() {
  static auto* const next = Next<void(Mutex*)>("5Mutex10ReaderLockEv");
  next(this);
  __tsan_acquire(this);
}

void Mutex::ReaderUnlock() {
  static auto* const next = Next<void(Mutex*)>("5Mutex12ReaderUnlockEv");
  __tsan_release(this);
  const IgnoreReads ignore;
  next(this);
}

void Mutex::LockWhen(const Condition& condition) {
  static auto* const next =
      Next<void(Mutex*, const Condition&)>("5Mutex8LockWhenERKNS0_9ConditionE");
  {
    const IgnoreReads ignore;
    next(this, condition);
  }
  __tsan_acquire(this);
}

bool Mutex::LockWhenWithTimeout(const Condition& condition, Duration timeout) {
  static auto* const next = Next<bool(Mutex*, const Condition&, Duration)>(
      "5Mutex19LockWhenWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  bool met = false;
  {
    const IgnoreReads ignore;
    met = next(this, condition, timeout);
  }
  __tsan_acquire(this);
  return met;
}

void Mutex::Await(const Condition& condition) {
  static auto* const next = Next<void(Mutex*, const Condition&)>("5Mutex5AwaitERKNS0_9ConditionE");
  __tsan_release(this);
  {
    const IgnoreReads ignore;
    next(this, condition);
  }
  __tsan_acquire(this);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  static auto* const next = Next<bool(Mutex*, const Condition&, Duration)>(
      "5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  bool met = false;
  __tsan_release(this);
  {
    const IgnoreReads ignore;
    met = next(this, condition, timeout);
  }
  __tsan_acquire(this);
  return met;
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  static auto* const next = Next<bool(Mutex*, const Condition&, Time)>(
      "5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  bool met = false;
  __tsan_release(this);
  {
    const IgnoreReads ignore;
    met = next(this, condition, deadline);
  }
  __tsan_acquire(this);
  return met;
}

void CondVar::Wait(Mutex* mutex) {
  static auto* const next = Next<void(CondVar*, Mutex*)>("7CondVar4WaitEPNS0_5MutexE");
  __tsan_release(mutex);
  {
    const IgnoreReads ignore;
    next(this, mutex);
  }
  __tsan_acquire(mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  static auto* const next = Next<bool(CondVar*, Mutex*, Duration)>(
      "7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE");
  bool timed_out = false;
  __tsan_release(mutex);
  {
    const IgnoreReads ignore;
    timed_out = next(this, mutex, timeout);
  }
  __tsan_acquire(mutex);
  return timed_out;
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  static auto* const next =
      Next<bool(CondVar*, Mutex*, Time)>("7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");
  bool timed_out = false;
  __tsan_release(mutex);
  {
    const IgnoreReads ignore;
    timed_out = next(this, mutex, deadline);
  }
  __tsan_acquire(mutex);
  return timed_out;
}

void Notification::Notify() {
  static auto* const next = Next<void(Notification*)>("12Notification6NotifyEv");
  __tsan_release(this);
  next(this);
}

void Notification::WaitForNotification() const {
  static auto* const next =
      Next<void(const Notification*)>("K12Notification19WaitForNotificationEv");
  next(this);
  __tsan_acquire(const_cast<Notification*>(this));
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  static auto* const next = Next<bool(const Notification*, Duration)>(
      "K12Notification30WaitForNotificationWithTimeoutENS0_8DurationE");
  const bool notified = next(this, timeout);
  __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}

ABSL_NAMESPACE_END
}  // namespace absl
