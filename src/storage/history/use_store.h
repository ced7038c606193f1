// When models were used, in a SQLite file that outlives the process. Times are wall-clock
// microseconds since the epoch.
#ifndef TERRACE_STORAGE_HISTORY_USE_STORE_H_
#define TERRACE_STORAGE_HISTORY_USE_STORE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

struct sqlite3;

namespace terrace::storage {

struct UseRecord {
  std::string model;
  int64_t last_us = 0;
  int64_t use_began_us = 0;
  int64_t previous_began_us = 0;
  int64_t first_us = 0;  // since when uses are counted by hour
  uint64_t uses = 0;
  std::array<double, 24> by_hour = {};
  double weight = 0;  // of uses, old ones counting less; as of use_began_us
  bool operator==(const UseRecord&) const = default;
};

// Thread-safe; calls block on the disk.
class UseStore {
 public:
  // Creates the file and its folder if need be. A file that is no such database is set aside under
  // the name "<path>.damaged" and a new one begun: what it held is a convenience, not a need.
  static absl::StatusOr<std::unique_ptr<UseStore>> Open(const std::string& path);
  ~UseStore();
  UseStore(const UseStore&) = delete;
  UseStore& operator=(const UseStore&) = delete;

  // Nothing for a model that was never saved.
  absl::StatusOr<std::optional<UseRecord>> Load(const std::string& model);
  // All or none of them.
  absl::Status Save(std::span<const UseRecord> records);

 private:
  struct Close {
    void operator()(sqlite3* database) const;
  };
  using Database = std::unique_ptr<sqlite3, Close>;
  explicit UseStore(Database database) : database_(std::move(database)) {}
  static absl::StatusOr<Database> OpenDatabase(const std::string& path);

  absl::Mutex mutex_;
  Database database_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace::storage

#endif  // TERRACE_STORAGE_HISTORY_USE_STORE_H_
