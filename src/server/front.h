// The front door: finds out who calls and whether they may, and hands each request to the handler
// of its protocol. Errors have the form of the protocol that was spoken. Thread-safe.
//
// What needs which right: /health, /ready, /v2/health and preflights need none; /metrics on its own
// port needs none (allow-lists guard it); loading, unloading and the admin port need `admin`;
// everything else `infer`.
#ifndef TERRACE_SERVER_FRONT_H_
#define TERRACE_SERVER_FRONT_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/api_error.h"
#include "server/cidr.h"
#include "server/exchange.h"
#include "server/worker_pool.h"

namespace terrace {
class Logger;
}

namespace terrace::server {

class KeyRing;

enum class KeysNeeded : uint8_t {
  kAuto,  // once there are keys
  kAlways,
  kNever,
};

struct FrontOptions {
  KeysNeeded keys_needed = KeysNeeded::kAuto;
  CidrList allow;          // who may reach the API; empty: everyone
  CidrList admin_allow;    // who may reach the admin port
  CidrList metrics_allow;  // who may read metrics on their own port
  int32_t worker_threads = 2;
  size_t inline_body_bytes = 4096;  // larger ones of the protocols beside OpenAI's go to a worker
};

struct FrontDeps {
  HttpHandler* openai = nullptr;
  HttpHandler* kserve = nullptr;
  HttpHandler* ollama = nullptr;
  HttpHandler* admin = nullptr;
  KeyRing* keys = nullptr;
  Logger* runtime_log = nullptr;
};

class Front final : public HttpHandler {
 public:
  // All of `deps` must outlive it.
  Front(FrontOptions options, FrontDeps deps);

  void Handle(std::shared_ptr<Exchange> exchange) override;

  // Fills in who calls, or says why the call is refused.
  std::optional<ApiError> Admit(bool needs_admin, HttpRequest* request);

 private:
  enum class Need : uint8_t { kNothing, kInfer, kAdmin };
  static Need NeedOf(const HttpRequest& request);
  std::optional<ApiError> CheckAddress(const HttpRequest& request) const;
  HttpHandler* HandlerOf(const HttpRequest& request) const;
  static void Refuse(const std::shared_ptr<Exchange>& exchange, const ApiError& error);
  // Calls the handler; an exception (want of memory) ends this request only.
  void Run(HttpHandler* handler, const std::shared_ptr<Exchange>& exchange);

  const FrontOptions options_;
  const FrontDeps deps_;
  WorkerPool pool_;  // last: its threads use the rest
};

// Reads the class and the swap contract that a request asks for in its headers; the key's class is
// the best it can have.
std::optional<ApiError> ReadService(HttpRequest* request);

}  // namespace terrace::server

#endif  // TERRACE_SERVER_FRONT_H_
