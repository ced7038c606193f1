// Which 4 KiB pages of a model's weights are read, and how often: finer than segments, to see what
// of a model a workload needs (rows of an embedding table, experts). Kept only where it is asked
// for (memory.trace_pages), since it costs a counter of 4 bytes a page.
//
// Thread-safe.
#ifndef TERRACE_TIER_PAGE_TRACE_H_
#define TERRACE_TIER_PAGE_TRACE_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "tier/types.h"

namespace terrace::tier {

class PageTrace {
 public:
  static constexpr uint64_t kPageBytes = 4096;

  // [offset, offset + bytes) of the segment was read.
  void Touch(ModelId model, uint32_t segment, uint64_t offset, uint64_t bytes);
  // Reads of each page of each segment so far; shorter than the segment where its end was never
  // read, empty for a model or segment that was not read at all.
  std::vector<std::vector<uint32_t>> Reads(ModelId model) const;
  void Forget(ModelId model);

 private:
  mutable absl::Mutex mutex_;
  std::map<ModelId, std::vector<std::vector<uint32_t>>> reads_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace::tier

#endif  // TERRACE_TIER_PAGE_TRACE_H_
