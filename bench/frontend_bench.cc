// The front end alone: parsing, keys, template, tokenizer and limits over HTTP, with a scheduler
// that gives out tokens for nothing. The load comes from a thread of this program, so that client
// and server share the machine's processors.
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <vector>

#include "base/status.h"
#include "base/units.h"
#include "bench.h"
#include "obs/log.h"
#include "obs/metrics.h"
#include "os/process_memory.h"
#include "server/api_handler.h"
#include "server/api_keys.h"
#include "server/fake_scheduler.h"
#include "server/front.h"
#include "server/http_server.h"
#include "server/test_model.h"

namespace terrace::bench {
namespace {

using server::FakeScheduler;

// One connection that asks again as soon as it has been answered.
struct Connection {
  int fd = -1;
  size_t sent = 0;
  std::string read;
  size_t searched = 0;
  bool busy = false;
  int64_t asked_us = 0;
};

// Drives many connections from one thread.
class Load {
 public:
  Load(uint16_t port, size_t connections, std::string request, const Clock* clock)
      : request_(std::move(request)), clock_(clock), poll_(epoll_create1(EPOLL_CLOEXEC)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connections_.resize(connections);
    for (size_t i = 0; i < connections; ++i) {
      Connection& connection = connections_[i];
      connection.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (connect(connection.fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
        failed_ = true;
      }
      const int one = 1;
      setsockopt(connection.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
      fcntl(connection.fd, F_SETFL, O_NONBLOCK);
      epoll_event event{.events = EPOLLIN, .data = {.u64 = i}};
      epoll_ctl(poll_, EPOLL_CTL_ADD, connection.fd, &event);
    }
  }
  ~Load() {
    for (const Connection& connection : connections_) close(connection.fd);
    close(poll_);
  }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  bool failed() const { return failed_; }
  std::vector<double>& latencies_us() { return latencies_us_; }

  // Asks on connection `i`, which must not be busy.
  void Ask(size_t i) {
    Connection& connection = connections_[i];
    connection.busy = true;
    connection.asked_us = clock_->NowUs();
    connection.read.clear();
    connection.searched = 0;
    // A request is small against a socket's buffer: it is taken whole.
    if (write(connection.fd, request_.data(), request_.size()) !=
        static_cast<ssize_t>(request_.size())) {
      failed_ = true;
    }
  }
  size_t size() const { return connections_.size(); }
  bool busy(size_t i) const { return connections_[i].busy; }

  // Reads what has come within `timeout_ms`; calls `done` with each connection whose answer has
  // ended.
  template <typename F>
  void Read(int timeout_ms, F&& done) {
    epoll_event events[64];
    const int count = epoll_wait(poll_, events, 64, timeout_ms);
    for (int e = 0; e < count; ++e) {
      const size_t i = events[e].data.u64;
      Connection& connection = connections_[i];
      char piece[65536];
      const ssize_t got = read(connection.fd, piece, sizeof piece);
      if (got <= 0) {
        failed_ = true;
        continue;
      }
      connection.read.append(piece, static_cast<size_t>(got));
      if (!Ended(&connection)) continue;
      connection.busy = false;
      latencies_us_.push_back(static_cast<double>(clock_->NowUs() - connection.asked_us));
      done(i);
    }
  }

 private:
  // Whole answers end as Content-Length says, streams with the last chunk.
  bool Ended(Connection* connection) {
    const std::string& text = connection->read;
    if (!text.starts_with("HTTP/1.1 200")) {
      if (text.size() >= 12) failed_ = true;
      return false;
    }
    const size_t head = text.find("\r\n\r\n");
    if (head == std::string::npos) return false;
    const size_t length = text.find("Content-Length: ");
    if (length != std::string::npos && length < head) {
      return text.size() >= head + 4 + std::strtoul(text.c_str() + length + 16, nullptr, 10);
    }
    return text.ends_with("\r\n0\r\n\r\n");
  }

  const std::string request_;
  const Clock* const clock_;
  const int poll_;
  std::vector<Connection> connections_;
  std::vector<double> latencies_us_;
  bool failed_ = false;
};

// The server's front as `terrace serve` makes it, over a scheduler without an engine.
class NullServer {
 public:
  static absl::StatusOr<std::unique_ptr<NullServer>> Create(const Context& context) {
    std::unique_ptr<NullServer> out(new NullServer);
    server::ApiKey key{.name = "bench"};
    ASSIGN_OR_RETURN(out->key_, server::MakeKey(&key));
    std::filesystem::create_directories(context.cache_folder);
    const std::string path = context.cache_folder + "/bench-keys.json";
    RETURN_IF_ERROR(server::WriteKeys(path, {key}));
    out->keys_ = std::make_unique<server::KeyRing>(path, context.clock, &out->log_);
    out->models_.Add(server::MakeTestModel());
    out->api_ = std::make_unique<server::ApiHandler>(server::ApiOptions(),
                                                     server::ApiDeps{.models = &out->models_,
                                                                     .scheduler = &out->scheduler_,
                                                                     .clock = context.clock,
                                                                     .metrics = &out->metrics_,
                                                                     .runtime_log = &out->log_});
    out->front_ = std::make_unique<server::Front>(
        server::FrontOptions{.keys_needed = server::KeysNeeded::kAlways},
        server::FrontDeps{
            .openai = out->api_.get(), .keys = out->keys_.get(), .runtime_log = &out->log_});
    server::HttpOptions http;
    http.endpoints = {{.port = 0}};
    ASSIGN_OR_RETURN(out->http_,
                     server::HttpServer::Bind(std::move(http), {.clock = context.clock,
                                                                .access_log = &out->log_,
                                                                .runtime_log = &out->log_,
                                                                .metrics = &out->metrics_}));
    out->http_->Start(out->front_.get());
    return out;
  }
  ~NullServer() {
    if (http_ != nullptr) http_->Stop();
    scheduler_.Drain(0);
  }

  uint16_t port() const { return http_->ports()[0]; }
  FakeScheduler& scheduler() { return scheduler_; }
  std::string Request(bool stream, int tokens) const {
    const std::string body = fmt::format(
        R"({{"model":"tiny","messages":[{{"role":"system","content":"You answer briefly."}},)"
        R"({{"role":"user","content":"Where does the river go when it has rained for days?"}}],)"
        R"("max_tokens":{},"stream":{}}})",
        tokens, stream);
    return fmt::format(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {}\r\n"
        "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
        key_, body.size(), body);
  }

 private:
  NullServer()
      : scheduler_({.max_running = 4096, .max_queue = 8192}, [](const auto&) {
          return server::Script{.tokens = server::Bytes("flow "), .repeat = true};
        }) {}

  NullLogger log_;
  Metrics metrics_;
  server::TestModels models_;
  FakeScheduler scheduler_;
  std::string key_;
  std::unique_ptr<server::KeyRing> keys_;
  std::unique_ptr<server::ApiHandler> api_;
  std::unique_ptr<server::Front> front_;
  std::unique_ptr<server::HttpServer> http_;
};

double Percentile(std::vector<double>* values, double share) {
  if (values->empty()) return 0;
  std::sort(values->begin(), values->end());
  return (*values)[static_cast<size_t>(share * static_cast<double>(values->size() - 1))];
}

// What a stream costs that has had its first token and waits for the next: growth of resident
// memory by so many of them, the client's own part (some hundred bytes) included. To be measured
// first: memory that others left free would be taken for nothing.
absl::StatusOr<Row> IdleStreams(const Context& context) {
  const size_t streams = context.quick ? 500 : 2000;
  // Nobody's second token comes before everybody's first.
  const int64_t step_us = context.quick ? 2'000'000 : 5'000'000;
  ASSIGN_OR_RETURN(std::unique_ptr<NullServer> server, NullServer::Create(context));
  {
    Load first(server->port(), 1, server->Request(false, 4), context.clock);
    first.Ask(0);
    for (bool answered = false; !answered && !first.failed();) {
      first.Read(100, [&](size_t) { answered = true; });
    }
  }
  server->scheduler().set_script([step_us](const auto&) {
    return server::Script{.tokens = server::Bytes("flow "), .repeat = true, .step_us = step_us};
  });
  const uint64_t tokens = server->scheduler().tokens();
  ASSIGN_OR_RETURN(const os::ProcessMemory before, os::ReadProcessMemory());
  Load load(server->port(), streams, server->Request(true, 480), context.clock);
  for (size_t i = 0; i < streams; ++i) load.Ask(i);
  const int64_t give_up_us = context.clock->NowUs() + 4 * step_us;
  while (server->scheduler().tokens() < tokens + streams && !load.failed() &&
         context.clock->NowUs() < give_up_us) {
    load.Read(10, [](size_t) {});
  }
  if (load.failed() || server->scheduler().active() != streams) {
    return absl::InternalError("not all streams are open");
  }
  ASSIGN_OR_RETURN(const os::ProcessMemory after, os::ReadProcessMemory());
  return Row{
      .law = fmt::format("front end, null engine: memory of one of {} idle streams", streams),
      .measured =
          static_cast<double>(after.rss_bytes - std::min(after.rss_bytes, before.rss_bytes)) /
          kKiB / static_cast<double>(streams),
      .unit = "KiB",
      .goal_kind = Goal::kAtMost,
      .goal = 64};
}

// Requests a second that `load` gets answered, each connection asking again at once.
absl::StatusOr<double> ClosedLoop(Load* load, const Clock* clock, int64_t for_us) {
  for (size_t i = 0; i < load->size(); ++i) load->Ask(i);
  const int64_t start_us = clock->NowUs();
  int64_t answered = 0, now_us = start_us;
  while (now_us - start_us < for_us && !load->failed()) {
    load->Read(100, [&](size_t i) {
      ++answered;
      load->Ask(i);
    });
    now_us = clock->NowUs();
  }
  if (load->failed()) return absl::InternalError("a request failed");
  return static_cast<double>(answered) / (static_cast<double>(now_us - start_us) * 1e-6);
}

}  // namespace

absl::StatusOr<std::vector<Row>> RunFrontend(const Context& context) {
  std::vector<Row> rows;
  ASSIGN_OR_RETURN(rows.emplace_back(), IdleStreams(context));
  ASSIGN_OR_RETURN(std::unique_ptr<NullServer> server, NullServer::Create(context));
  const int64_t for_us = context.quick ? 500'000 : 5'000'000;
  {
    Load load(server->port(), 64, server->Request(false, 4), context.clock);
    ASSIGN_OR_RETURN(const double rate, ClosedLoop(&load, context.clock, for_us));
    rows.push_back({.law = "front end, null engine: chat completions",
                    .measured = rate,
                    .unit = "requests/s",
                    .goal_kind = Goal::kAtLeast,
                    .goal = 10'000});
  }
  {
    const size_t streams = context.quick ? 100 : 1000;
    Load load(server->port(), streams, server->Request(true, 480), context.clock);
    const uint64_t before = server->scheduler().tokens();
    const int64_t start_us = context.clock->NowUs();
    ASSIGN_OR_RETURN(const double rate, ClosedLoop(&load, context.clock, for_us));
    const double seconds = static_cast<double>(context.clock->NowUs() - start_us) * 1e-6;
    if (rate == 0) context.say("no stream ended in the time");
    rows.push_back(
        {.law = fmt::format("front end, null engine: tokens over {} streams", streams),
         .measured = static_cast<double>(server->scheduler().tokens() - before) / seconds,
         .unit = "tokens/s",
         .goal_kind = Goal::kAtLeast,
         .goal = 200'000});
  }
  server->scheduler().WaitIdle(5'000'000);
  {
    Load load(server->port(), 64, server->Request(false, 1), context.clock);
    constexpr int64_t kEveryUs = 1000;
    int64_t next_us = context.clock->NowUs();
    const int64_t end_us = next_us + for_us;
    size_t at = 0;
    while (context.clock->NowUs() < end_us && !load.failed()) {
      while (context.clock->NowUs() >= next_us) {
        for (size_t tried = 0; tried < load.size() && load.busy(at); ++tried) {
          at = (at + 1) % load.size();
        }
        if (!load.busy(at)) load.Ask(at);
        next_us += kEveryUs;
      }
      load.Read(0, [](size_t) {});
    }
    if (load.failed()) return absl::InternalError("a request failed");
    rows.push_back({.law = "front end, null engine: added latency at 1,000 requests/s, p99",
                    .measured = Percentile(&load.latencies_us(), 0.99) * 1e-3,
                    .unit = "ms",
                    .goal_kind = Goal::kAtMost,
                    .goal = 2});
  }
  return rows;
}

}  // namespace terrace::bench
