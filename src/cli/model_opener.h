// Opens models as a configuration says, each once: a model may be asked for as itself and as a
// draft of others, and all use the same weights. Thread-safe.
#ifndef TERRACE_CLI_MODEL_OPENER_H_
#define TERRACE_CLI_MODEL_OPENER_H_

#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "cli/runtime.h"
#include "server/config.h"
#include "server/model_catalog.h"

namespace terrace::cli {

// Every key of a model's entry that makes it another model; what only routes requests does not.
std::string ModelSettings(const server::ModelConfig& model);
// The same of an entry and, if it is an adapter, of its base.
std::string EntrySettings(const server::Config& config, const server::ModelConfig& model);

class ModelOpener {
 public:
  using Model = std::shared_ptr<engine::EngineModel>;  // shared by scheduler, catalog and drafts

  // `runtime` must outlive the opener and the models.
  explicit ModelOpener(Runtime* runtime) : runtime_(runtime) {}

  absl::StatusOr<Model> Open(const server::Config& config, const server::ModelConfig& model);
  // An entry as the catalog wants it: an adapter comes with its base.
  absl::StatusOr<server::OpenedModel> OpenEntry(const server::Config& config,
                                                const server::ModelConfig& model);

 private:
  struct Opened {
    absl::Mutex mutex;  // held while it is being opened
    std::weak_ptr<engine::EngineModel> model ABSL_GUARDED_BY(mutex);
  };

  absl::StatusOr<Model> OpenDraft(const server::Config& config, const std::string& name,
                                  const server::ModelConfig& of);
  absl::StatusOr<Model> OpenNew(const server::Config& config, const server::ModelConfig& model);

  Runtime* const runtime_;
  absl::Mutex mutex_;
  std::map<std::string, Opened> opened_ ABSL_GUARDED_BY(mutex_);  // by settings; entries stay
};

}  // namespace terrace::cli

#endif  // TERRACE_CLI_MODEL_OPENER_H_
