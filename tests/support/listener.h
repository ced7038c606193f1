// A socket that listens on a free port of this machine's loopback, for servers that tests play.
#ifndef TERRACE_TESTS_SUPPORT_LISTENER_H_
#define TERRACE_TESTS_SUPPORT_LISTENER_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

namespace terrace::testing_support {

class Listener {
 public:
  explicit Listener(int backlog = 16) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* any = reinterpret_cast<sockaddr*>(&address);
    if (fd_ < 0 || bind(fd_, any, size) != 0 || listen(fd_, backlog) != 0 ||
        getsockname(fd_, any, &size) != 0) {
      std::abort();
    }
    port_ = ntohs(address.sin_port);
  }
  ~Listener() { close(fd_); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  uint16_t port() const { return port_; }
  // A connection, which the caller closes; -1 if there is none, as after End().
  int Accept() const { return accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC); }
  // Wakes who waits in Accept, from any thread; nobody connects any more.
  void End() const { shutdown(fd_, SHUT_RDWR); }

 private:
  const int fd_;
  uint16_t port_ = 0;
};

}  // namespace terrace::testing_support

#endif  // TERRACE_TESTS_SUPPORT_LISTENER_H_
