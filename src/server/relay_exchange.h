// An exchange without a connection of its own: how one protocol stands on another. A handler makes
// one with a request of the OpenAI API, hands it to the handler of that API, and gets the answer
// piece by piece, so that every protocol goes through the same checks, limits and queues.
//
// Thread-safe as Exchange says. Calls of the receiver come one at a time.
#ifndef TERRACE_SERVER_RELAY_EXCHANGE_H_
#define TERRACE_SERVER_RELAY_EXCHANGE_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/exchange.h"

namespace terrace::server {

// Hears the answer: OnWhole alone, or OnEvent any number of times and then OnEnd.
class AnswerReceiver {
 public:
  virtual ~AnswerReceiver() = default;
  virtual void OnWhole(const HttpResponse& response) = 0;
  // The data of one event. False: nobody reads, so that the work may stop.
  virtual bool OnEvent(std::string_view data) = 0;
  // `failed`: the last event told an error.
  virtual void OnEnd(bool failed) = 0;
};

class RelayExchange final : public Exchange {
 public:
  // With a parent, its client's going is this exchange's, and they share the access record;
  // without, MarkGone says it.
  RelayExchange(HttpRequest request, std::shared_ptr<AnswerReceiver> receiver,
                std::shared_ptr<Exchange> parent);
  ~RelayExchange() override;

  HttpRequest& request() override { return request_; }
  void Respond(HttpResponse response) override;
  void BeginStream(std::string content_type) override;
  bool Write(std::string_view bytes) override;
  void EndStream(bool close) override;
  bool gone() const override;
  void OnGone(std::function<void()> callback) override;
  AccessRecord& access() override { return parent_ ? parent_->access() : access_; }

  void MarkGone();

 private:
  HttpRequest request_;
  const std::shared_ptr<AnswerReceiver> receiver_;
  const std::shared_ptr<Exchange> parent_;
  AccessRecord access_;
  std::string unread_;  // of an event whose end has not come
  std::atomic<bool> gone_{false};
  absl::Mutex mutex_;
  std::function<void()> on_gone_ ABSL_GUARDED_BY(mutex_);
};

// A request of the OpenAI API on behalf of `from`: its client, id and rights, another path and
// body.
HttpRequest RelayRequest(const HttpRequest& from, std::string path, std::string body);

}  // namespace terrace::server

#endif  // TERRACE_SERVER_RELAY_EXCHANGE_H_
