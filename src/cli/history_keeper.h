// Keeps in a file when models were used, so that a restarted process can predict as well as the one
// before it.
#ifndef TERRACE_CLI_HISTORY_KEEPER_H_
#define TERRACE_CLI_HISTORY_KEEPER_H_

#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "storage/history/use_store.h"
#include "tier/tier_manager.h"

namespace terrace::cli {

// Thread-safe. Saves from time to time and at its end. Without the file everything works, from no
// history: why() says what is wrong with it.
class HistoryKeeper {
 public:
  // Both must outlive it.
  HistoryKeeper(const std::string& path, const tier::TierManager* manager, const Clock* clock);
  ~HistoryKeeper();
  HistoryKeeper(const HistoryKeeper&) = delete;
  HistoryKeeper& operator=(const HistoryKeeper&) = delete;

  // What is known of a model, in this process's time; nothing for a new one.
  tier::UseHistory Load(const std::string& model);
  // Saves the models that the manager has now and that were used in this process.
  absl::Status Save();
  const std::string& why() const { return why_; }

 private:
  void Run();

  const tier::TierManager* const manager_;
  const Clock* const clock_;
  std::unique_ptr<storage::UseStore> store_;  // null if it could not be opened
  std::string why_;
  absl::Mutex mutex_;
  absl::CondVar wake_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace terrace::cli

#endif  // TERRACE_CLI_HISTORY_KEEPER_H_
