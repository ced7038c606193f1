// The configured models: opens them (headers, tokenizer, template; no weights), registers them with
// the scheduler, and keeps what the API needs of them. A model that cannot be opened is listed with
// the reason and tried again when somebody asks for it; others are not held up.
//
// Thread-safe.
#ifndef TERRACE_SERVER_MODEL_CATALOG_H_
#define TERRACE_SERVER_MODEL_CATALOG_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/metadata.h"
#include "server/model_source.h"
#include "server/worker_pool.h"

namespace terrace {
class Clock;
class Logger;
}  // namespace terrace
namespace terrace::engine {
class EngineModel;
}
namespace terrace::scheduler {
class Scheduler;
}

namespace terrace::server {

struct CatalogEntry {
  std::string name;
  // Opens the model's weights; called on a thread of the catalog, again after a failure.
  std::function<absl::StatusOr<std::shared_ptr<engine::EngineModel>>()> open;
};

class ModelCatalog final : public ModelSource {
 public:
  // All pointers must outlive the catalog.
  ModelCatalog(std::vector<CatalogEntry> entries, scheduler::Scheduler* scheduler,
               const Clock* clock, Logger* log);
  ~ModelCatalog() override;  // waits for openings under way

  // Begins to open all models, in order.
  void OpenAll();

  std::shared_ptr<const ServedModel> TryGet(std::string_view name) override;
  void Open(std::string_view name, OpenCallback done) override;
  std::vector<ModelListing> List() override;

 private:
  struct Slot {
    CatalogEntry entry;
    ModelStateKind state = ModelStateKind::kClosed;
    absl::Status reason;
    int64_t failed_us = 0;
    std::shared_ptr<const ServedModel> model;
    std::vector<OpenCallback> waiting;
  };

  Slot* FindLocked(std::string_view name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginLocked(Slot* slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // On a pool thread.
  void OpenNow(Slot* slot);
  absl::StatusOr<std::shared_ptr<const ServedModel>> Load(const CatalogEntry& entry);

  scheduler::Scheduler* const scheduler_;
  const Clock* const clock_;
  Logger* const log_;
  absl::Mutex mutex_;
  std::vector<std::unique_ptr<Slot>> slots_ ABSL_GUARDED_BY(mutex_);  // the list does not change
  WorkerPool pool_;  // last: its threads use the rest
};

}  // namespace terrace::server

#endif  // TERRACE_SERVER_MODEL_CATALOG_H_
