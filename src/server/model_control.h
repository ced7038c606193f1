// What operators do with models: load, unload, and what is known of them. Implemented by
// ModelCatalog, and by tests. Thread-safe.
#ifndef TERRACE_SERVER_MODEL_CONTROL_H_
#define TERRACE_SERVER_MODEL_CONTROL_H_

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace terrace::server {

class ModelControl {
 public:
  virtual ~ModelControl() = default;

  // Opens the model, also after Unload, and asks for its weights to come to the device; `done`
  // hears once it can be served (the weights may still be on their way), at once or later on
  // another thread. It must not block.
  virtual void Load(std::string_view name, std::function<void(absl::Status)> done) = 0;

  // Refuses new requests of the model until it is loaded again, lets those under way end, and gives
  // its memory back; `done` hears then. NotFound for a name that is not configured.
  virtual void Unload(std::string_view name, std::function<void(absl::Status)> done) = 0;

  // Gives back the memory of a model that stays in service: the next request brings it again.
  virtual absl::Status Evict(std::string_view name) = 0;
};

}  // namespace terrace::server

#endif  // TERRACE_SERVER_MODEL_CONTROL_H_
