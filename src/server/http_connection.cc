#include "server/http_connection.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/status.hpp>
#include <ctime>
#include <exception>
#include <utility>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/text.h"
#include "base/units.h"
#include "obs/log.h"
#include "obs/metrics.h"
#include "server/compress.h"
#include "server/url.h"

namespace terrace::server {
// Written so that no co_await stands inside a larger expression or a condition: GCC 12 makes wrong
// code of some of those.

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using std::chrono::microseconds;
using std::chrono::steady_clock;
using Tcp = asio::ip::tcp;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

// Bytes of further requests that are held while one is being answered.
constexpr size_t kMaxPipelinedBytes = 16 * kKiB;
// Read at once while watching: holds most requests whole, and is what an idle connection costs.
constexpr size_t kWatchBytes = 4 * kKiB;
// What is read and thrown away of a body that was refused, so that the client gets to see why.
constexpr uint64_t kMaxDiscardedBytes = 64 * kMiB;
constexpr auto kLingerTime = std::chrono::seconds(2);
// A whole answer may take this much longer to send for each MiB.
constexpr int64_t kWriteUsPerMiB = 30'000'000;

std::string_view View(beast::string_view text) { return {text.data(), text.size()}; }

bool IsRequestId(std::string_view id) {
  if (id.empty() || id.size() > 128) return false;
  return std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.' || c == ':';
  });
}

bool IsHeaderText(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f;
  });
}

// Compresses a whole answer if that is worth it. Event streams stay as they are: each token must
// leave at once.
void PackBody(bool accepted, HttpResponse* response) {
  constexpr size_t kLeastBytes = 1024;
  if (!accepted || response->body.size() < kLeastBytes) return;
  for (const auto& [name, value] : response->headers) {
    if (name == "Content-Encoding") return;
  }
  absl::StatusOr<std::string> packed = Gzip(response->body);
  if (!packed.ok()) return;
  response->body = *std::move(packed);
  response->headers.emplace_back("Content-Encoding", "gzip");
  response->headers.emplace_back("Vary", "Accept-Encoding");
}

ApiError PlainError(int status, std::string_view code, std::string message) {
  return {.status = status, .code = std::string(code), .message = std::move(message)};
}

// The answer to a request that the parser refused; status 0: none, the client has gone or is late.
ApiError FromParseError(const beast::error_code& ec, const HttpOptions& options) {
  if (ec == http::error::header_limit || ec == http::error::buffer_overflow) {
    return PlainError(
        431, "header_too_large",
        fmt::format("The request's header is larger than {} bytes.", options.max_header_bytes));
  }
  if (ec == http::error::body_limit) {
    return PlainError(413, "body_too_large",
                      fmt::format("The request's body is larger than the limit of {}.",
                                  FormatBytes(options.max_body_bytes)));
  }
  if (ec == http::error::end_of_stream || ec == http::error::partial_message ||
      ec.category() != beast::error_code(http::error::bad_method).category()) {
    return PlainError(0, "", "");
  }
  return PlainError(400, "malformed_http",
                    fmt::format("The request is not well-formed HTTP/1.1: {}.", ec.message()));
}

}  // namespace

void HttpShared::ExchangeBegins() {
  absl::MutexLock lock(&mutex_);
  ++exchanges_;
}

void HttpShared::ExchangeEnds() {
  absl::MutexLock lock(&mutex_);
  --exchanges_;
}

bool HttpShared::WaitForExchanges(int64_t timeout_us) {
  auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return exchanges_ == 0; };
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&none), absl::Microseconds(timeout_us));
}

std::string HttpShared::NewRequestId() {
  const uint64_t number = next_id.fetch_add(1, std::memory_order_relaxed);
  return fmt::format("req-{:016x}", Hash64(&number, sizeof(number), options.id_seed));
}

void IoThread::Run() {
  while (!replaced.load(std::memory_order_relaxed) && context.run_one() > 0) {
  }
  StayIfReplaced();
  context.run();
}

const std::string& IoThread::Date(int64_t wall_us) {
  const int64_t second = wall_us / 1'000'000;
  if (second != date_second) {
    date_second = second;
    date = fmt::format("{:%a, %d %b %Y %H:%M:%S} GMT", fmt::gmtime(static_cast<time_t>(second)));
  }
  return date;
}

