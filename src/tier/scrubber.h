// Reads the images on disk again and again while nothing else wants the disk, so that what rots is
// found and made anew while its source is still there, not on the day when it is needed.
//
// One thread of its own; State() may be called from any. The manager must outlive it.
#ifndef TERRACE_TIER_SCRUBBER_H_
#define TERRACE_TIER_SCRUBBER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "os/mapping.h"
#include "tier/tier_manager.h"

namespace terrace::tier {

struct ScrubOptions {
  // Every block is read about once in so long; 0: Step() does not wait between blocks.
  int64_t round_us = int64_t{7} * 24 * 3600 * 1'000'000;
  // The disk has been idle for so long before a block is read.
  int64_t idle_us = 1'000'000;
  // Told, on the scrubber's thread, what was damaged and what became of it. May be empty.
  std::function<void(const std::string& model, const std::string& message)> notice;
};

struct ScrubState {
  uint64_t bytes = 0;    // read and found good, since start
  uint64_t rounds = 0;   // over all images, since start
  uint64_t damaged = 0;  // segments with a block that did not match its checksum twice
  uint64_t mended = 0;   // of those, made anew by their source
};

class Scrubber {
 public:
  Scrubber(TierManager* manager, ScrubOptions options);
  ~Scrubber();
  Scrubber(const Scrubber&) = delete;
  Scrubber& operator=(const Scrubber&) = delete;

  void Start();  // the thread; without it Step() is the caller's (tests)
  // Reads the next segment's blocks, whatever time it is. False if no image is complete.
  bool Step();
  ScrubState State() const;

 private:
  struct Place {
    ModelSource model;
    uint32_t segment = 0;
  };
  void Run();
  // The segment after the last one, in order of model ids.
  std::optional<Place> Next();
  bool Idle();
  int64_t PauseUs(uint64_t bytes) const;
  // OK, or what is wrong with one of the blocks.
  absl::Status Check(const Place& place, const SegmentSource::OnDisk& disk);
  absl::Status ReadBlock(const SegmentSource::OnDisk& disk, const DiskBlock& block);
  void Mend(const Place& place, const absl::Status& damage);

  TierManager* const manager_;
  const ScrubOptions options_;
  os::Mapping memory_;  // of one block
  ModelId model_ = 0;   // of the last segment
  uint32_t segment_ = 0;
  uint64_t all_bytes_ = 0;   // of every image, as of the last look
  uint64_t last_bytes_ = 0;  // of the last segment
  uint64_t link_bytes_ = 0;  // moved by the disk link when it was last looked at
  CancelFlag cancel_;
  mutable absl::Mutex mutex_;
  absl::CondVar wake_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  ScrubState state_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace terrace::tier

#endif  // TERRACE_TIER_SCRUBBER_H_
