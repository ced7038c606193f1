// One HTTP request and its answer, seen without the HTTP library: what the handlers of the API use.
//
// An Exchange is shared by the connection and by whoever still produces its answer (hence the
// shared_ptr). All of it is thread-safe except request() and access(), see there. No call blocks.
#ifndef TERRACE_SERVER_EXCHANGE_H_
#define TERRACE_SERVER_EXCHANGE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "request/request.h"

namespace terrace::server {

// Which listening socket a request came in on.
enum class Door : uint8_t { kApi, kMetrics, kAdmin };

// What the access log and the metrics say about a request beside its HTTP side.
struct AccessRecord {
  std::string model;       // empty: none was found
  std::string error_code;  // empty: none
  int32_t prompt_tokens = 0;
  int32_t completion_tokens = 0;
  int32_t cached_tokens = 0;    // of the prompt
  int32_t restored_tokens = 0;  // of those, brought back from below device memory
  std::string kv;               // why KV was loaded or recomputed; empty: there was no choice
  int64_t queue_us = 0;
  int64_t swap_us = 0;
  uint64_t moved_bytes = 0;  // of weights, for this request
  int64_t prefill_us = 0;
  int64_t decode_us = 0;
};

// Hears that a request has been answered, or that its client has gone. Thread-safe.
class Ticket {
 public:
  virtual ~Ticket() = default;
  virtual void OnDone(const AccessRecord& record) = 0;
};

// Who asks, as the front door found out (server/front.h). Plain data.
struct Caller {
  std::string key;     // name of the API key; empty: none was needed
  std::string tenant;  // empty: the one of callers without a key
  bool admin = false;
  SlaClass sla = SlaClass::kStandard;
  SwapContract swap;
  std::string equivalent;  // a model that may answer instead if the one asked for is not at hand
  // Shared with whoever answers; null: nobody counts.
  std::shared_ptr<Ticket> ticket;
};

inline constexpr std::string_view kKeptHeaders[] = {
    "authorization",  "x-api-key",     "inference-header-content-length",
    "accept",         "content-type",  "accept-encoding",
    "traceparent",    "tracestate",    "x-terrace-sla",
    "x-terrace-swap", "if-none-match",
};

struct HttpRequest {
  Door door = Door::kApi;
  std::string method;  // as sent: "POST"
  std::string path;    // percent-decoded, without the query
  std::string query;
  std::string body;
  std::string id;    // the client's x-request-id if it is well-formed, else one of ours
  std::string peer;  // address of the client
  // Those of the headers that handlers look at (kKeptHeaders), by lower-case name.
  std::vector<std::pair<std::string, std::string>> headers;
  Caller caller;

  std::string_view Header(std::string_view name) const {
    for (const auto& [key, value] : headers) {
      if (key == name) return value;
    }
    return {};
  }
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  // Further headers. REQUIRES: no control characters in names and values.
  std::vector<std::pair<std::string, std::string>> headers;
};

class Exchange {
 public:
  virtual ~Exchange() = default;

  // Does not change. The body may be moved out by the one handler that reads it.
  virtual HttpRequest& request() = 0;

  // The whole answer. Exactly one of Respond and BeginStream is called, once.
  virtual void Respond(HttpResponse response) = 0;

  // Sends the head of an answer with status 200 whose body follows in pieces.
  virtual void BeginStream(std::string content_type) = 0;
  // Appends to the body. False if nobody reads: the client has gone, or it has fallen behind by
  // more than HttpOptions::max_unsent_bytes; the connection is then closed.
  virtual bool Write(std::string_view bytes) = 0;
  // Ends the body; `close` also ends the connection.
  virtual void EndStream(bool close) = 0;

  // True once the client has gone, or the server is stopping.
  virtual bool gone() const = 0;
  // Calls `callback` once, on a thread of the server, if the client goes before the answer is
  // complete; at once if it has gone already. Replaces an earlier callback.
  virtual void OnGone(std::function<void()> callback) = 0;

  // Filled by the handler before it calls Respond or EndStream, by one thread at a time.
  virtual AccessRecord& access() = 0;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Called on a thread that serves many connections: it must not block. The answer may come later
  // and from any thread.
  virtual void Handle(std::shared_ptr<Exchange> exchange) = 0;
};

}  // namespace terrace::server

#endif  // TERRACE_SERVER_EXCHANGE_H_