HttpConnection::HttpConnection(std::shared_ptr<HttpShared> shared, std::shared_ptr<IoThread> io,
                               Tcp::socket socket, std::shared_ptr<asio::ssl::context> tls,
                               Door door)
    : shared_(std::move(shared)),
      io_(std::move(io)),
      transport_(std::move(socket), std::move(tls)),
      wake_(io_->context),
      buffer_(shared_->options.max_header_bytes + 64 * kKiB),
      door_(door) {}

HttpConnection::~HttpConnection() = default;

void HttpConnection::Start() {
  io_->connections.insert(this);
  beast::error_code ec;
  transport_.socket().set_option(Tcp::no_delay(true), ec);
  const Tcp::endpoint peer = transport_.socket().remote_endpoint(ec);
  if (!ec) peer_ = peer.address().to_string(ec);
  asio::co_spawn(io_->context, Run(), [self = shared_from_this()](std::exception_ptr error) {
    if (error) {
      self->shared_->deps.runtime_log->Error("connection ended by an exception",
                                             {{"peer", self->peer_}});
      self->FinishExchange();
    }
    self->Abort();
    self->io_->connections.erase(self.get());
    self->shared_->connections.fetch_sub(1, std::memory_order_relaxed);
  });
}

void HttpConnection::CloseIfIdle() {
  // Who has not asked anything yet is still answered, with a refusal.
  if (idle_ && started_us_ != 0) Abort();
}

void HttpConnection::Abort() {
  aborted_ = true;
  beast::error_code ec;
  transport_.socket().close(ec);
  if (exchange_) exchange_->MarkGone();
  wake_.cancel();
}

asio::awaitable<bool> HttpConnection::Handshake() {
  transport_.tcp().expires_after(microseconds(shared_->options.header_timeout_us));
  auto [ec] = co_await transport_.async_handshake(kAwait);
  co_return !ec;
}

asio::awaitable<void> HttpConnection::Run() {
  if (transport_.is_tls()) {
    const bool secure = co_await Handshake();
    if (!secure) co_return;
  }
  for (;;) {
    const bool asked = co_await WaitForRequest();
    if (!asked) break;
    const bool read = co_await ReadRequest();
    if (read) {
      shared_->ExchangeBegins();
      if (!preflight_) shared_->handler->Handle(exchange_);
      io_->StayIfReplaced();
      co_await Answer();
      FinishExchange();
    }
    if (!keep_alive_ || aborted_ || peer_closed_) break;
  }
  if (!aborted_ && !peer_closed_) co_await Linger();
}

// A read may still be under way from the answer before; the next request begins with its bytes.
asio::awaitable<bool> HttpConnection::WaitForRequest() {
  idle_ = true;
  if (shared_->draining.load(std::memory_order_relaxed)) {
    // Only a connection that has not yet asked anything gets an answer (a refusal).
    if (started_us_ != 0) co_return false;
  }
  const int64_t timeout_us =
      started_us_ == 0 ? shared_->options.header_timeout_us : shared_->options.idle_timeout_us;
  const TimePoint deadline = steady_clock::now() + microseconds(timeout_us);
  // What the client has sent ahead is parsed first, and by one reader at a time.
  if (buffer_.size() == 0) {
    Watch();
  } else if (watching_) {
    beast::error_code ec;
    transport_.socket().cancel(ec);
  }
  while (watching_) {
    co_await Sleep(deadline);
    if (aborted_ || (watching_ && steady_clock::now() >= deadline)) co_return false;
  }
  co_return !peer_closed_ && !aborted_;
}

asio::awaitable<void> HttpConnection::Sleep(TimePoint deadline) {
  wake_.expires_at(deadline);
  co_await wake_.async_wait(kAwait);
}

