// Ranges of files that belong to no segment: they share the disk link with the weights.
#include <utility>

#include "tier/manager_impl.h"

namespace terrace::tier {

uint64_t TierManagerImpl::ReadRanges(std::vector<FileRange> ranges, Priority priority,
                                     TierManager::RangeDone done) {
  if (ranges.empty()) return 0;
  auto reads = std::make_shared<RangeReads>();
  reads->ranges = std::move(ranges);
  reads->started.resize(reads->ranges.size());
  reads->left = reads->ranges.size();
  reads->done = std::move(done);
  {
    absl::MutexLock lock(&mutex_);
    reads->id = next_load_++;
    ranges_.emplace(reads->id, reads);
    for (uint32_t i = 0; i < reads->ranges.size(); ++i) {
      disk_.Push({.owner = reads->id,
                  .index = i,
                  .bytes = reads->ranges[i].out.size(),
                  .priority = priority});
    }
  }
  Pump();
  return reads->id;
}

void TierManagerImpl::CancelRanges(uint64_t number) {
  std::shared_ptr<RangeReads> reads;
  std::vector<size_t> dropped;
  {
    absl::MutexLock lock(&mutex_);
    auto found = ranges_.find(number);
    if (found == ranges_.end()) return;
    reads = found->second;
    disk_.Cancel(number);
    for (size_t i = 0; i < reads->started.size(); ++i) {
      if (reads->started[i]) continue;
      reads->started[i] = true;
      dropped.push_back(i);
    }
  }
  for (size_t i : dropped) reads->done(i, absl::CancelledError("the read is not wanted any more"));
  absl::MutexLock lock(&mutex_);
  RangesEndedLocked(*reads, dropped.size());
}

void TierManagerImpl::ReadRange(const std::shared_ptr<RangeReads>& reads,
                                const Transfer& transfer) {
  const FileRange& range = reads->ranges[transfer.index];
  parts_.reader->Read(*range.file, range.offset, range.out,
                      [this, reads, transfer](absl::Status status) {
                        {
                          absl::MutexLock lock(&mutex_);
                          EndedLocked(disk_, transfer, status.ok());
                        }
                        // The next reads start before this one's owner looks at its bytes.
                        Pump();
                        reads->done(transfer.index, std::move(status));
                        absl::MutexLock lock(&mutex_);
                        RangesEndedLocked(*reads, 1);
                      });
}

void TierManagerImpl::RangesEndedLocked(RangeReads& reads, size_t count) {
  reads.left -= count;
  if (reads.left > 0) return;
  ranges_.erase(reads.id);
  changed_.SignalAll();
}

TierManager::DiskLoad TierManagerImpl::disk_load() const {
  absl::MutexLock lock(&mutex_);
  return {disk_.bandwidth_bytes_per_s(), disk_.waiting_bytes()};
}

}  // namespace terrace::tier
