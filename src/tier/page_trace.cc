#include "tier/page_trace.h"

#include <limits>

namespace terrace::tier {

void PageTrace::Touch(ModelId model, uint32_t segment, uint64_t offset, uint64_t bytes) {
  if (bytes == 0) return;
  absl::MutexLock lock(&mutex_);
  std::vector<std::vector<uint32_t>>& segments = reads_[model];
  if (segments.size() <= segment) segments.resize(segment + 1);
  std::vector<uint32_t>& pages = segments[segment];
  const uint64_t first = offset / kPageBytes, end = (offset + bytes - 1) / kPageBytes + 1;
  if (pages.size() < end) pages.resize(end);
  for (uint64_t page = first; page < end; ++page) {
    if (pages[page] < std::numeric_limits<uint32_t>::max()) ++pages[page];
  }
}

std::vector<std::vector<uint32_t>> PageTrace::Reads(ModelId model) const {
  absl::MutexLock lock(&mutex_);
  auto found = reads_.find(model);
  return found == reads_.end() ? std::vector<std::vector<uint32_t>>() : found->second;
}

void PageTrace::Forget(ModelId model) {
  absl::MutexLock lock(&mutex_);
  reads_.erase(model);
}

}  // namespace terrace::tier
