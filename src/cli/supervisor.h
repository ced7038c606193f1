// Supervised serving: a small process starts the server as its child, and starts it again when it
// is killed, crashes, or no longer says that it is alive. The listening sockets are handed from
// child to child, so that whoever connects meanwhile waits a moment instead of being refused.
#ifndef TERRACE_CLI_SUPERVISOR_H_
#define TERRACE_CLI_SUPERVISOR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/signals.h"

namespace terrace::cli {

// The exit status after a hang (EX_SOFTWARE of sysexits.h).
inline constexpr int kHungStatus = 70;

// What a server inherits from those before it. Empty for the first.
struct Lineage {
  // Listening sockets by what they were asked for ("127.0.0.1:8000"); open in this process.
  std::map<std::string, int> listening;
  uint16_t grpc_port = 0;  // 0: none, or not known yet
  int32_t crashes = 0;     // servers that were killed, or ended by themselves
  int32_t hangs = 0;
  std::string last;  // how the last one ended; empty for the first server
};

// The server's side: says to the supervisor what it has to know. Does nothing without one.
// Thread-safe.
class SupervisorLink {
 public:
  // `channel`: a socket, or -1; closed by its owner.
  explicit SupervisorLink(int channel) : channel_(channel) {}
  bool supervised() const { return channel_ >= 0; }  // by the parent process
  // These ports are open; the sockets stay this process's too.
  void Listening(const std::map<std::string, int>& sockets, uint16_t grpc_port);
  // Served from now on; silence of some seconds means from here that the server hangs.
  void Beat();
  // The server ends by itself; nothing more is expected of it.
  void Stopping();

 private:
  const int channel_;
};

// Runs `serve` in a child process until it ends as it should, or cannot begin. SIGTERM, SIGINT and
// SIGHUP are passed on. In the child it calls `serve` and returns its status; in the parent it does
// not return: the process ends with the child's exit status.
absl::Status Supervise(
    const std::function<absl::Status(const Lineage& lineage, SupervisorLink* link)>& serve);

}  // namespace terrace::cli

#endif  // TERRACE_CLI_SUPERVISOR_H_
