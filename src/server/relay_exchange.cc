#include "server/relay_exchange.h"

#include <utility>

namespace terrace::server {

RelayExchange::RelayExchange(HttpRequest request, std::shared_ptr<AnswerReceiver> receiver,
                             std::shared_ptr<Exchange> parent)
    : request_(std::move(request)), receiver_(std::move(receiver)), parent_(std::move(parent)) {}

RelayExchange::~RelayExchange() {
  // With a parent, the parent's connection does.
  if (parent_ == nullptr && request_.caller.ticket != nullptr) {
    request_.caller.ticket->OnDone(access_);
  }
}

void RelayExchange::Respond(HttpResponse response) { receiver_->OnWhole(response); }

void RelayExchange::BeginStream(std::string) {}

bool RelayExchange::Write(std::string_view bytes) {
  if (gone()) return false;
  unread_.append(bytes);
  bool reads = true;
  size_t begin = 0;
  for (size_t end = unread_.find("\n\n"); end != std::string::npos;
       end = unread_.find("\n\n", begin)) {
    const std::string_view event = std::string_view(unread_).substr(begin, end - begin);
    constexpr std::string_view kData = "data: ";
    if (event.starts_with(kData)) reads = receiver_->OnEvent(event.substr(kData.size())) && reads;
    begin = end + 2;
  }
  unread_.erase(0, begin);
  return reads;
}

void RelayExchange::EndStream(bool close) { receiver_->OnEnd(close); }

bool RelayExchange::gone() const {
  return parent_ ? parent_->gone() : gone_.load(std::memory_order_acquire);
}

void RelayExchange::OnGone(std::function<void()> callback) {
  if (parent_) return parent_->OnGone(std::move(callback));
  {
    absl::MutexLock lock(&mutex_);
    if (!gone()) {
      on_gone_ = std::move(callback);
      return;
    }
  }
  if (callback) callback();
}

void RelayExchange::MarkGone() {
  std::function<void()> callback;
  {
    absl::MutexLock lock(&mutex_);
    if (gone_.exchange(true)) return;
    callback = std::move(on_gone_);
    on_gone_ = nullptr;
  }
  if (callback) callback();
}

HttpRequest RelayRequest(const HttpRequest& from, std::string path, std::string body) {
  return {.door = Door::kApi,
          .method = "POST",
          .path = std::move(path),
          .body = std::move(body),
          .id = from.id,
          .peer = from.peer,
          .headers = from.headers,
          .caller = from.caller};
}

}  // namespace terrace::server
