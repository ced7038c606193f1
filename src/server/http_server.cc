#include "server/http_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <future>
#include <optional>
#include <thread>
#include <utility>

#include "obs/log.h"
#include "os/thread_usage.h"
#include "server/http_connection.h"
#include "server/tls.h"

namespace terrace::server {
namespace {

namespace asio = boost::asio;
using Tcp = asio::ip::tcp;

constexpr int kBacklog = 4096;
// Rest after an accept that failed, such as for want of file descriptors.
constexpr auto kAcceptRest = std::chrono::milliseconds(100);
// Within which a thread turns to what it is given; else it hangs.
constexpr auto kTellTime = std::chrono::milliseconds(100);

struct Listener {
  Listener(asio::io_context& context, Door which) : acceptor(context), rest(context), door(which) {}
  Tcp::acceptor acceptor;
  asio::steady_timer rest;
  Door door;
};

class HttpServerImpl final : public HttpServer {
 public:
  HttpServerImpl(HttpOptions options, HttpDeps deps) {
    shared_->options = std::move(options);
    shared_->deps = deps;
    const int threads = std::max(1, shared_->options.io_threads);
    for (int i = 0; i < threads; ++i) threads_.push_back(std::make_shared<IoThread>());
  }
  ~HttpServerImpl() override { Stop(); }

  absl::Status BindAll();
  std::vector<uint16_t> ports() const override { return ports_; }
  void Start(HttpHandler* handler) override;
  bool Drain(int64_t timeout_us) override;
  void Stop() override;
  std::vector<int> listeners() const override;
  void FailAll(const ApiError& error) override;
  int64_t open_connections() const override { return shared_->connections.load(); }

 private:
  void Accept(Listener* listener);

