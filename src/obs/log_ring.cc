#include "obs/log_ring.h"

#include <algorithm>

namespace terrace {

void LogRing::Log(LogLevel level, std::string_view message, LogFields fields) {
  next_->Log(level, message, fields);
  std::string line = FormatLogLine(LogFormat::kJson, clock_->WallUs(), level, message, fields);
  absl::MutexLock lock(&mutex_);
  lines_.push_back(std::move(line));
  ++count_;
  while (lines_.size() > keep_) lines_.pop_front();
}

std::vector<std::string> LogRing::Lines(uint64_t after, uint64_t* last) const {
  absl::MutexLock lock(&mutex_);
  *last = count_;
  const uint64_t first = count_ - lines_.size();
  const uint64_t skip = after > first ? std::min<uint64_t>(after - first, lines_.size()) : 0;
  return {lines_.begin() + static_cast<ptrdiff_t>(skip), lines_.end()};
}

}  // namespace terrace
