#include "object_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "base/status.h"
#include "base/text.h"
#include "base/units.h"
#include "storage/object/http_store.h"

namespace terrace::bench {
namespace {

constexpr uint64_t kRange = 8 * kMiB;
// Sent at a time, so that all connections share the rate.
constexpr uint64_t kPiece = 256 * kKiB;
constexpr int kPollMs = 20;

bool Send(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t sent = send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    text.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

// "bytes=FIRST-LAST" of a request's head; false if it asks for no range.
bool ParseRange(std::string_view head, uint64_t* first, uint64_t* last) {
  const std::string lower = ToLower(head);
  const size_t at = lower.find("\r\nrange: bytes=");
  if (at == std::string::npos) return false;
  const char* begin = lower.data() + at + 15;
  const char* end = lower.data() + lower.size();
  const auto parsed = std::from_chars(begin, end, *first);
  return parsed.ec == std::errc() && parsed.ptr != end &&
         std::from_chars(parsed.ptr + 1, end, *last).ec == std::errc();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ObjectServer>> ObjectServer::Serve(const std::string& path,
                                                                  double bytes_per_s,
                                                                  const Clock* clock) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return ErrnoStatus(errno, "opening " + path);
  struct stat state = {};
  if (fstat(file, &state) != 0) {
    close(file);
    return ErrnoStatus(errno, "looking at " + path);
  }
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::unique_ptr<ObjectServer> server(
      new ObjectServer(listener, file, static_cast<uint64_t>(state.st_size), bytes_per_s, clock));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (listener < 0 || bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(listener, 128) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return ErrnoStatus(errno, "listening on the loopback");
  }
  server->port_ = ntohs(address.sin_port);
  server->acceptor_ = std::thread([raw = server.get()] { raw->Accept(); });
  return server;
}

ObjectServer::ObjectServer(int listener, int file, uint64_t size, double bytes_per_s,
                           const Clock* clock)
    : listener_(listener), file_(file), size_(size), bytes_per_s_(bytes_per_s), clock_(*clock) {}

ObjectServer::~ObjectServer() {
  stopping_ = true;
  if (listener_ >= 0) shutdown(listener_, SHUT_RDWR);
  if (acceptor_.joinable()) acceptor_.join();
  for (std::thread& thread : connections_) thread.join();
  if (listener_ >= 0) close(listener_);
  close(file_);
}

std::string ObjectServer::url() const { return fmt::format("http://127.0.0.1:{}/m.gguf", port_); }

void ObjectServer::Accept() {
  for (;;) {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) {
      if (stopping_) return;
      continue;
    }
    const int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    connections_.emplace_back([this, fd] {
      while (Answer(fd)) {
      }
      close(fd);
    });
  }
}

void ObjectServer::Take(uint64_t bytes) {
  double wait_us = 0;
  {
    absl::MutexLock lock(&mutex_);
    const auto now = static_cast<double>(clock_.NowUs());
    free_us_ = std::max(free_us_, now) + static_cast<double>(bytes) / bytes_per_s_ * 1e6;
    wait_us = free_us_ - now;
  }
  std::this_thread::sleep_for(std::chrono::microseconds(static_cast<int64_t>(wait_us)));
}

bool ObjectServer::SendRange(int fd, uint64_t offset, uint64_t bytes) {
  while (bytes > 0 && !stopping_) {
    const uint64_t piece = std::min(bytes, kPiece);
    Take(piece);
    auto at = static_cast<off_t>(offset);
    for (uint64_t left = piece; left > 0;) {
      const ssize_t sent = sendfile(fd, file_, &at, left);
      if (sent <= 0) return false;
      left -= static_cast<uint64_t>(sent);
    }
    offset += piece;
    bytes -= piece;
    served_ += piece;
  }
  return bytes == 0;
}

bool ObjectServer::Answer(int fd) {
  std::string head;
  while (head.find("\r\n\r\n") == std::string::npos) {
    pollfd waiting = {fd, POLLIN, 0};
    if (stopping_) return false;
    if (poll(&waiting, 1, kPollMs) <= 0) continue;
    char buffer[4096];
    const ssize_t got = recv(fd, buffer, sizeof(buffer), 0);
    if (got <= 0) return false;
    head.append(buffer, static_cast<size_t>(got));
  }
  uint64_t first = 0, last = 0;
  if (!ParseRange(head, &first, &last) || first >= size_ || last < first) {
    return Send(fd, "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\n\r\n");
  }
  last = std::min(last, size_ - 1);
  const std::string answer = fmt::format(
      "HTTP/1.1 206 Partial Content\r\nETag: \"one\"\r\nContent-Length: {}\r\n"
      "Content-Range: bytes {}-{}/{}\r\n\r\n",
      last - first + 1, first, last, size_);
  return Send(fd, answer) && SendRange(fd, first, last - first + 1);
}

absl::StatusOr<double> BareObjectRate(const ObjectServer& server, int parallel,
                                      const Clock& clock) {
  storage::HttpStore store("", {});
  ASSIGN_OR_RETURN(const storage::ObjectInfo info, store.Stat(server.url(), {}));
  std::atomic<uint64_t> next{0};
  absl::Mutex mutex;
  absl::Status failed;
  std::vector<std::thread> readers;
  const int64_t start_us = clock.NowUs();
  for (int i = 0; i < parallel; ++i) {
    readers.emplace_back([&] {
      for (;;) {
        const uint64_t offset = next.fetch_add(kRange);
        if (offset >= info.bytes) return;
        const absl::Status status = store.StreamRange(
            server.url(), offset, std::min(kRange, info.bytes - offset), info, {},
            [](uint64_t, std::span<const std::byte>) { return absl::OkStatus(); });
        if (status.ok()) continue;
        absl::MutexLock lock(&mutex);
        failed = status;
        return;
      }
    });
  }
  for (std::thread& reader : readers) reader.join();
  RETURN_IF_ERROR(failed);
  return static_cast<double>(info.bytes) * 1e6 / static_cast<double>(clock.NowUs() - start_us);
}

}  // namespace terrace::bench
