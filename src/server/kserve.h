// The KServe v2 inference protocol for language models, whichever way requests come: HTTP
// (server/kserve_http.h) and gRPC (server/grpc_server.h) both stand on this. Inference goes through
// the handler of the OpenAI API, so that checks, limits and queues are the same. Thread-safe.
#ifndef TERRACE_SERVER_KSERVE_H_
#define TERRACE_SERVER_KSERVE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/kserve_translate.h"
#include "server/kserve_types.h"
#include "server/model_control.h"
#include "server/model_source.h"
#include "server/relay_exchange.h"

namespace terrace {
class Clock;
}

namespace terrace::server::kserve {

// Hears the answer to one inference request: OnResponse once or, of a stream, often, then OnEnd; or
// OnError, which may also end a stream.
class InferCall {
 public:
  virtual ~InferCall() = default;
  // False: nobody reads.
  virtual bool OnResponse(InferResponse response) = 0;
  // After the last response.
  virtual void OnEnd() = 0;
  virtual void OnError(const ApiError& error) = 0;
};

// Times are sums, in nanoseconds.
struct ModelStatistics {
  std::string model;
  std::string version;
  int64_t last_inference_ms = 0;  // since the Unix epoch
  uint64_t successes = 0;
  uint64_t failures = 0;
  uint64_t success_ns = 0;
  uint64_t failure_ns = 0;
  uint64_t queue_ns = 0;
  uint64_t infer_ns = 0;
};

struct IndexEntry {
  std::string name;
  std::string version;
  std::string state;  // READY, LOADING or UNAVAILABLE
  std::string reason;
};

struct ServiceDeps {
  HttpHandler* api = nullptr;  // of the OpenAI API
  ModelSource* models = nullptr;
  ModelControl* control = nullptr;
  const Clock* clock = nullptr;
  std::function<bool()> ready;
};

class Service {
 public:
  // All of `deps` must outlive the service.
  explicit Service(ServiceDeps deps) : deps_(std::move(deps)) {}

  static std::vector<std::string> Extensions();
  bool ServerReady() const { return deps_.ready(); }
  bool ModelReady(std::string_view name, std::string_view version);
  // The listing of `name` at `version`, or why there is none.
  std::optional<ApiError> Find(std::string_view name, std::string_view version, ModelListing* out);
  std::vector<IndexEntry> Index(bool ready_only);
  // Of one model, or of all if `name` is empty.
  std::optional<ApiError> Statistics(std::string_view name, std::string_view version,
                                     std::vector<ModelStatistics>* out);
  void Load(std::string_view name, std::function<void(absl::Status)> done);
  void Unload(std::string_view name, std::function<void(absl::Status)> done);

  // Answers through `call`, later. `from`: whose request it is; `parent`: see RelayExchange. The
  // result, null if it was refused at once, is there to tell that the client has gone.
  std::shared_ptr<RelayExchange> Infer(InferRequest request, bool may_stream,
                                       const HttpRequest& from, std::shared_ptr<Exchange> parent,
                                       std::shared_ptr<InferCall> call);

 private:
  class Receiver;

  void Count(const InferRequest& request, bool success, int64_t started_us,
             const AccessRecord& record);

  const ServiceDeps deps_;
  absl::Mutex mutex_;
  // By name of the served model; only models of the configuration get in.
  std::map<std::string, ModelStatistics, std::less<>> statistics_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace::server::kserve

#endif  // TERRACE_SERVER_KSERVE_H_
