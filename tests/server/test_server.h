// The whole HTTP surface over a fake scheduler, on a free port of this machine.
#ifndef TERRACE_TESTS_SERVER_TEST_SERVER_H_
#define TERRACE_TESTS_SERVER_TEST_SERVER_H_

#include <boost/json/value.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "fake_scheduler.h"
#include "http_client.h"
#include "obs/log.h"
#include "obs/metrics.h"
#include "server/api_handler.h"
#include "server/http_server.h"
#include "test_model.h"

namespace terrace::server {

struct TestServerOptions {
  HttpOptions http;
  ApiOptions api;
  FakeScheduler::Options scheduler;
};

// A logger that keeps its lines.
class KeepingLogger final : public Logger {
 public:
  bool Enabled(LogLevel) const override { return true; }
  void Log(LogLevel level, std::string_view message, LogFields fields) override;
  absl::Status Reopen() override { return absl::OkStatus(); }
  std::vector<std::string> lines() const;

 private:
  mutable absl::Mutex mutex_;
  std::vector<std::string> lines_;
};

class TestServer {
 public:
  // Serves the model "tiny", whose answer to everything is "Hi!".
  explicit TestServer(TestServerOptions options = {});
  ~TestServer();

  uint16_t port() const { return http_->ports()[0]; }
  uint16_t metrics_port() const { return http_->ports()[1]; }
  HttpServer& http() { return *http_; }
  ApiHandler& api() { return *api_; }
  FakeScheduler& scheduler() { return scheduler_; }
  TestModels& models() { return models_; }
  Metrics& metrics() { return metrics_; }
  KeepingLogger& access_log() { return access_log_; }

  // All answers are `text`, a token a byte (then the end token), with `step_us` between tokens.
  void Say(std::string_view text, int64_t step_us = 0);
  void SayTokens(std::vector<int32_t> tokens, int64_t step_us = 0);

  HttpReply Get(std::string_view path);
  HttpReply Post(std::string_view path, std::string_view body);
  HttpReply Chat(std::string_view body) { return Post("/v1/chat/completions", body); }
  HttpReply Complete(std::string_view body) { return Post("/v1/completions", body); }
  // A chat of one user message "x", with further fields: R"("stream":true)".
  HttpReply Ask(std::string_view fields = "");

 private:
  RealClock clock_;
  Metrics metrics_;
  KeepingLogger access_log_;
  NullLogger runtime_log_;
  TestModels models_;
  FakeScheduler scheduler_;
  std::unique_ptr<ApiHandler> api_;
  std::unique_ptr<HttpServer> http_;
};

// The body of one user message with further fields.
std::string ChatBody(std::string_view fields = "", std::string_view content = "x");
boost::json::value Json(std::string_view text);
// The value at a path such as "choices/0/message/content"; null if there is none.
boost::json::value At(const boost::json::value& value, std::string_view path);
std::string TextAt(const boost::json::value& value, std::string_view path);
// The joined text of a stream's choice, chat or completion.
std::string StreamText(const HttpReply& reply, int64_t index = 0);
std::string StreamReason(const HttpReply& reply, int64_t index = 0);

}  // namespace terrace::server

#endif  // TERRACE_TESTS_SERVER_TEST_SERVER_H_
