// A Redis server of a test's own: on a free port, nothing kept on disk, ended by its process id.
#ifndef TERRACE_TESTS_KV_REDIS_SERVER_H_
#define TERRACE_TESTS_KV_REDIS_SERVER_H_

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "support/listener.h"

namespace terrace::testing_redis {

class RedisServer {
 public:
  // False where no redis-server is installed.
  static bool Installed() {
    for (const char* path : {"/usr/bin/redis-server", "/usr/local/bin/redis-server"}) {
      if (access(path, X_OK) == 0) return true;
    }
    return false;
  }

  explicit RedisServer(const std::string& password = "") {
    port_ = testing_support::Listener().port();
    std::vector<std::string> words = {
        "redis-server", "--port", std::to_string(port_), "--bind", "127.0.0.1",
        "--save",       "",       "--appendonly",        "no"};
    if (!password.empty()) {
      words.insert(words.end(), {"--requirepass", password});
    }
    pid_ = fork();
    if (pid_ == 0) {
      const int null = open("/dev/null", O_RDWR);
      for (int fd : {0, 1, 2}) dup2(null, fd);
      std::vector<char*> argv;
      for (std::string& word : words) argv.push_back(word.data());
      argv.push_back(nullptr);
      execvp("redis-server", argv.data());
      _exit(127);
    }
    WaitUntilItListens();
  }
  ~RedisServer() { Kill(); }
  RedisServer(const RedisServer&) = delete;
  RedisServer& operator=(const RedisServer&) = delete;

  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  int32_t port() const { return port_; }

 private:
  void WaitUntilItListens() {
    for (int i = 0; i < 500; ++i) {
      const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      address.sin_port = htons(static_cast<uint16_t>(port_));
      const bool up = connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
      close(fd);
      if (up) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  int32_t port_ = 0;
  pid_t pid_ = 0;
};

}  // namespace terrace::testing_redis

#endif  // TERRACE_TESTS_KV_REDIS_SERVER_H_
