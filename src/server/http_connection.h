// One HTTP connection and the exchange on it: private to the HTTP server, the only header that
// shows Boost.Beast.
#ifndef TERRACE_SERVER_HTTP_CONNECTION_H_
#define TERRACE_SERVER_HTTP_CONNECTION_H_

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_set>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "obs/trace.h"
#include "server/api_error.h"
#include "server/exchange.h"
#include "server/http_server.h"
#include "server/transport.h"

namespace terrace::server {

class HttpConnection;

// What all connections of a server share. Thread-safe.
struct HttpShared {
  HttpOptions options;
  HttpDeps deps;
  HttpHandler* handler = nullptr;
  std::atomic<bool> draining{false};
  std::atomic<int64_t> connections{0};
  std::atomic<uint64_t> next_id{0};

  void ExchangeBegins();
  void ExchangeEnds();
  // True if none is left before `timeout_us` has passed.
  bool WaitForExchanges(int64_t timeout_us);
  std::string NewRequestId();

 private:
  absl::Mutex mutex_;
  int64_t exchanges_ ABSL_GUARDED_BY(mutex_) = 0;
};

// A thread with its event loop. Exchanges keep the loop alive (hence shared_ptr), for what is
// posted to it late. Members below `context` are for its own thread only.
struct IoThread {
  boost::asio::io_context context{1};
  std::thread thread;
  std::unordered_set<HttpConnection*> connections;
  int64_t date_second = -1;
  std::string date;

  // Set once another thread has taken over, because this one hung: it does nothing more until
  // `may_go_on`.
  std::atomic<bool> replaced{false};
  absl::Notification may_go_on;

  // What the thread does.
  void Run();
  // To be called after what may hang.
  void StayIfReplaced() {
    if (!replaced.load(std::memory_order_relaxed)) return;
    if (std::this_thread::get_id() == thread.get_id()) may_go_on.WaitForNotification();
  }
  // "Sun, 06 Nov 1994 08:49:37 GMT"
  const std::string& Date(int64_t wall_us);
};

class HttpExchange final : public Exchange {
 public:
  HttpExchange(std::shared_ptr<IoThread> io, std::weak_ptr<HttpConnection> connection,
               HttpRequest request, uint64_t max_unsent_bytes);

  HttpRequest& request() override { return request_; }
  void Respond(HttpResponse response) override;
  void BeginStream(std::string content_type) override;
  bool Write(std::string_view bytes) override;
  void EndStream(bool close) override;
  bool gone() const override { return gone_.load(std::memory_order_acquire); }
  void OnGone(std::function<void()> callback) override;
  AccessRecord& access() override { return access_; }

  // For the connection: what there is to send since the last call.
  struct Output {
    std::optional<HttpResponse> head;  // the first time; with its body unless `streamed`
    bool streamed = false;
    std::string bytes;  // of a stream's body
    bool end = false;
    bool close = false;
    bool fell_behind = false;  // the connection is to be dropped
  };
  // False: nothing yet; then the connection is woken when there is.
  bool Take(Output* output);
  void MarkGone();
  // Answers with `error`, or ends the stream with it, unless the answer is complete; what the
  // handler says from then on is not sent.
  void Fail(const ApiError& error);

 private:
  void WakeLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<IoThread> io_;
  const std::weak_ptr<HttpConnection> connection_;
  HttpRequest request_;
  const uint64_t max_unsent_bytes_;
  AccessRecord access_;
  std::atomic<bool> gone_{false};

  absl::Mutex mutex_;
  Output output_ ABSL_GUARDED_BY(mutex_);
  bool has_output_ ABSL_GUARDED_BY(mutex_) = false;
  bool wake_wanted_ ABSL_GUARDED_BY(mutex_) = false;
  bool complete_ ABSL_GUARDED_BY(mutex_) = false;
  std::string stream_type_ ABSL_GUARDED_BY(mutex_);  // of a stream that has begun
  std::function<void()> on_gone_ ABSL_GUARDED_BY(mutex_);
};

// Lives on its IO thread: every member function is called there.
class HttpConnection final : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(std::shared_ptr<HttpShared> shared, std::shared_ptr<IoThread> io,
                 boost::asio::ip::tcp::socket socket,
                 std::shared_ptr<boost::asio::ssl::context> tls, Door door);
  ~HttpConnection();

  void Start();
  void Wake() { wake_.cancel(); }
  // The server drains: ends the connection if it is idle.
  void CloseIfIdle();
  // Ends the connection now.
  void Abort();
  // Answers what is under way with `error` instead.
  void FailOpen(const ApiError& error) {
    if (exchange_) exchange_->Fail(error);
  }

 private:
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  using TimePoint = std::chrono::steady_clock::time_point;

  boost::asio::awaitable<void> Run();
  boost::asio::awaitable<bool> Handshake();
  boost::asio::awaitable<bool> WaitForRequest();
  // Reads a request into `exchange_`. False: answered with an error, or the client has gone.
  boost::asio::awaitable<bool> ReadRequest();
  boost::asio::awaitable<bool> ReadBody(Parser* parser);
  boost::asio::awaitable<void> Answer();
  boost::asio::awaitable<bool> Send(HttpExchange::Output output);
  boost::asio::awaitable<void> Refuse(ApiError error);
  boost::asio::awaitable<bool> WriteAll(std::string_view head, std::string_view body,
                                        std::string_view tail);
  boost::asio::awaitable<void> Linger();
  // Until woken, or `deadline`.
  boost::asio::awaitable<void> Sleep(TimePoint deadline);

  // Unpacks a compressed body; an error to answer with, if any.
  std::optional<ApiError> Unpack(Parser* parser) const;
  // Checks what the parser lets pass; an error to answer with, if any.
  std::optional<ApiError> CheckHead(const Parser::value_type& head);
  bool OriginAllowed(std::string_view origin, std::string_view host) const;
  std::string Head(const HttpResponse& response, bool streamed, uint64_t body_bytes) const;
  void RecordTrace(int status, bool gone) const;
  // Keeps a read under way while an answer is made, so that a client that leaves is noticed.
  void Watch();
  void FinishExchange();

  const std::shared_ptr<HttpShared> shared_;
  const std::shared_ptr<IoThread> io_;
  Transport transport_;
  boost::asio::steady_timer wake_;
  boost::beast::flat_buffer buffer_;
  const Door door_;
  std::string peer_;

  std::shared_ptr<HttpExchange> exchange_;
  bool watching_ = false;  // a read is under way
  bool peer_closed_ = false;
  bool aborted_ = false;
  bool idle_ = true;  // between requests
  bool keep_alive_ = true;
  // Of the request under way:
  bool head_only_ = false;
  bool http10_ = false;
  bool preflight_ = false;
  std::string origin_;         // allowed, to be named in the answer; empty: none
  std::string asked_headers_;  // of a preflight
  std::string log_method_;
  std::string request_id_;
  bool gzip_ = false;  // the client takes it
  TraceContext trace_;
  int64_t started_us_ = 0;
  int status_ = 0;
  uint64_t sent_bytes_ = 0;
};

}  // namespace terrace::server

#endif  // TERRACE_SERVER_HTTP_CONNECTION_H_
