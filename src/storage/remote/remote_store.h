// KV blocks in a store that speaks the Redis protocol and that several servers share. Each value is
// a frame (storage/block_frame.h) and the block's bytes, under a name made of the block's key; what
// comes back is checked, so a damaged or foreign value is a miss. The store's own limits and
// eviction bound what it holds; every entry also carries a time to live.
//
// The store is an aid, never a need: after a failed or slow command it counts as down for a while
// and callers go on without it.
//
// Thread-safe; calls block on the network (each within the time limit) and are for worker threads.
#ifndef TERRACE_STORAGE_REMOTE_REMOTE_STORE_H_
#define TERRACE_STORAGE_REMOTE_REMOTE_STORE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "storage/block_frame.h"

struct redisContext;

namespace terrace {
class Clock;
}

namespace terrace::storage {

struct RemoteStoreOptions {
  std::string host = "127.0.0.1";
  int32_t port = 6379;
  std::string user;      // empty: the default user
  std::string password;  // empty: none is sent
  int32_t database = 0;
  int64_t timeout_us = 500'000;  // to connect, and of each command
  int64_t ttl_s = 24 * 3600;     // of an entry, from its last writing
  int64_t down_us = 5'000'000;   // how long nothing is tried after a failure
};

// Reads "redis://[user[:password]@]host[:port][/database]". InvalidArgument says what is wrong, and
// never repeats the password.
absl::StatusOr<RemoteStoreOptions> ParseRemoteUrl(std::string_view url);

struct RemoteStoreState {
  uint64_t written = 0;  // blocks since start
  uint64_t read = 0;
  uint64_t missing = 0;
  uint64_t damaged = 0;   // values that failed a check; they are deleted
  uint64_t failures = 0;  // commands that failed or took too long
  bool usable = true;
};

class RemoteStore {
 public:
  // Connects when first used. `clock` must outlive the store.
  RemoteStore(const RemoteStoreOptions& options, const Clock* clock);
  ~RemoteStore();
  RemoteStore(const RemoteStore&) = delete;
  RemoteStore& operator=(const RemoteStore&) = delete;

  // False for a while after a failure. Never blocks.
  bool usable() const;
  // How many of `keys`, from the first on without a gap, are there. 0 on failure.
  size_t CountPresent(std::span<const BlockKey> keys);
  // Unavailable while down or if the command fails.
  absl::Status Write(const BlockKey& key, std::span<const std::byte> data);
  // Fills `out`. NotFound for a value that is not there or fails a check; Unavailable as above.
  absl::Status Read(const BlockKey& key, std::span<std::byte> out);

  RemoteStoreState State() const;

 private:
  struct Closer {
    void operator()(redisContext* context) const;
  };
  using Connection = std::unique_ptr<redisContext, Closer>;
  // An idle connection, or a new one.
  absl::StatusOr<Connection> Take();
  absl::StatusOr<Connection> Connect() const;
  void Return(Connection connection);
  // Counts a failure and takes the store for down; the connection is not used again.
  absl::Status Failed(std::string_view what, std::string_view why);

  const RemoteStoreOptions options_;
  const Clock* const clock_;
  std::atomic<int64_t> down_until_us_{0};
  mutable absl::Mutex mutex_;
  std::vector<Connection> idle_ ABSL_GUARDED_BY(mutex_);
  RemoteStoreState state_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace::storage

#endif  // TERRACE_STORAGE_REMOTE_REMOTE_STORE_H_
