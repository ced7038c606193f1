#include "cli/supervisor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>

#include "base/status.h"

namespace terrace::cli {
namespace {

using SteadyClock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Messages: the first byte says which. kListening has the gRPC port (two bytes) and the names, each
// with a zero behind it; their sockets come beside it.
constexpr char kListening = 'L';
constexpr char kBeat = 'B';
constexpr char kStopping = 'S';
constexpr size_t kMostMessage = 4096;
constexpr size_t kMostSockets = 16;

constexpr milliseconds kTick(250);
// Ticks without a beat after which a server counts as hung. Counted, not taken from a clock: a
// machine that sleeps, or gives this process no time either, says nothing about the server.
constexpr int kSilentTicks = 14;
constexpr int kStartTicks = 240;  // the same until its first beat
// More restarts than this within the window help nobody.
constexpr size_t kMostRestarts = 5;
constexpr auto kRestartWindow = std::chrono::seconds(60);

std::string SignalText(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? fmt::format("signal {}", signal) : fmt::format("SIG{}", name);
}

// The parent. One server at a time.
class Supervisor {
 public:
  // In the child: the channel to the parent; in the parent never returns.
  int Run(Lineage* lineage);

 private:
  struct Message {
    char kind = 0;
    std::string text;
    std::vector<int> sockets;
  };
  // True in the child.
  bool Start();
  // Until the child has ended; its wait status.
  int Watch();
  void TakeSignals();
  void TakeMessages();
  static bool Receive(int channel, Message* message);
  void CloseListening();
  void TakeListening(const Message& message);
  // How a server ended that is to be started again.
  void Note(int status);
  [[noreturn]] static void EndLike(int status);

  Lineage lineage_;
  pid_t child_ = -1;
  int channel_ = -1;  // this process's end
  int signals_ = -1;
  sigset_t before_{};
  bool stopping_ = false;  // it was asked to end, or said so
  bool serves_ = false;    // it has been heard of since it started
  bool served_ = false;    // some server has
  bool silent_ = false;    // it was killed for its silence
  int quiet_ticks_ = 0;
  std::deque<SteadyClock::time_point> restarts_;
};

bool Supervisor::Start() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    std::perror("terrace: supervisor");
    std::exit(1);
  }
  const pid_t parent = getpid();
  child_ = fork();
  if (child_ < 0) {
    std::perror("terrace: supervisor");
    std::exit(1);
  }
  if (child_ > 0) {
    close(ends[1]);
    channel_ = ends[0];
    serves_ = silent_ = false;
    quiet_ticks_ = 0;
    return false;
  }
  close(ends[0]);
  channel_ = ends[1];
  close(signals_);
  sigprocmask(SIG_SETMASK, &before_, nullptr);
  // A group of its own: what the terminal sends comes once, from the parent. Without the parent it
  // would hold ports and memory that nobody can ask back.
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) std::_Exit(1);
  return true;
}

int Supervisor::Run(Lineage* lineage) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&set, signal);
  sigprocmask(SIG_BLOCK, &set, &before_);
  signals_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  for (;;) {
    if (Start()) {
      *lineage = lineage_;
      return channel_;
    }
    const int status = Watch();
    const bool clean = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    // A server that could not begin has said why, and would not begin the next time either.
    if (clean || stopping_ || !served_ || (!serves_ && WIFEXITED(status))) EndLike(status);
    Note(status);
    const auto now = SteadyClock::now();
    while (!restarts_.empty() && now - restarts_.front() > kRestartWindow) restarts_.pop_front();
    if (restarts_.size() >= kMostRestarts) {
      std::fprintf(stderr, "terrace: the server ended %zu times within a minute; given up\n",
                   restarts_.size() + 1);
      EndLike(status);
    }
    if (!restarts_.empty()) std::this_thread::sleep_for(milliseconds(100 << restarts_.size()));
    restarts_.push_back(now);
  }
}

void Supervisor::EndLike(int status) {
  if (WIFEXITED(status)) std::_Exit(WEXITSTATUS(status));
  std::_Exit(128 + WTERMSIG(status));
}

void Supervisor::Note(int status) {
  const bool hung = silent_ || (WIFEXITED(status) && WEXITSTATUS(status) == kHungStatus);
  ++(hung ? lineage_.hangs : lineage_.crashes);
  lineage_.last = silent_ ? "it no longer said that it was alive"
                  : hung  ? "its engine hung"
                  : WIFEXITED(status)
                      ? fmt::format("it ended with status {}", WEXITSTATUS(status))
                      : fmt::format("it was ended by {}", SignalText(WTERMSIG(status)));
}

