// Where the API finds models by name. Implemented by ModelCatalog, and by tests.
#ifndef TERRACE_SERVER_MODEL_SOURCE_H_
#define TERRACE_SERVER_MODEL_SOURCE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/served_model.h"

namespace terrace::server {

enum class ModelStateKind : uint8_t { kClosed, kOpening, kReady, kFailed };

struct ModelListing {
  std::string name;
  ModelStateKind state = ModelStateKind::kClosed;
  std::string reason;       // why it failed
  int64_t created = 0;
  int32_t max_context = 0;  // 0: not known yet
};

// Thread-safe.
class ModelSource {
 public:
  virtual ~ModelSource() = default;
  // The model if it is ready, else null. Does not block.
  virtual std::shared_ptr<const ServedModel> TryGet(std::string_view name) = 0;
  // As TryGet, but opens the model first if need be, which may take seconds. NotFound names the
  // models there are; other errors say why this one cannot be opened (a later call tries again).
  virtual absl::StatusOr<std::shared_ptr<const ServedModel>> Get(std::string_view name) = 0;
  // All models, in the order of the configuration.
  virtual std::vector<ModelListing> List() = 0;
};

}  // namespace terrace::server

#endif  // TERRACE_SERVER_MODEL_SOURCE_H_
