// Watches a file by its name, so that editors which replace it and mounts which swap links are
// seen, and calls when its content may have changed. One thread of its own.
#ifndef TERRACE_CLI_CONFIG_WATCH_H_
#define TERRACE_CLI_CONFIG_WATCH_H_

#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace terrace::cli {

class ConfigWatch {
 public:
  // Calls `changed` on the watching thread. The file is looked at every half second, and twice with
  // the same result before it is believed, so that a half-written one is not read.
  // `known`: StampOf(path) from when the file was read; what has changed since is told, too.
  ConfigWatch(std::string path, std::string known, std::function<void()> changed);
  ~ConfigWatch();
  ConfigWatch(const ConfigWatch&) = delete;
  ConfigWatch& operator=(const ConfigWatch&) = delete;

  // Identity, size and time of what the name means now; empty: nothing.
  static std::string StampOf(const std::string& path);

 private:
  void Run();

  const std::string path_;
  std::string known_;  // of the watching thread
  const std::function<void()> changed_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace terrace::cli

#endif  // TERRACE_CLI_CONFIG_WATCH_H_