asio::awaitable<bool> HttpConnection::ReadRequest() {
  const HttpOptions& options = shared_->options;
  Parser parser;
  parser.header_limit(options.max_header_bytes);
  parser.body_limit(options.max_body_bytes);
  preflight_ = head_only_ = http10_ = false;
  origin_.clear();
  request_id_.clear();
  log_method_.clear();
  started_us_ = shared_->deps.clock->NowUs();
  transport_.tcp().expires_after(microseconds(options.header_timeout_us));
  auto [ec, n] = co_await http::async_read_header(transport_, buffer_, parser, kAwait);
  if (ec) {
    keep_alive_ = false;
    ApiError error = FromParseError(ec, options);
    if (error.status != 0) co_await Refuse(std::move(error));
    co_return false;
  }
  idle_ = false;
  const auto& head = parser.get();
  http10_ = head.version() < 11;
  keep_alive_ = head.keep_alive() && !shared_->draining.load(std::memory_order_relaxed);
  log_method_ = View(head.method_string());
  if (const std::string_view id = View(head["x-request-id"]); IsRequestId(id)) request_id_ = id;
  if (request_id_.empty()) request_id_ = shared_->NewRequestId();
  const uint64_t number = shared_->next_id.fetch_add(1, std::memory_order_relaxed);
  trace_ = TraceContext::Continue(View(head["traceparent"]), shared_->options.id_seed, number);
  if (std::optional<ApiError> error = CheckHead(head)) {
    keep_alive_ = false;
    co_await Refuse(std::move(*error));
    co_return false;
  }
  const bool complete = co_await ReadBody(&parser);
  if (!complete) co_return false;

  if (std::optional<ApiError> error = Unpack(&parser)) {
    co_await Refuse(std::move(*error));
    co_return false;
  }

  HttpRequest request{.door = door_, .id = request_id_, .peer = peer_};
  gzip_ = AcceptsGzip(View(head[http::field::accept_encoding]));
  head_only_ = head.method() == http::verb::head;
  request.method = head_only_ ? "GET" : log_method_;
  const std::string target(View(head.target()));
  if (!SplitTarget(target, &request.path, &request.query)) {
    ApiError error = PlainError(400, "malformed_http", "The request's target is not a valid URL.");
    co_await Refuse(std::move(error));
    co_return false;
  }
  for (const std::string_view name : kKeptHeaders) {
    const std::string_view value = View(head[beast::string_view(name.data(), name.size())]);
    if (!value.empty()) request.headers.emplace_back(name, value);
  }
  request.body = std::move(parser.get().body());
  exchange_ = std::make_shared<HttpExchange>(io_, weak_from_this(), std::move(request),
                                             options.max_unsent_bytes);
  if (head.method() == http::verb::options) {
    preflight_ = true;
    asked_headers_ = View(head[http::field::access_control_request_headers]);
  }
  co_return true;
}

std::optional<ApiError> HttpConnection::CheckHead(const Parser::value_type& head) {
  // The parser refuses both framing headers together; codings other than chunked it lets pass as a
  // request without a body, whose bytes would then be taken for the next request.
  if (head.find(http::field::transfer_encoding) != head.end() &&
      (!head.chunked() || http10_ ||
       !beast::iequals(head[http::field::transfer_encoding], "chunked"))) {
    return PlainError(400, "malformed_http",
                      "Transfer-Encoding must be \"chunked\", in an HTTP/1.1 request.");
  }
  if (head.find(http::field::content_encoding) != head.end()) {
    const auto coding = head[http::field::content_encoding];
    if (!beast::iequals(coding, "identity") && !beast::iequals(coding, "gzip") &&
        !beast::iequals(coding, "deflate")) {
      return PlainError(415, "unsupported_encoding",
                        "Request bodies may be compressed with gzip or deflate only.");
    }
  }
  if (auto expect = head[http::field::expect];
      !expect.empty() && !beast::iequals(expect, "100-continue")) {
    return PlainError(417, "malformed_http", "The only expectation supported is 100-continue.");
  }
  if (!http10_ && head.count(http::field::host) != 1) {
    return PlainError(400, "malformed_http", "An HTTP/1.1 request needs exactly one Host header.");
  }
  const std::string_view origin = View(head[http::field::origin]);
  if (!origin.empty()) {
    if (!IsHeaderText(origin) || !OriginAllowed(origin, View(head[http::field::host]))) {
      return PlainError(403, "origin_not_allowed",
                        fmt::format("Web pages of {} may not call this server; its operator can "
                                    "allow that origin.",
                                    ToValidUtf8(origin)));
    }
    origin_ = origin;
  }
  return std::nullopt;
}

bool HttpConnection::OriginAllowed(std::string_view origin, std::string_view host) const {
  const size_t scheme = origin.find("://");
  if (scheme != std::string_view::npos) {
    const std::string_view authority = origin.substr(scheme + 3);
    if (authority == host) return true;
    if (IsLoopbackAuthority(authority)) return true;
  }
  const auto& allowed = shared_->options.allowed_origins;
  return std::any_of(allowed.begin(), allowed.end(),
                     [&](const std::string& each) { return each == "*" || each == origin; });
}

