#include "http_client.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/clock.h"
#include "base/text.h"

namespace terrace::server {
namespace {

int64_t NowMs() { return RealClock().NowUs() / 1000; }

}  // namespace

std::vector<std::string> HttpReply::Events() const {
  std::vector<std::string> events;
  size_t at = 0;
  while (at < body.size()) {
    size_t end = body.find("\n\n", at);
    if (end == std::string::npos) end = body.size();
    std::string event = body.substr(at, end - at);
    at = end + 2;
    // An event may be named in a line of its own.
    if (event.starts_with("event: ")) event = event.substr(event.find('\n') + 1);
    if (event.starts_with("data: ")) event = event.substr(6);
    events.push_back(std::move(event));
  }
  return events;
}

HttpClient::HttpClient(uint16_t port) {
  fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  closed_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0;
  const int on = 1;
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

HttpClient::~HttpClient() { Close(); }

void HttpClient::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
  closed_ = true;
}

void HttpClient::Reset() {
  const linger now{.l_onoff = 1, .l_linger = 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  Close();
}

void HttpClient::HalfClose() { shutdown(fd_, SHUT_WR); }

void HttpClient::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

bool HttpClient::Fill(int64_t deadline_ms) {
  if (closed_) return false;
  pollfd poll_fd{.fd = fd_, .events = POLLIN, .revents = 0};
  const int64_t left = std::max<int64_t>(0, deadline_ms - NowMs());
  if (poll(&poll_fd, 1, static_cast<int>(left)) <= 0) return false;
  char buffer[16384];
  const ssize_t got = recv(fd_, buffer, sizeof(buffer), 0);
  if (got <= 0) {
    closed_ = true;
    return false;
  }
  read_.append(buffer, static_cast<size_t>(got));
  return true;
}

std::string HttpClient::ReadSome(int timeout_ms) {
  if (read_.empty()) Fill(NowMs() + timeout_ms);
  std::string out;
  out.swap(read_);
  return out;
}

std::string HttpClient::ReadUntil(std::string_view text, int timeout_ms) {
  const int64_t deadline = NowMs() + timeout_ms;
  while (read_.find(text) == std::string::npos && Fill(deadline)) {
  }
  std::string out;
  out.swap(read_);
  return out;
}

HttpReply HttpClient::Read(int timeout_ms, bool head_only) {
  const int64_t deadline = NowMs() + timeout_ms;
  HttpReply reply;
  size_t head_end = std::string::npos;
  for (;;) {
    while ((head_end = read_.find("\r\n\r\n")) == std::string::npos) {
      if (!Fill(deadline)) return reply;
    }
    if (!read_.starts_with("HTTP/1.1 100")) break;
    read_.erase(0, head_end + 4);
  }
  const std::string head = read_.substr(0, head_end);
  read_.erase(0, head_end + 4);
  reply.status = std::atoi(head.substr(9, 3).c_str());
  for (std::string_view line : Split(head, '\n')) {
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos || line.starts_with("HTTP/")) continue;
    reply.headers[ToLower(line.substr(0, colon))] = std::string(StripSpace(line.substr(colon + 1)));
  }
  if (head_only || reply.status == 204) {
    reply.complete = true;
    return reply;
  }
  if (reply.headers.count("transfer-encoding") != 0) {
    for (;;) {
      size_t line_end;
      while ((line_end = read_.find("\r\n")) == std::string::npos) {
        if (!Fill(deadline)) return reply;
      }
      const size_t size = std::strtoul(read_.c_str(), nullptr, 16);
      while (read_.size() < line_end + 2 + size + 2) {
        if (!Fill(deadline)) return reply;
      }
      reply.body += read_.substr(line_end + 2, size);
      read_.erase(0, line_end + 2 + size + 2);
      if (size == 0) {
        reply.complete = true;
        return reply;
      }
    }
  }
  if (reply.headers.count("content-length") != 0) {
    const size_t size = std::strtoul(reply.headers["content-length"].c_str(), nullptr, 10);
    while (read_.size() < size) {
      if (!Fill(deadline)) return reply;
    }
    reply.body = read_.substr(0, size);
    read_.erase(0, size);
    reply.complete = true;
    return reply;
  }
  while (Fill(deadline)) {
  }
  reply.body.swap(read_);
  reply.complete = closed_;
  return reply;
}

HttpReply HttpClient::Get(std::string_view path) {
  Send(fmt::format("GET {} HTTP/1.1\r\nHost: test\r\n\r\n", path));
  return Read();
}

std::string HttpClient::PostText(std::string_view path, std::string_view body,
                                 std::string_view more_headers) {
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n{}"
      "Content-Length: {}\r\n\r\n{}",
      path, more_headers, body.size(), body);
}

HttpReply HttpClient::Post(std::string_view path, std::string_view body) {
  Send(PostText(path, body));
  return Read();
}

}  // namespace terrace::server