  std::shared_ptr<HttpShared> shared_ = std::make_shared<HttpShared>();  // with the connections
  std::vector<std::shared_ptr<IoThread>> threads_;
  std::vector<std::thread> rescue_;  // in the place of those that hang
  std::vector<asio::executor_work_guard<asio::io_context::executor_type>> work_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::vector<uint16_t> ports_;
  size_t next_thread_ = 0;  // for thread 0, which accepts
  std::atomic<bool> stopping_{false};
};

absl::Status BindError(const HttpEndpoint& endpoint, std::string_view why) {
  return absl::FailedPreconditionError(
      fmt::format("cannot listen on {} port {}: {}", endpoint.host, endpoint.port, why));
}

void Listen(const HttpEndpoint& endpoint, const Tcp::endpoint& address, Tcp::acceptor* acceptor,
            boost::system::error_code& ec) {
  if (endpoint.listening >= 0) {
    acceptor->assign(address.protocol(), endpoint.listening, ec);
    return;
  }
  acceptor->open(address.protocol(), ec);
  // Lets a restarted server bind while old connections linger. On Linux it does not let two
  // servers listen on one port; SO_REUSEPORT would, and must not be set.
  if (!ec) acceptor->set_option(asio::socket_base::reuse_address(true), ec);
  if (!ec) acceptor->bind(address, ec);
  if (!ec) acceptor->listen(kBacklog, ec);
}

absl::Status HttpServerImpl::BindAll() {
  asio::io_context& context = threads_[0]->context;
  for (const HttpEndpoint& endpoint : shared_->options.endpoints) {
    boost::system::error_code ec;
    Tcp::resolver resolver(context);
    auto found = resolver.resolve(endpoint.host, fmt::format("{}", endpoint.port),
                                  Tcp::resolver::passive | Tcp::resolver::numeric_service, ec);
    if (ec || found.empty()) return BindError(endpoint, ec ? ec.message() : "no such address");
    Tcp::endpoint address = *found.begin();
    for (const auto& each : found) {
      if (each.endpoint().address().is_v4()) {
        address = each.endpoint();
        break;
      }
    }
    auto listener = std::make_unique<Listener>(context, endpoint.door);
    Tcp::acceptor& acceptor = listener->acceptor;
    Listen(endpoint, address, &acceptor, ec);
    if (ec) {
      return BindError(endpoint, ec == asio::error::address_in_use
                                     ? "the port is taken by another process; stop it or choose "
                                       "another port"
                                     : ec.message());
    }
    const Tcp::endpoint bound = acceptor.local_endpoint(ec);
    ports_.push_back(ec ? endpoint.port : bound.port());
    listeners_.push_back(std::move(listener));
  }
  return absl::OkStatus();
}

void HttpServerImpl::Start(HttpHandler* handler) {
  shared_->handler = handler;
  for (auto& io : threads_) work_.emplace_back(io->context.get_executor());
  for (auto& listener : listeners_) Accept(listener.get());
  for (auto& io : threads_) {
    io->thread = std::thread([io = io.get()] {
      os::NameThisThread("http");
      io->Run();
    });
  }
}

void HttpServerImpl::Accept(Listener* listener) {
  std::shared_ptr<IoThread> io = threads_[next_thread_++ % threads_.size()];
  listener->acceptor.async_accept(
      io->context, [this, listener, io](const boost::system::error_code& ec, Tcp::socket socket) {
        if (stopping_.load(std::memory_order_relaxed)) return;
        if (ec) {
          shared_->deps.runtime_log->Warning("a connection could not be taken",
                                             {{"error", ec.message()}});
          listener->rest.expires_after(kAcceptRest);
          listener->rest.async_wait([this, listener](const boost::system::error_code&) {
            if (!stopping_.load(std::memory_order_relaxed)) Accept(listener);
          });
          return;
        }
        if (shared_->connections.fetch_add(1) >= shared_->options.max_connections) {
          shared_->connections.fetch_sub(1);  // the socket closes with this scope
        } else {
          const bool secure = shared_->deps.tls != nullptr && listener->door != Door::kMetrics;
          auto connection = std::make_shared<HttpConnection>(
              shared_, io, std::move(socket), secure ? shared_->deps.tls->Current() : nullptr,
              listener->door);
          asio::post(io->context, [this, connection] {
            if (!stopping_.load(std::memory_order_relaxed)) connection->Start();
          });
        }
        Accept(listener);
      });
}

bool HttpServerImpl::Drain(int64_t timeout_us) {
  shared_->draining.store(true);
  for (auto& io : threads_) {
    asio::post(io->context, [io = io.get()] {
      for (HttpConnection* connection : io->connections) connection->CloseIfIdle();
    });
  }
  return shared_->WaitForExchanges(timeout_us);
}

std::vector<int> HttpServerImpl::listeners() const {
  std::vector<int> out;
  for (const auto& listener : listeners_) out.push_back(listener->acceptor.native_handle());
  return out;
}

void HttpServerImpl::FailAll(const ApiError& error) {
  shared_->draining.store(true);
  std::vector<std::future<void>> told;
  for (auto& io : threads_) {
    auto done = std::make_shared<std::promise<void>>();
    told.push_back(done->get_future());
    asio::post(io->context, [io = io.get(), error, done] {
      for (HttpConnection* connection : io->connections) connection->FailOpen(error);
      done->set_value();
    });
  }
  for (size_t i = 0; i < told.size(); ++i) {
    if (told[i].wait_for(kTellTime) == std::future_status::ready) continue;
    // The thread waits in a handler for what hangs: another goes on with its other connections.
    threads_[i]->replaced.store(true);
    rescue_.emplace_back([io = threads_[i]] { io->context.run(); });
  }
}

void HttpServerImpl::Stop() {
  if (stopping_.exchange(true)) return;
  if (shared_->handler == nullptr) {
    listeners_.clear();
    return;
  }
  for (auto& io : threads_) {
    if (io->replaced.load()) io->context.stop();
  }
  for (std::thread& thread : rescue_) thread.join();
  for (auto& io : threads_) {
    if (!io->replaced.load()) continue;
    io->context.restart();
    io->may_go_on.Notify();
  }
  asio::post(threads_[0]->context, [this] {
    for (auto& listener : listeners_) {
      boost::system::error_code ec;
      listener->acceptor.close(ec);
      listener->rest.cancel();
    }
  });
  for (auto& io : threads_) {
    asio::post(io->context, [io = io.get()] {
      for (HttpConnection* connection : io->connections) connection->Abort();
    });
  }
  work_.clear();
  for (auto& io : threads_) {
    if (io->thread.joinable()) io->thread.join();
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Bind(HttpOptions options, HttpDeps deps) {
  auto server = std::make_unique<HttpServerImpl>(std::move(options), deps);
  absl::Status status = server->BindAll();
  if (!status.ok()) return status;
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace terrace::server