asio::awaitable<bool> HttpConnection::ReadBody(Parser* parser) {
  const HttpOptions& options = shared_->options;
  if (parser->is_done()) co_return true;
  transport_.tcp().expires_after(microseconds(options.body_timeout_us));
  if (!parser->get()[http::field::expect].empty() && buffer_.size() == 0 && !http10_) {
    constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    auto [ec, n] = co_await asio::async_write(
        transport_, asio::buffer(kContinue.data(), kContinue.size()), kAwait);
    if (ec) {
      keep_alive_ = false;
      co_return false;
    }
  }
  auto [ec, n] = co_await http::async_read(transport_, buffer_, *parser, kAwait);
  if (!ec) co_return true;
  keep_alive_ = false;
  ApiError error = FromParseError(ec, options);
  if (error.status != 0) co_await Refuse(std::move(error));
  co_return false;
}

std::optional<ApiError> HttpConnection::Unpack(Parser* parser) const {
  const auto coding = parser->get()[http::field::content_encoding];
  std::string& body = parser->get().body();
  if (coding.empty() || beast::iequals(coding, "identity") || body.empty()) return std::nullopt;
  absl::StatusOr<std::string> plain = Gunzip(body, shared_->options.max_body_bytes);
  if (plain.ok()) {
    body = *std::move(plain);
    return std::nullopt;
  }
  if (absl::IsResourceExhausted(plain.status())) {
    return PlainError(413, "body_too_large",
                      fmt::format("The unpacked body is larger than the limit of {}.",
                                  FormatBytes(shared_->options.max_body_bytes)));
  }
  return PlainError(400, "malformed_body", "The body is not valid gzip or deflate data.");
}

asio::awaitable<void> HttpConnection::Refuse(ApiError error) {
  if (request_id_.empty()) request_id_ = shared_->NewRequestId();
  const HttpResponse response = ErrorResponse(error);
  status_ = response.status;
  sent_bytes_ = response.body.size();
  const std::string head = Head(response, false, response.body.size());
  transport_.tcp().expires_after(microseconds(shared_->options.write_timeout_us));
  const std::string_view body = head_only_ ? std::string_view() : response.body;
  const bool sent = co_await WriteAll(head, body, "");
  if (!sent) keep_alive_ = false;
  shared_->deps.metrics->Count(MetricId::kErrors, {error.code});
  shared_->deps.access_log->Info("request", {{"id", request_id_},
                                             {"peer", peer_},
                                             {"method", log_method_},
                                             {"status", status_},
                                             {"error", error.code}});
}

void HttpConnection::Watch() {
  if (watching_ || aborted_ || peer_closed_ || buffer_.size() >= kMaxPipelinedBytes) return;
  watching_ = true;
  transport_.tcp().expires_never();
  transport_.async_read_some(buffer_.prepare(kWatchBytes),
                             [self = shared_from_this()](const beast::error_code& ec, size_t n) {
                               self->watching_ = false;
                               self->buffer_.commit(n);
                               if (ec == asio::error::operation_aborted) {
                                 // By WaitForRequest or Abort; what had come is in the buffer.
                               } else if (ec) {
                                 self->peer_closed_ = true;
                                 if (self->exchange_) self->exchange_->MarkGone();
                               } else if (self->exchange_) {
                                 self->Watch();
                               }
                               self->wake_.cancel();
                             });
}

asio::awaitable<void> HttpConnection::Answer() {
  if (preflight_) {
    HttpResponse response{.status = 204, .content_type = ""};
    response.headers.emplace_back("Allow", "GET, HEAD, POST, OPTIONS");
    exchange_->Respond(std::move(response));
  }
  for (;;) {
    HttpExchange::Output output;
    if (!exchange_->Take(&output)) {
      if (exchange_->gone()) co_return;
      Watch();
      co_await Sleep(TimePoint::max());
      continue;
    }
    if (output.fell_behind) {
      shared_->deps.runtime_log->Warning("a client reads too slowly: its connection is closed",
                                         {{"peer", peer_}, {"id", exchange_->request().id}});
      Abort();
      co_return;
    }
    const bool ends = output.end, closes = output.close;
    const bool sent = co_await Send(std::move(output));
    if (!sent) {
      Abort();
      co_return;
    }
    if (ends) {
      if (closes) keep_alive_ = false;
      co_return;
    }
  }
}

