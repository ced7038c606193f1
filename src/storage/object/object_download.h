// Brings an object to a file on disk in ranges, many at once: one state of the object pinned, only
// failed ranges repeated, resumed after a crash, checked, and never half under its final name.
#ifndef TERRACE_STORAGE_OBJECT_OBJECT_DOWNLOAD_H_
#define TERRACE_STORAGE_OBJECT_OBJECT_DOWNLOAD_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/units.h"
#include "storage/object/object_store.h"

namespace terrace::storage {

// How threads wait before they try again. Thread-safe.
class Sleeper {
 public:
  virtual ~Sleeper() = default;
  // Returns after `us`, or soon after `stop` is set.
  virtual void SleepUs(int64_t us, const std::atomic<bool>& stop) = 0;
};

class RealSleeper final : public Sleeper {
 public:
  void SleepUs(int64_t us, const std::atomic<bool>& stop) override;
};

struct DownloadProgress {
  uint64_t done_bytes = 0;  // of whole ranges, with what an earlier call left
  uint64_t total_bytes = 0;
};

struct DownloadOptions {
  uint64_t range_bytes = 8 * kMiB;
  // Most in one request: so many ranges that follow each other are asked for at once. Fewer at the
  // start, so that who waits for a header has it soon although all requests share the link, and
  // fewer towards the end, so that not all of the last ones come at the same moment. 0: one range.
  uint64_t request_bytes = 0;
  int parallel = 32;   // requests in flight, each on a thread and connection of its own
  std::string sha256;  // expected, 64 lower-case hexadecimal digits; empty: not checked
  int attempts = 6;    // of each request, and of the first look at the object
  int64_t backoff_us =
      200000;  // before the second attempt, doubled each time; half of it is random
  int64_t max_backoff_us = 10000000;
  int64_t time_limit_us = 0;         // of the whole call; 0: none
  int restarts = 1;                  // from nothing, because the object changed
  uint64_t save_bytes = 256 * kMiB;  // after so many, what has come is made to last
  std::function<void(const DownloadProgress&)> progress;  // on the calling thread
  // For readers that do not wait for the whole. `begun`, on the calling thread: the object's state
  // is known and "<destination>.partial" is there; an error ends the call with it. `came`, on any
  // thread: some bytes. `landed`, on any thread: a range's bytes are in that file. `wanted`, on any
  // thread: an offset whose range comes next.
  std::function<absl::Status(const ObjectInfo&)> begun;
  std::function<void()> came;
  std::function<void(uint64_t offset, uint64_t bytes)> landed;
  std::function<std::optional<uint64_t>()> wanted;
  const std::atomic<bool>* cancel = nullptr;  // set: ends soon with Cancelled
};

struct DownloadResult {
  uint64_t bytes = 0;
  std::string sha256;             // of the whole file
  uint64_t resumed_at_bytes = 0;  // what earlier calls had left
  int retries = 0;                // attempts after a first
  int restarts = 0;
};

// What it works with; all must outlive the call. `random` is used on any thread, one at a time.
struct DownloadContext {
  const Clock& clock;
  Random& random;
  Sleeper& sleeper;
};

// Blocks until done. Until then the bytes are in "<destination>.partial", and which of its ranges
// are on disk stands in DownloadNotePath(destination); a later call takes them up if the object is
// still the same one. Both are deleted where they are of no more use.
//
// Errors are those of ObjectStore and name the object: NotFound, PermissionDenied and
// FailedPrecondition at the first answer; Unavailable after the last attempt; Aborted if the object
// keeps changing or another process is fetching to the same file; DeadlineExceeded; Cancelled;
// DataLoss (the checksum differs: everything is deleted); ResourceExhausted (the disk is full).
absl::StatusOr<DownloadResult> DownloadObject(ObjectStore& store, const std::string& key,
                                              const std::string& destination,
                                              const DownloadOptions& options,
                                              const DownloadContext& context);

std::string DownloadNotePath(const std::string& destination);

}  // namespace terrace::storage

#endif  // TERRACE_STORAGE_OBJECT_OBJECT_DOWNLOAD_H_
