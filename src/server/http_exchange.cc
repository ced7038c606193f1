#include <boost/asio/post.hpp>
#include <utility>

#include "server/failure.h"
#include "server/http_connection.h"

namespace terrace::server {

HttpExchange::HttpExchange(std::shared_ptr<IoThread> io, std::weak_ptr<HttpConnection> connection,
                           HttpRequest request, uint64_t max_unsent_bytes)
    : io_(std::move(io)),
      connection_(std::move(connection)),
      request_(std::move(request)),
      max_unsent_bytes_(max_unsent_bytes) {}

void HttpExchange::WakeLocked() {
  has_output_ = true;
  if (!wake_wanted_ || gone()) return;
  wake_wanted_ = false;
  boost::asio::post(io_->context, [connection = connection_] {
    if (auto alive = connection.lock()) alive->Wake();
  });
}

void HttpExchange::Respond(HttpResponse response) {
  absl::MutexLock lock(&mutex_);
  if (complete_) return;
  output_.head = std::move(response);
  output_.end = true;
  complete_ = true;
  WakeLocked();
}

void HttpExchange::BeginStream(std::string content_type) {
  absl::MutexLock lock(&mutex_);
  if (complete_) return;
  stream_type_ = content_type;
  output_.head = HttpResponse{.content_type = std::move(content_type)};
  output_.streamed = true;
  WakeLocked();
}

bool HttpExchange::Write(std::string_view bytes) {
  if (gone()) return false;
  absl::MutexLock lock(&mutex_);
  if (output_.fell_behind || complete_) return false;
  // One piece may be larger (an echoed prompt): a limit on what waits, not on what is said at once.
  if (!output_.bytes.empty() && output_.bytes.size() + bytes.size() > max_unsent_bytes_) {
    output_.fell_behind = true;
    WakeLocked();
    return false;
  }
  output_.bytes.append(bytes);
  WakeLocked();
  return true;
}

void HttpExchange::EndStream(bool close) {
  absl::MutexLock lock(&mutex_);
  if (complete_) return;
  output_.end = true;
  output_.close = close;
  complete_ = true;
  WakeLocked();
}

void HttpExchange::OnGone(std::function<void()> callback) {
  {
    absl::MutexLock lock(&mutex_);
    if (!gone()) {
      on_gone_ = std::move(callback);
      return;
    }
  }
  if (callback) callback();
}

bool HttpExchange::Take(Output* output) {
  absl::MutexLock lock(&mutex_);
  if (!has_output_) {
    wake_wanted_ = true;
    return false;
  }
  has_output_ = false;
  *output = std::move(output_);
  output_ = Output{.streamed = output->streamed, .fell_behind = output->fell_behind};
  return true;
}

void HttpExchange::Fail(const ApiError& error) {
  absl::MutexLock lock(&mutex_);
  if (complete_) return;
  if (stream_type_.empty()) {
    output_.head = FailureResponse(request_.path, error);
  } else {
    output_.bytes += FailureEvent(request_.path, stream_type_, error);
  }
  output_.end = output_.close = true;
  complete_ = true;
  WakeLocked();
}

void HttpExchange::MarkGone() {
  std::function<void()> callback;
  {
    absl::MutexLock lock(&mutex_);
    if (gone()) return;
    gone_.store(true, std::memory_order_release);
    if (!complete_) callback = std::move(on_gone_);
    on_gone_ = nullptr;
  }
  if (callback) callback();
}

}  // namespace terrace::server