asio::awaitable<bool> HttpConnection::Send(HttpExchange::Output output) {
  const bool chunked = output.streamed && !http10_;
  std::string head;
  std::string_view body = output.bytes;
  if (output.head) {
    status_ = output.head->status;
    if (output.streamed) {
      if (http10_) keep_alive_ = false;
    } else {
      PackBody(gzip_, &*output.head);
      body = output.head->body;
    }
    if (shared_->draining.load(std::memory_order_relaxed)) keep_alive_ = false;
    head = Head(*output.head, output.streamed, body.size());
  }
  if (head_only_) body = {};
  sent_bytes_ += body.size();
  transport_.tcp().expires_after(
      microseconds(shared_->options.write_timeout_us +
                   static_cast<int64_t>(body.size() / kMiB) * kWriteUsPerMiB));
  std::string_view tail;
  if (chunked && !head_only_) {
    if (!body.empty()) {
      head += fmt::format("{:x}\r\n", body.size());
      tail = "\r\n";
    }
    if (output.end) tail = body.empty() ? "0\r\n\r\n" : "\r\n0\r\n\r\n";
  }
  const bool sent = co_await WriteAll(head, body, tail);
  co_return sent;
}

asio::awaitable<bool> HttpConnection::WriteAll(std::string_view head, std::string_view body,
                                               std::string_view tail) {
  const std::array<asio::const_buffer, 3> buffers{asio::const_buffer(head.data(), head.size()),
                                                  asio::const_buffer(body.data(), body.size()),
                                                  asio::const_buffer(tail.data(), tail.size())};
  auto [ec, n] = co_await asio::async_write(transport_, buffers, kAwait);
  co_return !ec;
}

std::string HttpConnection::Head(const HttpResponse& response, bool streamed,
                                 uint64_t body_bytes) const {
  const auto reason = http::obsolete_reason(http::int_to_status(response.status));
  std::string out =
      fmt::format("HTTP/1.1 {} {}\r\nDate: {}\r\nServer: terrace\r\n", response.status,
                  View(reason), io_->Date(shared_->deps.clock->WallUs()));
  auto add = [&out](std::string_view name, std::string_view value) {
    out.append(name).append(": ").append(value).append("\r\n");
  };
  if (!response.content_type.empty()) add("Content-Type", response.content_type);
  if (streamed) {
    add("Cache-Control", "no-cache");
    add("X-Accel-Buffering", "no");
    if (!http10_) add("Transfer-Encoding", "chunked");
  } else if (response.status != 204) {
    add("Content-Length", fmt::format("{}", body_bytes));
  }
  if (!keep_alive_) {
    add("Connection", "close");
  } else if (http10_) {
    add("Connection", "keep-alive");
  }
  add("x-request-id", request_id_);
  if (trace_.valid()) add("traceparent", trace_.Header());
  if (!origin_.empty()) {
    add("Access-Control-Allow-Origin", origin_);
    add("Access-Control-Expose-Headers", "x-request-id, retry-after");
    add("Vary", "Origin");
  }
  if (preflight_ && !origin_.empty()) {
    add("Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS");
    if (!asked_headers_.empty() && IsHeaderText(asked_headers_)) {
      add("Access-Control-Allow-Headers", asked_headers_);
    }
    add("Access-Control-Max-Age", "600");
  }
  for (const auto& [name, value] : response.headers) add(name, value);
  out += "\r\n";
  return out;
}

// Closes our side and reads on for a moment: closing at once with bytes unread would reset the
// connection, and the client might never see the answer.
asio::awaitable<void> HttpConnection::Linger() {
  beast::error_code ec;
  transport_.socket().shutdown(Tcp::socket::shutdown_send, ec);
  const TimePoint deadline = steady_clock::now() + kLingerTime;
  uint64_t discarded = 0;
  while (!ec && !peer_closed_ && !aborted_ && discarded < kMaxDiscardedBytes &&
         steady_clock::now() < deadline) {
    if (!watching_) {
      discarded += buffer_.size();
      buffer_.clear();
      // Larger pieces than Watch() reads: whole bodies may come.
      transport_.tcp().expires_at(deadline);
      auto [read_error, n] =
          co_await transport_.async_read_some(buffer_.prepare(16 * kKiB), kAwait);
      buffer_.commit(n);
      if (read_error) co_return;
    } else {
      co_await Sleep(deadline);
    }
  }
}

}  // namespace terrace::server