int Supervisor::Watch() {
  for (;;) {
    pollfd polled[] = {{signals_, POLLIN, 0}, {channel_, POLLIN, 0}};
    const int ready = poll(polled, channel_ < 0 ? 1 : 2, static_cast<int>(kTick.count()));
    TakeSignals();
    if (channel_ >= 0) TakeMessages();
    int status = 0;
    if (waitpid(child_, &status, WNOHANG) == child_) {
      if (channel_ >= 0) TakeMessages();  // what it said last
      if (channel_ >= 0) close(std::exchange(channel_, -1));
      return status;
    }
    if (ready != 0 || stopping_) continue;
    if (++quiet_ticks_ < (serves_ ? kSilentTicks : kStartTicks)) continue;
    silent_ = true;
    kill(child_, SIGKILL);
  }
}

void Supervisor::TakeSignals() {
  signalfd_siginfo info;
  while (read(signals_, &info, sizeof info) == sizeof info) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) continue;
    if (signal != SIGHUP) stopping_ = true;
    kill(child_, signal);
  }
}

bool Supervisor::Receive(int channel, Message* message) {
  char text[kMostMessage];
  alignas(cmsghdr) char beside[CMSG_SPACE(kMostSockets * sizeof(int))];
  iovec part{text, sizeof text};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = beside;
  header.msg_controllen = sizeof beside;
  const ssize_t size = recvmsg(channel, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (size <= 0) return false;
  message->kind = text[0];
  message->text.assign(text + 1, static_cast<size_t>(size) - 1);
  message->sockets.clear();
  for (cmsghdr* each = CMSG_FIRSTHDR(&header); each != nullptr; each = CMSG_NXTHDR(&header, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
    message->sockets.resize((each->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(message->sockets.data(), CMSG_DATA(each), message->sockets.size() * sizeof(int));
  }
  return true;
}

void Supervisor::TakeMessages() {
  Message message;
  while (Receive(channel_, &message)) {
    quiet_ticks_ = 0;
    if (message.kind == kBeat) serves_ = served_ = true;
    if (message.kind == kStopping) {
      // Once it has closed its sockets nobody is to wait at ours.
      stopping_ = true;
      CloseListening();
    }
    if (message.kind == kListening) TakeListening(message);
  }
}

void Supervisor::CloseListening() {
  for (const auto& [name, socket] : lineage_.listening) close(socket);
  lineage_.listening.clear();
}

void Supervisor::TakeListening(const Message& message) {
  CloseListening();
  if (message.text.size() < 2) return;
  uint16_t port = 0;
  std::memcpy(&port, message.text.data(), sizeof port);
  lineage_.grpc_port = port;
  size_t at = sizeof port;
  for (const int socket : message.sockets) {
    const std::string name = message.text.c_str() + at;
    at += name.size() + 1;
    lineage_.listening[name] = socket;
  }
}

}  // namespace

void SupervisorLink::Listening(const std::map<std::string, int>& sockets, uint16_t grpc_port) {
  if (channel_ < 0) return;
  std::string text(1, kListening);
  text.append(reinterpret_cast<const char*>(&grpc_port), sizeof grpc_port);
  std::vector<int> handed;
  for (const auto& [name, socket] : sockets) {
    if (handed.size() == kMostSockets || text.size() + name.size() + 1 > kMostMessage) break;
    text.append(name).push_back('\0');
    handed.push_back(socket);
  }
  alignas(cmsghdr) char beside[CMSG_SPACE(kMostSockets * sizeof(int))] = {};
  iovec part{text.data(), text.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  const size_t bytes = handed.size() * sizeof(int);
  header.msg_control = beside;
  header.msg_controllen = CMSG_SPACE(bytes);
  cmsghdr* first = CMSG_FIRSTHDR(&header);
  first->cmsg_level = SOL_SOCKET;
  first->cmsg_type = SCM_RIGHTS;
  first->cmsg_len = CMSG_LEN(bytes);
  std::memcpy(CMSG_DATA(first), handed.data(), bytes);
  (void)sendmsg(channel_, &header, MSG_NOSIGNAL);
}

void SupervisorLink::Beat() {
  // A parent that does not read is no reason to wait.
  if (channel_ >= 0) (void)send(channel_, &kBeat, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void SupervisorLink::Stopping() {
  if (channel_ >= 0) (void)send(channel_, &kStopping, 1, MSG_NOSIGNAL);
}

absl::Status Supervise(
    const std::function<absl::Status(const Lineage& lineage, SupervisorLink* link)>& serve) {
  Supervisor supervisor;
  Lineage lineage;
  const Fd channel(supervisor.Run(&lineage));
  SupervisorLink link(channel.get());
  return serve(lineage, &link);
}

}  // namespace terrace::cli
