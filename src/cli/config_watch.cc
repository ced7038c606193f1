#include "cli/config_watch.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <utility>

#include "absl/time/time.h"

namespace terrace::cli {
namespace {

constexpr absl::Duration kEvery = absl::Milliseconds(500);

}  // namespace

ConfigWatch::ConfigWatch(std::string path, std::string known, std::function<void()> changed)
    : path_(std::move(path)),
      known_(std::move(known)),
      changed_(std::move(changed)),
      thread_([this] { Run(); }) {}

ConfigWatch::~ConfigWatch() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

std::string ConfigWatch::StampOf(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return "";
  return fmt::format("{}:{}:{}:{}.{}", info.st_dev, info.st_ino, info.st_size, info.st_mtim.tv_sec,
                     info.st_mtim.tv_nsec);
}

void ConfigWatch::Run() {
  std::string seen = known_;
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kEvery);
      if (stopping_) return;
    }
    std::string now = StampOf(path_);
    const bool settled = now == seen;
    seen = std::move(now);
    // A file that is gone for a moment is being replaced.
    if (!settled || seen.empty() || seen == known_) continue;
    known_ = seen;
    changed_();
  }
}

}  // namespace terrace::cli
