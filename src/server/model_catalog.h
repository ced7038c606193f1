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
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/metadata.h"
#include "server/model_control.h"
#include "server/model_source.h"
#include "server/worker_pool.h"

namespace terrace {
class Clock;
class Logger;
}  // namespace terrace
namespace terrace::engine {
class Adapter;
class EngineModel;
}  // namespace terrace::engine
namespace terrace::scheduler {
class Scheduler;
}

namespace terrace::server {

// What an entry opens: a model, or an adapter with the model that it is for.
struct OpenedModel {
  OpenedModel(std::shared_ptr<engine::EngineModel> model,  // NOLINT: a model is meant as it is
              std::shared_ptr<const engine::Adapter> with = nullptr)
      : engine(std::move(model)), adapter(std::move(with)) {}
  std::shared_ptr<engine::EngineModel> engine;  // shared with the adapters' entries and drafts
  std::shared_ptr<const engine::Adapter> adapter;
};

struct CatalogEntry {
  std::string name;
  // What the model is made from: an entry of the same name and settings is the same model.
  std::string settings;
  // Opens the model's weights; called on a thread of the catalog, again after a failure.
  std::function<absl::StatusOr<OpenedModel>()> open;
  std::string rerank = "auto";  // as ModelConfig has it
};

// What is done with weights; may be empty.
struct CatalogActions {
  std::function<void(engine::EngineModel&)> bring;  // ask for them; must not block
  std::function<void(engine::EngineModel&)> evict;  // give their memory back
  std::function<void(const engine::Adapter&)> evict_adapter;
};

class ModelCatalog final : public ModelSource, public ModelControl {
 public:
  // All pointers must outlive the catalog.
  ModelCatalog(std::vector<CatalogEntry> entries, scheduler::Scheduler* scheduler,
               const Clock* clock, Logger* log, CatalogActions actions = {});
  ~ModelCatalog() override;  // waits for openings under way

  // Begins to open all models, in order.
  void OpenAll();

  std::shared_ptr<const ServedModel> TryGet(std::string_view name) override;
  void Open(std::string_view name, OpenCallback done) override;
  std::vector<ModelListing> List() override;

  void Load(std::string_view name, std::function<void(absl::Status)> done) override;
  void Unload(std::string_view name, std::function<void(absl::Status)> done) override;
  absl::Status Evict(std::string_view name) override;

  // Makes these the models: new ones are opened, those that are gone or have changed end once their
  // requests have, and the others are not touched. What changed, a line each.
  std::vector<std::string> Update(std::vector<CatalogEntry> entries);

 private:
  struct Slot {
    CatalogEntry entry;
    ModelStateKind state = ModelStateKind::kClosed;
    bool closing = false;  // its requests are being waited for
    bool gone = false;     // not of the configuration any more
    absl::Status reason;
    int64_t failed_us = 0;
    std::shared_ptr<const ServedModel> model;
    std::shared_ptr<engine::EngineModel> engine;  // with the scheduler
    std::shared_ptr<const engine::Adapter> adapter;
    int users = 0;  // actions under way on `engine`
    std::shared_ptr<const ModelFacts> facts;
    std::vector<OpenCallback> waiting;
  };
  // Shared with the tasks on the pools, which may end after the slot has left the list.
  using SlotPtr = std::shared_ptr<Slot>;
  struct Opened {
    std::shared_ptr<const ServedModel> served;
    OpenedModel model;
    std::shared_ptr<const ModelFacts> facts;
  };

  SlotPtr FindLocked(std::string_view name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginLocked(const SlotPtr& slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Closes a ready slot on the closing thread and calls `done`; see Unload.
  void CloseLocked(const SlotPtr& slot, std::function<void(absl::Status)> done)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status UnknownLocked(std::string_view name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // On a pool thread.
  // Runs `action` on the slot's model, if it has one, which is not closed meanwhile.
  void Act(const SlotPtr& slot, const std::function<void(engine::EngineModel&)>& action)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void OpenNow(const SlotPtr& slot);
  void CloseNow(const SlotPtr& slot);
  absl::StatusOr<Opened> OpenEntry(const CatalogEntry& entry);

  scheduler::Scheduler* const scheduler_;
  const Clock* const clock_;
  Logger* const log_;
  absl::Mutex mutex_;
  const CatalogActions actions_;
  std::vector<SlotPtr> slots_ ABSL_GUARDED_BY(mutex_);
  WorkerPool closer_{1};  // these last: their threads use the rest
  WorkerPool pool_;
};

}  // namespace terrace::server

#endif  // TERRACE_SERVER_MODEL_CATALOG_H_
