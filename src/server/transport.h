// A connection's stream, plain or TLS, as Beast wants it: private to the HTTP server.
#ifndef TERRACE_SERVER_TRANSPORT_H_
#define TERRACE_SERVER_TRANSPORT_H_

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <memory>
#include <optional>
#include <utility>

namespace terrace::server {

// Used by one thread. Time-outs are those of the tcp_stream below.
class Transport {
 public:
  using executor_type = boost::beast::tcp_stream::executor_type;

  // `context` null: plain.
  Transport(boost::asio::ip::tcp::socket socket, std::shared_ptr<boost::asio::ssl::context> context)
      : tcp_(std::move(socket)), context_(std::move(context)) {
    if (context_ != nullptr) tls_.emplace(tcp_, *context_);
  }

  executor_type get_executor() { return tcp_.get_executor(); }
  boost::beast::tcp_stream& tcp() { return tcp_; }
  boost::asio::ip::tcp::socket& socket() { return tcp_.socket(); }
  bool is_tls() const { return tls_.has_value(); }

  // REQUIRES: is_tls().
  template <typename Token>
  auto async_handshake(Token&& token) {
    return tls_->async_handshake(boost::asio::ssl::stream_base::server, std::forward<Token>(token));
  }

  template <typename Buffers, typename Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    if (tls_) return tls_->async_read_some(buffers, std::forward<Token>(token));
    return tcp_.async_read_some(buffers, std::forward<Token>(token));
  }

  template <typename Buffers, typename Token>
  auto async_write_some(const Buffers& buffers, Token&& token) {
    if (tls_) return tls_->async_write_some(buffers, std::forward<Token>(token));
    return tcp_.async_write_some(buffers, std::forward<Token>(token));
  }

 private:
  boost::beast::tcp_stream tcp_;
  const std::shared_ptr<boost::asio::ssl::context> context_;  // shared with other connections
  std::optional<boost::asio::ssl::stream<boost::beast::tcp_stream&>> tls_;
};

}  // namespace terrace::server

#endif  // TERRACE_SERVER_TRANSPORT_H_
