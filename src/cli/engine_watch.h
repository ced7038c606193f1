// Watches the engine of a server on a thread of its own: says several times a second that all is
// well (to the supervisor and the service manager), and reports once when it hangs.
#ifndef TERRACE_CLI_ENGINE_WATCH_H_
#define TERRACE_CLI_ENGINE_WATCH_H_

#include <cstdint>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "cli/supervisor.h"
#include "server/engine_view.h"
#include "server/watchdog.h"

namespace terrace {
class Clock;
}

namespace terrace::cli {

struct EngineWatchDeps {
  const Clock* clock = nullptr;
  SupervisorLink* link = nullptr;
  server::EngineView* view = nullptr;
  scheduler::Scheduler* scheduler = nullptr;  // asked for signs of life while it has no work
  // Called once, on the watching thread, which then ends. What it asks of the engine may hang.
  std::function<void()> hung;
};

class EngineWatch {
 public:
  // `timeout_us`: see Watchdog; 0: never hung. The deps must outlive this.
  EngineWatch(int64_t timeout_us, EngineWatchDeps deps);
  ~EngineWatch();  // ends the watch
  EngineWatch(const EngineWatch&) = delete;
  EngineWatch& operator=(const EngineWatch&) = delete;

 private:
  void Watch();
  server::Watchdog::Sample Look(bool probe) const;

  const int64_t timeout_us_;
  const EngineWatchDeps deps_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace terrace::cli

#endif  // TERRACE_CLI_ENGINE_WATCH_H_
