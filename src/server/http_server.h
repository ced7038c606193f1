// The HTTP/1.1 server: listening sockets, connections, limits and time-outs, over Boost.Beast
// (which stays behind this header). It knows nothing of models; requests go to an HttpHandler.
//
// Every connection lives on one of a few IO threads. While an answer is being made the socket is
// watched, so that a client that leaves is noticed at once, streaming or not; a client that
// half-closes its side counts as gone. Thread-safe, except that Start is called once.
#ifndef TERRACE_SERVER_HTTP_SERVER_H_
#define TERRACE_SERVER_HTTP_SERVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/units.h"
#include "server/api_error.h"
#include "server/exchange.h"

namespace terrace {
class Clock;
class Logger;
class Metrics;
class TraceBuffer;
}  // namespace terrace

namespace terrace::server {

class TlsFiles;

struct HttpEndpoint {
  std::string host = "127.0.0.1";  // an address; "localhost" and names are resolved
  uint16_t port = 0;               // 0: any free port
  Door door = Door::kApi;
  // A socket that listens there already, which the server takes over; -1: one is made.
  int listening = -1;
};

struct HttpOptions {
  std::vector<HttpEndpoint> endpoints;
  int32_t io_threads = 2;
  int32_t max_connections = 8192;
  uint32_t max_header_bytes = 16 * kKiB;
  uint64_t max_body_bytes = 8 * kMiB;
  uint64_t max_unsent_bytes = kMiB;        // of one stream; see Exchange::Write
  int64_t header_timeout_us = 15'000'000;  // from the first byte, or from connecting
  int64_t body_timeout_us = 60'000'000;
  int64_t idle_timeout_us = 75'000'000;   // between requests of one connection
  int64_t write_timeout_us = 30'000'000;  // without any progress
  // Web pages of these origins may call ("https://example.org"); "*" allows all. Pages from this
  // machine and from the server's own address always may.
  std::vector<std::string> allowed_origins;
  uint64_t id_seed = 0;  // for request ids
};

struct HttpDeps {
  const Clock* clock = nullptr;
  Logger* access_log = nullptr;
  Logger* runtime_log = nullptr;
  Metrics* metrics = nullptr;
  TraceBuffer* traces = nullptr;  // null: requests leave no traces
  // Hears how each request ended; may be empty. Must be quick.
  std::function<void(const AccessRecord& record, int status)> on_done;
  TlsFiles* tls = nullptr;  // null: no TLS; the metrics port never has it
};

class HttpServer {
 public:
  // Binds all endpoints, each for this process alone, and begins to listen; connections wait until
  // Start. Fails, naming address and port, if one of them is taken. All of `deps` must outlive the
  // server.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Bind(HttpOptions options, HttpDeps deps);
  virtual ~HttpServer() = default;  // like Stop

  // The bound ports, in the order of the endpoints.
  virtual std::vector<uint16_t> ports() const = 0;

  // Serves. `handler` must outlive the server.
  virtual void Start(HttpHandler* handler) = 0;

  // From now on connections end with the answer under way, idle ones at once; new connections are
  // still taken, so that the handler can refuse them in words. Returns when no exchange is left, or
  // after `timeout_us`; true if none is left. Does not stop the server.
  virtual bool Drain(int64_t timeout_us) = 0;

  // The listening sockets, in the order of the endpoints; the server keeps them.
  virtual std::vector<int> listeners() const = 0;

  // Tells every client that waits for an answer, or reads one, that it will not come: with `error`
  // in the shape of its API; also those whose IO thread hangs in a handler. Returns within a
  // moment; for a server whose handlers hang and which is about to end.
  virtual void FailAll(const ApiError& error) = 0;

  // Ends everything, telling the exchanges left that their clients have gone, and joins.
  virtual void Stop() = 0;

  virtual int64_t open_connections() const = 0;
};

}  // namespace terrace::server

#endif  // TERRACE_SERVER_HTTP_SERVER_H_
