// Where the API finds models by name. Implemented by ModelCatalog, and by tests.
#ifndef TERRACE_SERVER_MODEL_SOURCE_H_
#define TERRACE_SERVER_MODEL_SOURCE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/model_facts.h"
#include "server/served_model.h"

namespace terrace::server {

enum class ModelStateKind : uint8_t { kClosed, kOpening, kReady, kFailed, kUnloaded };

// As clients see it.
constexpr std::string_view StateName(ModelStateKind state) {
  switch (state) {
    case ModelStateKind::kClosed:
      return "closed";
    case ModelStateKind::kOpening:
      return "opening";
    case ModelStateKind::kReady:
      return "ready";
    case ModelStateKind::kFailed:
      return "failed";
    case ModelStateKind::kUnloaded:
      return "unloaded";
  }
  return "";
}

struct ModelListing {
  std::string name;
  ModelStateKind state = ModelStateKind::kClosed;
  std::string reason;  // why it failed
  int64_t created = 0;
  int32_t max_context = 0;  // 0: not known yet
  // Null until the model has been opened; shared with listings taken before.
  std::shared_ptr<const ModelFacts> facts;
};

// Thread-safe.
class ModelSource {
 public:
  using OpenCallback =
      std::function<void(const absl::StatusOr<std::shared_ptr<const ServedModel>>&)>;

  virtual ~ModelSource() = default;
  // The model if it is ready, else null. Does not block.
  virtual std::shared_ptr<const ServedModel> TryGet(std::string_view name) = 0;
  // Opens the model if it is not ready, which may take seconds, and hands it to `done`: at once, or
  // later on another thread. NotFound names the models there are; other errors say why this one
  // cannot be opened (a later call tries again). `done` must not block.
  virtual void Open(std::string_view name, OpenCallback done) = 0;
  // All models, in the order of the configuration.
  virtual std::vector<ModelListing> List() = 0;
};

}  // namespace terrace::server

#endif  // TERRACE_SERVER_MODEL_SOURCE_H_
