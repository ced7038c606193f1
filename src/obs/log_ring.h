// A logger that passes lines on and keeps the last ones, for the console. Thread-safe.
#ifndef TERRACE_OBS_LOG_RING_H_
#define TERRACE_OBS_LOG_RING_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "obs/log.h"

namespace terrace {

class LogRing final : public Logger {
 public:
  // `clock` must outlive it.
  LogRing(std::unique_ptr<Logger> next, const Clock* clock, size_t keep)
      : next_(std::move(next)), clock_(clock), keep_(keep) {}

  bool Enabled(LogLevel level) const override { return next_->Enabled(level); }
  void Log(LogLevel level, std::string_view message, LogFields fields) override;
  absl::Status Reopen() override { return next_->Reopen(); }

  // The lines kept, as JSON objects, oldest first; only those after number `after`, each with its
  // number. `*last` gets the number of the last line there has been.
  std::vector<std::string> Lines(uint64_t after, uint64_t* last) const;

 private:
  const std::unique_ptr<Logger> next_;
  const Clock* const clock_;
  const size_t keep_;
  mutable absl::Mutex mutex_;
  std::deque<std::string> lines_ ABSL_GUARDED_BY(mutex_);
  uint64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace terrace

#endif  // TERRACE_OBS_LOG_RING_H_
