// The KServe v2 protocol over gRPC (server/kserve.proto), behind this header because gRPC is slow
// to compile. Thread-safe, except that Start and Stop are each called once.
#ifndef TERRACE_SERVER_GRPC_SERVER_H_
#define TERRACE_SERVER_GRPC_SERVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "server/api_error.h"
#include "server/kserve.h"

namespace terrace {
class Clock;
class Logger;
class Metrics;
}  // namespace terrace

namespace terrace::server {

struct GrpcOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: any free port
  uint64_t max_message_bytes = 16 * kMiB;
  // PEM files, read again when they change; empty: no TLS.
  std::string certificate;
  std::string private_key;
};

struct GrpcDeps {
  kserve::Service* service = nullptr;
  // Fills in who calls, or says why the call is refused; `needs_admin`: it changes what is loaded.
  std::function<std::optional<ApiError>(HttpRequest* request, bool needs_admin)> admit;
  const Clock* clock = nullptr;
  Logger* access_log = nullptr;
  Metrics* metrics = nullptr;
};

class GrpcServer {
 public:
  // Binds the port, for this process alone. Until Start calls are answered with UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Bind(const GrpcOptions& options);
  virtual ~GrpcServer() = default;  // like Stop(0)

  virtual uint16_t port() const = 0;
  // All of `deps` must outlive the server.
  virtual void Start(GrpcDeps deps) = 0;
  // Takes no more calls, lets those under way end, and cuts off what is left after `timeout_us`.
  virtual void Stop(int64_t timeout_us) = 0;
};

}  // namespace terrace::server

#endif  // TERRACE_SERVER_GRPC_SERVER_H_
